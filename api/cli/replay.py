"""``pfatune replay``: what a strategy would have found in a recorded space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from . import options, output
from .shapes import picture_file

if TYPE_CHECKING:
    from rich.console import Console

    from ...autotune.replay import RecordedSpace
    from ...autotune.replay_report import Replays, Row

DEFAULT_EVALUATIONS = 100
DEFAULT_SEEDS = 20
_SHARE = 0.95

EXAMPLES = """
[bold]Examples[/]

  pfatune replay benchmarks/landscapes/nkv1.json.gz
    the default strategy on each shape of a landscape, 100 trials, 20 seeds

  pfatune replay benchmarks/landscapes/nkv1.json.gz --together --seeds 5
    on all shapes together: a trial compiles once and is timed on every one

  pfatune replay convolution_A100.json.gz --strategy tpe --evaluations 50
    another strategy, on a cache file of Kernel Tuner

  pfatune replay nkv1.json.gz --parallel 4 --plot replay.png
    four trials at a time, and a picture as well

[bold]What the columns mean[/]

  Per cent of the optimum: the lowest cost of the space over the lowest that
  the search has found so far; on several shapes together the geometric mean.
  Median, mean and lowest are over the seeds; of several spaces, the means of
  their medians and means, and the lowest of all.
  Seconds are those that were recorded, of compiling and running. A trial
  that failed takes what it took. Choosing what to try next takes
  milliseconds, which are not counted.

[bold]JSON[/]

  file, strategy, evaluations, seeds, parallel, and spaces, for each: name,
  workloads, unit, configurations, failed, optimum (one for each workload),
  by_evaluations (evaluations, median, mean, lowest), by_seconds (seconds,
  median, mean, lowest), and near (share, seconds: the median or null,
  reached: how many searches). Shares are 0.95 for 95 %.

[bold]Exit codes[/]

  0 done
  1 could not be done
  2 bad input
"""


def replay(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A landscape of pfatune or a cache file of Kernel Tuner: JSON, gzipped or not.",
            show_default=False,
        ),
    ],
    strategy: options.Strategy = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            parser=options.whole("--evaluations", 1, 100_000),
            metavar="N",
            help=f"Trials of each search. Default {DEFAULT_EVALUATIONS}.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            parser=options.whole("--seeds", 1, 10_000),
            metavar="K",
            help=f"Searches of each space, with seeds from 0. Default {DEFAULT_SEEDS}.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            parser=options.whole("--parallel", 1, 256),
            metavar="N",
            help="Trials at once, of one search. Default 1.",
            show_default=False,
        ),
    ] = None,
    together: Annotated[
        bool,
        typer.Option("--together", help="Search the shapes of a landscape together instead of each for itself."),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.png", help="Also draw the curves into this file.", show_default=False),
    ] = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Tell how fast a strategy finds the best of a recorded space.

    Nothing is compiled: what each configuration cost, and how long its trial
    took, was recorded, failures too. So strategies are compared in seconds,
    on the same ground, and anybody can do it again.
    """
    from ...autotune.recorded import RecordedSpaceError, read_space
    from ...autotune.replay_report import replays
    from ...autotune.strategy import DEFAULT

    picture = picture_file(plot)
    try:
        space = read_space(Path(file))
    except OSError as error:
        raise InputError(f"{file!r} cannot be read: {error.strerror or error}; give a recorded space") from None
    except RecordedSpaceError as error:
        raise InputError(f"{file!r} cannot be replayed: {error}") from None
    name, trials, runs = strategy or DEFAULT, evaluations or DEFAULT_EVALUATIONS, seeds or DEFAULT_SEEDS
    is_whole = together or len(space.workloads) == 1
    spaces = [space] if is_whole else [space.of_workload(at) for at in range(len(space.workloads))]
    found = []
    with output.counting(len(spaces) * runs, "searches", quiet=as_json) as count:
        for at, one in enumerate(spaces):

            def watch(done: int, before: int = at * runs) -> None:
                count(before + done)

            found.append(replays(one, name, trials, runs, parallel=parallel or 1, watch=watch))
    if picture is not None:
        from ...autotune.replay_picture import draw

        try:
            draw(found, picture, title=f"{name} on {space.name}, {runs} seeds")
        except OSError as error:
            raise InputError(f"--plot {plot!r} cannot be written: {error.strerror}; give another file") from None
    if as_json:
        about = {"file": file, "strategy": name, "evaluations": trials, "seeds": runs, "parallel": parallel or 1}
        output.print_json({**about, "spaces": [_document(one) for one in found]})
        return 0
    _print(output.console(), space, found, f"strategy {name}, {runs} seed{'s' if runs > 1 else ''}")
    if picture is not None:
        output.console().print(f"\npicture: {picture}")
    return 0


def _print(out: Console, space: RecordedSpace, found: Sequence[Replays], how: str) -> None:
    from ...autotune.replay_report import after, after_seconds, second_marks, trial_marks

    failed = sum(outcome.costs is None for outcome in space.outcomes.values())
    size = f"{len(space.outcomes):,} configurations, {failed:,} of which failed"
    out.print(f"{space.name}: {size}; {how}", style="bold")
    if len(found) > 1:
        out.print(f"mean over {len(found)} shapes, each searched for itself", style="dim")
    last = max(len(steps) for one in found for steps in one.searches)
    by_trials = [after(found, at) for at in trial_marks(last)]
    by_seconds = [after_seconds(found, at) for at in second_marks(found)]
    out.print()
    out.print(_table("trials", by_trials))
    out.print()
    out.print(_table("seconds", by_seconds))
    out.print()
    table = output.plain_table("shape" if len(found) > 1 else "", "seconds to 95 %", "searches that got there")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        label = one.space.workloads[0] if len(found) > 1 else space.name
        reached = f"{one.reached(_SHARE)} of {len(one.searches)}"
        table.add_row(label, _seconds(one.seconds_to(_SHARE)), reached)
    out.print(output.indented(table))
    out.print("\n  seconds as recorded, of compiling and running; most searches not there: never", style="dim")


def _table(heading: str, rows: Sequence[Row]) -> Any:
    table = output.plain_table(heading, "median", "mean", "lowest")
    for column in table.columns:
        column.justify = "right"
    for row in rows:
        table.add_row(f"{row.at:,g}", *(f"{100 * share:.1f} %" for share in (row.median, row.mean, row.lowest)))
    return output.indented(table)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "never"


def _document(one: Replays) -> dict[str, Any]:
    from ...autotune.replay_report import NEAR, second_marks, trial_marks

    last = max(len(steps) for steps in one.searches)
    return {
        "name": one.space.name,
        "workloads": [workload for workload in one.space.workloads if workload],
        "unit": one.space.unit,
        "configurations": len(one.space.outcomes),
        "failed": sum(outcome.costs is None for outcome in one.space.outcomes.values()),
        "optimum": list(one.space.optimum),
        "by_evaluations": [_row("evaluations", one.after(at)) for at in trial_marks(last)],
        "by_seconds": [_row("seconds", one.after_seconds(at)) for at in second_marks([one])],
        "near": [
            {
                "share": share,
                "seconds": seconds if math.isfinite(seconds := one.seconds_to(share)) else None,
                "reached": one.reached(share),
            }
            for share in NEAR
        ],
    }


def _row(name: str, row: Row) -> dict[str, float]:
    return {name: row.at, "median": row.median, "mean": row.mean, "lowest": row.lowest}
