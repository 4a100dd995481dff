"""What is known of one shape: what is served and why, and everything measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...db.records import Environment, Measurement, TunedConfig
from ...db.store import Store
from ...kernel.config import FIELD_NAMES, KernelConfig, canonical, default_config
from ...kernel.ladder import Answer
from ...kernel.legality import violations
from ...kernel.shapes import PfaShape, Workload
from ...kernel.soc import SOCS
from ...kernel.source import kernel_digest
from ..errors import one_line
from ..http.problems import not_found
from ..serving import Served
from .history import History, history
from .importance import Importance, ImportanceCache

MOST_ROWS = 3000  # measurements that the plot and the importance look at
MOST_LISTED = 50
_MOST_ENVIRONMENTS = 20  # that are looked through for measurements, newest first
_LONGEST_MESSAGE = 400

_WHY = {
    "exact": "tuned for this very shape",
    "bucket": "tuned for the bucket this shape falls into, not measured at this shape",
    "nearest": "tuned for a shape close by, not measured at this shape",
    "portfolio": "the family's common configuration, not measured at this shape",
    "default": "never tuned: the kernel's own configuration",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the configuration, as the default has it and as it is served."""

    name: str
    default: Any
    served: Any

    @property
    def is_changed(self) -> bool:
        return bool(self.default != self.served)


@dataclass(frozen=True, slots=True)
class Listed:
    """A measurement in the table."""

    row: Measurement
    message: str
    speedup: float | None
    traced: bool


@dataclass(frozen=True, slots=True)
class Lanes:
    """The measurements whose swim lanes can be drawn, None where no trace is stored."""

    default: int | None
    tuned: int | None
    are_same: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything measured at the shape in one environment."""

    environment: Environment
    is_current: bool  # of this version of the kernel
    count: int
    is_cut: bool  # older ones were left out
    kinds: tuple[tuple[str, int], ...]
    default_cost: float | None
    plot: History | None
    importance: Importance
    listed: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class ShapeView:
    """What the page of a shape shows."""

    shape: PfaShape
    soc: str
    config: KernelConfig
    provenance: str
    why: str
    tuned: TunedConfig | None
    is_other: bool  # the evidence is of another workload
    fields: tuple[Field, ...]
    illegal: str  # why the default cannot run, where it is served
    lanes: Lanes | None
    environments: tuple[Environment, ...]
    measured: Measured | None
    memory: Served | None = None  # where the store cannot be read: what is served all the same
    trouble: str = ""  # and why it cannot


def shape_view(
    store: Store, shape: PfaShape, soc: str, served: Served, environment: str | None, importances: ImportanceCache
) -> ShapeView:
    """All of it, read from the store.

    ``environment`` is the digest of the one whose measurements are shown; None: the one that serves
    the shape, else the one that measured it last.

    Raises:
        ProblemError: no environment has that digest.
        StoreError: the store cannot be read.
    """
    env_id, tuned = _evidence(store, served.answer) or (None, None)
    workload = Workload(shape)
    # A shape that was tuned with shorter sequences only is best known by those.
    if tuned is not None and tuned.workload.shape == shape:
        workload = tuned.workload
    is_other = tuned is not None and tuned.workload != Workload(shape)
    known = _environments(store, workload, soc, environment)
    shown: int | None
    if environment is not None:
        shown = next(key for key, one in known.items() if one.digest == environment)
    elif env_id in known:
        shown = env_id
    else:
        shown = next(iter(known), None)
    config = served.answer.config if tuned is None else tuned.measurement.config
    return ShapeView(
        shape=shape,
        soc=soc,
        config=config,
        provenance=served.answer.provenance,
        why=_why(served.answer.provenance, tuned, shape),
        tuned=tuned,
        is_other=is_other,
        fields=_fields(config, shape),
        illegal=_illegal(config, shape, soc) if served.answer.provenance == "default" else "",
        lanes=None if tuned is None else _lanes(store, tuned),
        environments=tuple(known.values()),
        measured=None if shown is None else _measured(store, shown, known[shown], workload, importances),
    )


def shape_in_memory(shape: PfaShape, soc: str, served: Served, trouble: str) -> ShapeView:
    """What can be told of a shape while the store cannot be read, for the reason given."""
    answer = served.answer
    return ShapeView(
        shape=shape,
        soc=soc,
        config=answer.config,
        provenance=answer.provenance,
        why=_why(answer.provenance, None, shape),
        tuned=None,
        is_other=answer.shape not in (None, shape),
        fields=_fields(answer.config, shape),
        illegal=_illegal(answer.config, shape, soc) if answer.provenance == "default" else "",
        lanes=None,
        environments=(),
        measured=None,
        memory=served,
        trouble=trouble,
    )


def _fields(config: KernelConfig, shape: PfaShape) -> tuple[Field, ...]:
    before, after = canonical(default_config(shape), shape.family).to_json(), config.to_json()
    return tuple(Field(name, before[name], after[name]) for name in FIELD_NAMES)


def _illegal(config: KernelConfig, shape: PfaShape, soc: str) -> str:
    broken = violations(config, shape.family, SOCS[soc])
    return one_line(broken[0].message) if broken else ""


def _evidence(store: Store, answer: Answer) -> tuple[int, TunedConfig] | None:
    """The environment's id and the stored row behind an answer."""
    if answer.entry is None:
        return None
    found = store.measurement(answer.entry.measurement)
    if found is None:
        return None
    env_id, row = found
    rows = store.tuned(env_id, row.workload)
    return (env_id, rows[0]) if rows else None


