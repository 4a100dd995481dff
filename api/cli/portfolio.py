"""``pfatune portfolio``: the fewest configurations that serve a whole family."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from ...kernel.shapes import MAX_BLOCK_SIZE, MAX_HEAD_DIM, MAX_HEADS, MAX_S1, MAX_S2, PfaFamily, PfaShape
from ...kernel.soc import soc
from ..errors import InputError
from . import options, output
from .portfolio_choice import Asked, Limits, measured, newest, of_landscape, open_store, saved

DEFAULT_REGRET = 5.0

EXAMPLES = """
[bold]Examples[/]

  pfatune tune --nkv 1 --b 1,4,16 --s2 1024,8192
  pfatune portfolio --nq 12 --nkv 1
    tune some shapes of the family, then choose few configurations for all

  pfatune portfolio --nq 12 --nkv 1 --regret 10 --max-configs 3
    within 10 % of the fastest; if that takes more than 3, the best 3

  pfatune portfolio --nkv 2 --no-measure
    from what was measured already, without a worker

  pfatune portfolio --landscape nkv1.json.gz
    a report on a recorded landscape: nothing is measured nor stored

  pfatune portfolio --nkv 1 --json | tail -1 | jq .worst_regret

[bold]What the columns mean[/]

  regret     cost over the least that any verified configuration has at the
             shape, less 1
  left out   the regret at the shape of what the portfolio of all others has
             for it: what a shape that was not measured has to expect

[bold]JSON[/]

  With --json every line is a document. Those with event "progress": doing
  (time or verify), done, total, last.
  The last one has event "result": family, soc, backend, unit, environment,
  database, stored (an id), asked (regret, max_configs), proven,
  worst_regret, mean_regret, left_out (median, worst), note, configs
  (config, config_digest, shapes: how many get it), shapes (b, s2,
  config_digest, cost, best_cost, regret, left_out_digest, left_out_regret)
  and anchors (b, s2, config_digest), which the rule is evaluated over.
  Regrets are 0.05 for 5 %.
  database and stored are null with --landscape.

[bold]Exit codes[/]

  0 done
  1 could not be done
  2 bad input, or nothing of the family is tuned
  130 stopped by Ctrl-C, 143 by SIGTERM: everything measured is kept
"""

_FAMILY = "Family"
_CHOICE = "Choice"


def _family_option(field: str, high: int, text: str) -> Any:
    name = f"--{field.replace('_', '-')}"
    default = getattr(PfaFamily(), field)
    return typer.Option(
        name,
        parser=options.whole(name, 1, high),
        metavar="N",
        help=f"{text} Default {default}.",
        rich_help_panel=_FAMILY,
        show_default=False,
    )


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1000:
        raise InputError(f"--regret is {text!r}: give per cent from 0 to 1000")
    return value


def portfolio(
    nq: Annotated[int | None, _family_option("nq", MAX_HEADS, "Query heads, a multiple of nkv.")] = None,
    nkv: Annotated[int | None, _family_option("nkv", MAX_HEADS, "KV heads.")] = None,
    s1: Annotated[int | None, _family_option("s1", MAX_S1, "Query tokens of each request.")] = None,
    qd: Annotated[int | None, _family_option("qd", MAX_HEAD_DIM, "Elements of a head.")] = None,
    block_size: Annotated[
        int | None, _family_option("block_size", MAX_BLOCK_SIZE, "Tokens in a page of the KV cache.")
    ] = None,
    regret: Annotated[
        float | None,
        typer.Option(
            "--regret",
            parser=_percent,
            metavar="PERCENT",
            help=f"Most over the fastest at any shape. Default {DEFAULT_REGRET:g}.",
            rich_help_panel=_CHOICE,
            show_default=False,
        ),
    ] = None,
    max_configs: Annotated[
        int | None,
        typer.Option(
            "--max-configs",
            parser=options.whole("--max-configs", 1, 1000),
            metavar="N",
            help="Most configurations, even if the regret is larger then. Default: no limit.",
            rich_help_panel=_CHOICE,
            show_default=False,
        ),
    ] = None,
    landscape: Annotated[
        str | None,
        typer.Option(
            "--landscape",
            metavar="FILE",
            help="Report on a recorded landscape instead of the database.",
            rich_help_panel=_CHOICE,
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Measure each tuned configuration at all tuned shapes, and verify what is chosen. Default: measure.",
            rich_help_panel=options.TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            parser=options.whole("--parallel", 1, 256),
            metavar="N",
            help="Trials at once. Default: PFATUNE_PARALLEL, else the cores less one.",
            rich_help_panel=options.TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    timeout: options.Timeout = None,
    memory_gib: options.MemoryGib = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Choose the fewest configurations that are good at every tuned shape of a family.

    Each configuration is one more kernel that an engine compiles. The
    portfolio keeps every tuned shape within a regret of the fastest known
    there, and is served where no tuned shape is near: a shape gets the
    configuration of the nearest anchor. What is not known is measured first,
    and only configurations with the right numbers are chosen.
    """
    given: dict[str, int | None] = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    static = {name: value for name, value in given.items() if value is not None}
    asked = Asked((DEFAULT_REGRET if regret is None else regret) / 100, max_configs)
    if landscape is not None:
        others = {**static, "db": db, "soc": soc_name, "parallel": parallel, "measure": measure or None}
        _refuse_beside_landscape([name for name, value in others.items() if value is not None])
        found = of_landscape(landscape, asked)
    else:
        from ..settings import load_settings

        family = PfaShape(b=1, s2=MAX_S2, **static).family
        settings = load_settings(db=db, soc_name=soc_name)
        limits = Limits(
            parallel or settings.parallel,
            timeout or settings.trial_timeout,
            memory_gib or settings.trial_memory_gib,
        )
        store = open_store(settings.db, family)
        with store:
            if measure is False:
                known, environment = newest(store, soc(settings.soc), family)
            else:
                known, environment = measured(store, settings, family, asked, limits, as_json)
            found = saved(known, environment, asked)
    from .portfolio_report import print_document, print_report

    print_document(found) if as_json else print_report(output.console(), found)
    return 0


def _refuse_beside_landscape(names: list[str]) -> None:
    if names:
        option = f"--{names[0].replace('_', '-')}"
        raise InputError(f"--landscape and {option} are both given: a landscape has its own; leave {option} out")
