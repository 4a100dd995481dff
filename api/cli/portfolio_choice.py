"""What ``pfatune portfolio`` chooses from: a landscape, the database, or trials of the embedded worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...kernel.shapes import PfaFamily
from ...kernel.soc import Soc, soc
from ...kernel.source import kernel_digest
from ..errors import InputError
from ..log import log
from . import lookup, output
from .embedded import check, worker
from .stop import stop

if TYPE_CHECKING:
    from ...autotune.family_costs import FamilyCosts, Filling
    from ...autotune.portfolio import Choice, Costs, Portfolio
    from ...db.portfolios import StoredPortfolio
    from ...db.records import Environment
    from ...db.store import Store
    from ..settings import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """What the portfolio is to be: ``limit`` is 0.05 for 5 %."""

    limit: float
    max_configs: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """A portfolio, what it was chosen from, and what it has for shapes that are left out of the choice.

    ``stored`` is None, and ``database`` empty, where it comes from a landscape.
    """

    family: PfaFamily
    environment: Environment
    asked: Asked
    costs: Costs
    chosen: Portfolio
    left_out: tuple[Choice, ...]
    database: str = ""
    stored: StoredPortfolio | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the trials: how many at once, seconds of one, GiB of one."""

    parallel: int
    timeout: float
    memory_gib: float


def of_landscape(file: str, asked: Asked) -> Found:
    """The portfolio of a recorded landscape.

    Raises:
        InputError: the file holds none, or nothing to choose from.
    """
    from ...autotune.family_costs import costs_of
    from ...autotune.landscape import LandscapeError, read
    from ...autotune.portfolio import choose, leave_one_out

    try:
        recorded = read(Path(file))
        costs = costs_of(recorded)
    except OSError as error:
        raise InputError(f"--landscape {file!r} cannot be read: {error.strerror or error}; give a landscape") from None
    except LandscapeError as error:
        raise InputError(f"--landscape {file!r} cannot be used: {error}") from None
    except (AttributeError, ValueError) as error:  # parts of another type, or nothing that ran
        raise InputError(f"--landscape {file!r} has no costs to choose from: {error}") from None
    chosen = choose(costs, asked.limit, asked.max_configs)
    left_out = leave_one_out(costs, asked.limit, asked.max_configs)
    return Found(recorded.family, recorded.environment, asked, costs, chosen, left_out)


def open_store(target: str, family: PfaFamily) -> Store:
    """The database, which is not made where there is none.

    Raises:
        InputError: there is none.
        StoreError: it cannot be used.
    """
    store = lookup.open_if_there(target, read_only=False)
    if store is None:
        raise InputError(f"there is no database {target}: {_remedy(family)}")
    return store


def _remedy(family: PfaFamily) -> str:
    changed = {name: value for name, value in family.to_json().items() if value != getattr(PfaFamily(), name)}
    static = "".join(f" --{name.replace('_', '-')} {value}" for name, value in changed.items())
    return f"tune shapes of the family first, for example `pfatune tune{static} --b 1,4,16 --s2 1024,8192`"


def newest(store: Store, chip: Soc, family: PfaFamily) -> tuple[FamilyCosts, Environment]:
    """What the newest environment of this kernel knows in which something of the family is tuned.

    Raises:
        InputError: nothing is.
    """
    from ...autotune.family_costs import FamilyCosts

    for key, environment in store.served_environments():
        if environment.soc == chip.name and environment.kernel_digest == kernel_digest():
            known = FamilyCosts(store, key, family)
            if known.tuned:
                return known, environment
    raise _nothing_tuned(store, family, chip.name)


def _nothing_tuned(store: Store, family: PfaFamily, where: str) -> InputError:
    text = " ".join(f"{name}={value}" for name, value in family.to_json().items())
    return InputError(f"no shape of {text} is tuned for {where} in {store.database.name}: {_remedy(family)}")


def measured(
    store: Store, settings: Settings, family: PfaFamily, asked: Asked, limits: Limits, as_json: bool
) -> tuple[FamilyCosts, Environment]:
    """What the embedded worker's environment knows, everything that the choice needs measured and verified.

    Raises:
        InputError: nothing of the family is tuned there.
        KeyboardInterrupt: a stop was asked for; everything that ended is stored.
        WorkerSetupError: the worker cannot be set up, or runs no trial.
    """
    from ...autotune.family_costs import FamilyCosts, Filler

    chip = soc(settings.soc)
    check(chip, settings.cache_folder)
    console = None if as_json else output.console()
    with worker(chip, settings.cache_folder, timeout=limits.timeout, memory_gib=limits.memory_gib, console=console) as (
        backend,
        pool,
    ):
        known = FamilyCosts(store, store.environment_id(backend.environment), family)
        if not known.tuned:
            raise _nothing_tuned(store, family, f"{chip.name} in this environment")
        progress = _Progress(as_json)
        with stop.deferred():
            filler = Filler(known, backend, pool, parallel=limits.parallel, watch=progress.watch)
            filler.measure()
            filler.verify(asked.limit, asked.max_configs)
        return known, backend.environment


def saved(known: FamilyCosts, environment: Environment, asked: Asked) -> Found:
    """The portfolio, stored: it is served from now on."""
    from ...autotune.portfolio import choose, leave_one_out, median, worst
    from ...db.portfolios import PortfolioTerms

    costs = known.costs()
    chosen = choose(costs, asked.limit, asked.max_configs)
    left_out = leave_one_out(costs, asked.limit, asked.max_configs)
    terms = PortfolioTerms(
        asked.limit, asked.max_configs, chosen.worst, median(left_out), worst(left_out), chosen.proven
    )
    stored = known.store.portfolios.save(known.env_id, known.family, known.evidence(chosen.anchors), terms)
    return Found(known.family, environment, asked, costs, chosen, left_out, known.store.database.name, stored)


class _Progress:
    """A line for each trial that ends; a stop takes effect between them."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def watch(self, filling: Filling) -> None:
        if filling.total and (filling.last or not filling.done):
            log().info("portfolio", doing=filling.what, done=filling.done, total=filling.total, last=filling.last)
            if self._as_json:
                output.print_json(
                    {
                        "event": "progress",
                        "doing": filling.what,
                        "done": filling.done,
                        "total": filling.total,
                        "last": filling.last,
                    }
                )
            elif filling.last:
                print(f"{_DOING[filling.what]} {filling.done}/{filling.total}: {filling.last}", flush=True)
            else:
                print(f"{_TO_DO[filling.what]}: {filling.total} configurations", flush=True)
        stop.check()


_DOING = {"time": "measured", "verify": "verified"}
_TO_DO = {"time": "to be measured at other tuned shapes", "verify": "numbers to be verified"}