def _why(provenance: str, tuned: TunedConfig | None, shape: PfaShape) -> str:
    if tuned is not None and tuned.workload.shape == shape and tuned.workload.actual_seq is not None:
        return "tuned for this shape with shorter sequences, not measured with full ones"
    return _WHY[provenance]


def _environments(store: Store, workload: Workload, soc: str, wanted: str | None) -> dict[int, Environment]:
    """Where the workload was measured: of this kernel first, then the newest first; the wanted one in any case."""
    known = {key: one for key, one in reversed(store.environments().items()) if one.soc == soc}
    if wanted is not None and all(one.digest != wanted for one in known.values()):
        raise not_found(f"environment {wanted} of {soc}", "leave `environment` out")
    order = sorted(known, key=lambda key: known[key].kernel_digest != kernel_digest())
    return {
        key: known[key]
        for place, key in enumerate(order)
        if known[key].digest == wanted
        or (place < _MOST_ENVIRONMENTS and store.measurements(key, workload=workload, limit=1))
    }


def _lanes(store: Store, tuned: TunedConfig) -> Lanes:
    ids = [tuned.default.id or 0, tuned.measurement.id or 0]
    traced = store.traces.has(ids)
    default, best = (one if one in traced else None for one in ids)
    return Lanes(default, best, ids[0] == ids[1])


def _measured(
    store: Store, env_id: int, environment: Environment, workload: Workload, importances: ImportanceCache
) -> Measured:
    newest = store.measurements(env_id, workload=workload, limit=MOST_ROWS + 1, newest_first=True)
    rows = newest[MOST_ROWS - 1 :: -1] if len(newest) > MOST_ROWS else newest[::-1]
    default_cost = _default_cost(store, env_id, workload, rows)
    return Measured(
        environment=environment,
        is_current=environment.kernel_digest == kernel_digest(),
        count=len(rows),
        is_cut=len(newest) > MOST_ROWS,
        kinds=tuple(sorted(Counter(row.kind.value for row in rows).items(), key=lambda one: -one[1])),
        default_cost=default_cost,
        plot=history(rows, environment.unit, default_cost),
        importance=importances.of(environment, rows),
        listed=_listed(store, newest[:MOST_LISTED], default_cost),
    )


def _default_cost(store: Store, env_id: int, workload: Workload, rows: Sequence[Measurement]) -> float | None:
    """What the default costs: the measurement it is served against, else the newest one."""
    tuned = store.tuned(env_id, workload)
    if tuned:
        return tuned[0].default_cost
    default = canonical(default_config(workload.shape), workload.shape.family)
    return next((row.cost for row in reversed(rows) if row.cost is not None and row.config == default), None)


def _listed(store: Store, rows: Sequence[Measurement], default_cost: float | None) -> tuple[Listed, ...]:
    traced = store.traces.has([row.id for row in rows if row.id is not None])
    return tuple(
        Listed(
            row,
            _short(row.message),
            default_cost / row.cost if row.cost is not None and default_cost is not None else None,
            row.id in traced,
        )
        for row in rows
    )


def _short(message: str) -> str:
    text = one_line(message)
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
