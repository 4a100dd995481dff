"""What a tuning run found: in words and tables, or as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...kernel.shapes import Workload
from . import output
from .options import shape_options
from .progress import kinds_text

if TYPE_CHECKING:
    from rich.console import Console

    from ...autotune.progress import Progress, TuneResult
    from ...db.records import Environment, Kind, TunedConfig

_DETAILED = 3  # shapes up to which every field that differs is shown


def print_result(out: Console, result: TuneResult, environment: Environment, database: str) -> None:
    """A family's result for people."""
    progress = result.progress
    if progress.interrupted:
        out.print("\nstopped: everything measured is kept; the same command goes on from here", style="yellow")
    if len(result.tuned) > _DETAILED:
        out.print()
        _print_overview(out, result.tuned)
    else:
        for tuned in result.tuned:
            out.print()
            _print_tuned(out, tuned)
    found = {tuned.workload for tuned in result.tuned}
    for workload in progress.workloads:
        if workload not in found:
            out.print(f"\nnothing is known yet of {workload}")
    out.print()
    rows = {"trials": _trials_text(progress), "stored in": database}
    out.print(output.facts(rows))
    if environment.backend == "sim":
        out.print(f"\n{output.COST_MODEL_NOTE}", style="dim")


def _print_tuned(out: Console, tuned: TunedConfig) -> None:
    backend = tuned.environment.backend
    out.print(str(tuned.workload), style="bold")
    is_default = tuned.measurement.config == tuned.default.config
    rows = {"default": output.cost_text(tuned.default_cost, backend)}
    if is_default:
        rows["tuned"] = "the default: nothing better was found yet"
    else:
        faster = output.speedup_text(tuned.speedup)
        rows["tuned"] = f"{output.cost_text(tuned.cost, backend)}, {faster} as fast as the default"
    rows["verified"] = verified_text(tuned)
    out.print(output.facts(rows))
    if not is_default:
        out.print()
        out.print(output.difference_table(tuned.default.config, tuned.measurement.config))


def verified_text(tuned: TunedConfig) -> str:
    """Whether a tuned configuration's numbers are right, and how far they are off."""
    verdict = tuned.verification
    diff = "unknown" if verdict.max_abs_diff is None else f"{verdict.max_abs_diff:g}"
    return f"{'yes' if verdict.passed else 'no'}, max abs diff {diff} from the golden"


def _print_overview(out: Console, tuned: Sequence[TunedConfig]) -> None:
    table = output.plain_table("shape", "default", "tuned", "speed-up", "verified", "config")
    for one in tuned:
        backend = one.environment.backend
        table.add_row(
            shape_options(one.workload),
            output.cost_text(one.default_cost, backend).split(" ")[0],
            output.cost_text(one.cost, backend).split(" ")[0],
            output.speedup_text(one.speedup),
            "yes" if one.verification.passed else "no",
            "the default" if one.measurement.config == one.default.config else one.measurement.config.digest,
        )
    out.print(f"{len(tuned)} shapes, in {output.UNIT_NAMES[tuned[0].environment.backend]}", style="bold")
    out.print(output.indented(table))
    out.print("  `pfatune config` with a shape's options shows it field by field", style="dim")


def _trials_text(progress: Progress) -> str:
    text = f"{progress.trials} measured"
    if progress.known:
        text += f" ({'all' if progress.known == progress.trials else progress.known} by earlier runs)"
    if progress.trials:
        text += f": {kinds_text(progress.kinds)}; {_ok_share(progress.kinds):.0%} ended ok"
    return text


def _ok_share(kinds: dict[Kind, int]) -> float:
    total = sum(kinds.values())
    return sum(count for kind, count in kinds.items() if kind == "ok") / total if total else 0.0


def print_result_json(
    results: Sequence[TuneResult],
    wanted: Sequence[Workload],
    environment: Environment,
    database: str,
    more: Mapping[str, Any],
) -> None:
    """The final document of ``--json``, for all families of the command, with what else it is to hold."""
    kinds: dict[Kind, int] = {}
    for result in results:
        for kind, count in result.progress.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    found = {tuned.workload: tuned for result in results for tuned in result.tuned}
    output.print_json(
        {
            "event": "result",
            "soc": environment.soc,
            "backend": environment.backend,
            "unit": environment.unit,
            "environment": {**environment.to_json(), "digest": environment.digest},
            "database": database,
            "interrupted": any(result.progress.interrupted for result in results),
            "trials": {
                "total": sum(result.progress.trials for result in results),
                "known": sum(result.progress.known for result in results),
                "kinds": {str(kind): count for kind, count in kinds.items() if count},
                "ok_share": round(_ok_share(kinds), 4),
            },
            "note": output.COST_MODEL_NOTE if environment.backend == "sim" else "",
            "results": [_shape_document(workload, found.get(workload)) for workload in wanted],
            **more,
        }
    )


def _shape_document(workload: Workload, tuned: TunedConfig | None) -> dict[str, Any]:
    seq = workload.actual_seq
    document: dict[str, Any] = {
        "shape": workload.shape.to_json(),
        "actual_seq": None if seq is None else list(seq),
        "tuned": tuned is not None,
    }
    if tuned is None:
        names = "config config_digest cost default_config default_cost speedup verified max_abs_diff"
        return {**document, **dict.fromkeys(names.split())}
    return {
        **document,
        "config": tuned.measurement.config.to_json(),
        "config_digest": tuned.measurement.config.digest,
        "cost": tuned.cost,
        "default_config": tuned.default.config.to_json(),
        "default_cost": tuned.default_cost,
        "speedup": tuned.speedup,
        "verified": tuned.verification.passed,
        "max_abs_diff": tuned.verification.max_abs_diff,
    }
