"""Traffic on the command line: its options, and how it and its report are told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...autotune.traffic import DEFAULT_MAX_BATCH, DEFAULT_STEP_MS
from ...kernel.shapes import MAX_BATCH, PfaShape
from ..errors import InputError
from . import options, output

if TYPE_CHECKING:
    from rich.console import Console

    from ...autotune.traffic import Load, Traffic
    from ...autotune.traffic_report import Row, TrafficReport
    from ...db.records import Environment

DEFAULT_COVER = 0.95
_MAX_STEP_MS = 60_000
_LISTED = 20  # buckets

PANEL = "Traffic: a trace of requests instead of a shape"
_WITH_TRACE = "With --trace: "


def _option(name: str, parser: Any, metavar: str, text: str) -> Any:
    return typer.Option(name, parser=parser, metavar=metavar, help=text, rich_help_panel=PANEL, show_default=False)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InputError(f"--cover is {text!r}: give a share of the decode steps above 0, up to 1")
    return value


TraceFile = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="Requests to be served: a CSV with TIMESTAMP, ContextTokens and GeneratedTokens (Azure), "
        "or JSON lines with timestamp, input_length and output_length (Mooncake).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
MaxBatch = Annotated[
    int | None,
    _option(
        "--max-batch",
        options.whole("--max-batch", 1, MAX_BATCH),
        "N",
        f"{_WITH_TRACE}requests that decode at once, at most. Default {DEFAULT_MAX_BATCH}.",
    ),
]
StepMs = Annotated[
    float | None,
    _option(
        "--step-ms",
        options.number("--step-ms", _MAX_STEP_MS, "milliseconds"),
        "MS",
        f"{_WITH_TRACE}milliseconds that a decode step takes. Default {DEFAULT_STEP_MS:g}.",
    ),
]
Top = Annotated[
    int | None,
    _option(
        "--top",
        options.whole("--top", 1, 10_000),
        "N",
        f"{_WITH_TRACE}only the N buckets of most decode steps.",
    ),
]
Cover = Annotated[
    float | None,
    _option(
        "--cover",
        _share,
        "SHARE",
        f"{_WITH_TRACE}only the heaviest buckets that have this share of all decode steps together. "
        f"`pfatune tune` takes {DEFAULT_COVER} if neither this nor --top is given.",
    ),
]


def load(trace: str, static: dict[str, int | None], max_batch: int | None, step_ms: float | None) -> Traffic:
    """The traffic of a trace's file.

    Raises:
        InputError: the file is no trace, or asks nothing of the kernel.
        ShapeError: the heads are none that the kernel serves.
    """
    from ...autotune.traffic import Batching, traffic_of
    from ...autotune.traffic_files import TrafficError, read

    given = {name: value for name, value in static.items() if value is not None}
    family = PfaShape(1, 1, **given).family
    step_ns = round((step_ms or DEFAULT_STEP_MS) * 1e6)
    if not step_ns:
        raise InputError(f"--step-ms is {step_ms}: give at least 0.000001")
    try:
        requests = read(Path(trace))
        return traffic_of(requests, family, Batching(max_batch or DEFAULT_MAX_BATCH, step_ns))
    except TrafficError as error:
        raise InputError(f"--trace {error}") from None
    except ValueError as error:
        raise InputError(f"--trace {trace}: {error}") from None


def heaviest(traffic: Traffic, top: int | None, cover: float | None) -> tuple[Load, ...]:
    """The buckets to tune, the heaviest first: those of ``DEFAULT_COVER`` of the steps unless told otherwise."""
    return traffic.heaviest(top, DEFAULT_COVER if top is None and cover is None else cover)


def print_traffic(out: Console, traffic: Traffic, loads: tuple[Load, ...] | None, name: str) -> None:
    """The buckets by weight; ``loads`` None: the first of all."""
    from ...autotune.traffic_picture import per_cent

    shown = traffic.loads[:_LISTED] if loads is None else loads
    out.print(f"{name}: {traffic.requests:,} requests on {_family_text(traffic)}", style="bold")
    model = f"at most {traffic.batching.max_batch} at once, {traffic.batching.step_ns / 1e6:g} ms a step"
    rows = {
        "model": f"continuous batching, {model}; prefill takes no time",
        "decode steps": f"{traffic.steps:,}, with {traffic.mean_b:.1f} requests in the mean",
    }
    if traffic.full_steps:
        rows["full"] = f"{per_cent(traffic.full_steps / traffic.steps)} of the steps, where others may have waited"
    if traffic.cut_requests:
        rows["cut"] = (
            f"{traffic.cut_requests:,} requests that are longer than the kernel's largest s2: "
            f"{traffic.cut_tokens:,} tokens of theirs are not counted"
        )
    if traffic.unstepped:
        rows["without steps"] = f"{traffic.unstepped:,} requests that generate no second token"
    out.print(output.facts(rows))
    out.print()
    table = output.plain_table("b", "s2", "steps", "share", "together", "mean b", "mean s2", "mean tokens of a request")
    for column in table.columns:
        column.justify = "right"
    steps = 0
    for load in shown:
        steps += load.steps
        table.add_row(
            str(load.shape.b),
            f"{load.shape.s2:,}",
            f"{load.steps:,}",
            per_cent(load.weight),
            per_cent(steps / traffic.steps),
            f"{load.mean_b:.1f}",
            f"{load.mean_s2:,.0f}",
            f"{load.mean_length:,.0f}",
        )
    out.print(output.indented(table))
    if len(shown) < len(traffic.loads):
        left = len(traffic.loads) - len(shown)
        out.print(f"  and {left} more with {per_cent(1 - steps / traffic.steps)} of the steps", style="dim")


def document(traffic: Traffic, loads: tuple[Load, ...] | None, trace: str) -> dict[str, Any]:
    """The traffic for programs."""
    return {
        "trace": trace,
        "family": traffic.family.to_json(),
        "max_batch": traffic.batching.max_batch,
        "step_ms": traffic.batching.step_ns / 1e6,
        "requests": traffic.requests,
        "steps": traffic.steps,
        "tokens": traffic.tokens,
        "mean_b": traffic.mean_b,
        "full_steps": traffic.full_steps,
        "cut_requests": traffic.cut_requests,
        "cut_tokens": traffic.cut_tokens,
        "unstepped_requests": traffic.unstepped,
        "total_buckets": len(traffic.loads),
        "buckets": [
            {
                "b": load.shape.b,
                "s2": load.shape.s2,
                "steps": load.steps,
                "weight": load.weight,
                "mean_b": load.mean_b,
                "mean_s2": load.mean_s2,
                "mean_length": load.mean_length,
            }
            for load in (traffic.loads if loads is None else loads)
        ],
    }


def print_report(out: Console, found: TrafficReport, environment: Environment) -> None:
    """The expected cost of a decode step, and the buckets it comes from."""
    from ...autotune.traffic_picture import per_cent

    covered = [row for row in found.rows if row.is_covered]
    unit = output.UNIT_NAMES[environment.backend]
    out.print(f"Expected cost of a decode step of the traffic, in {unit}", style="bold")
    if found.default is None or found.tuned is None:
        out.print("  unknown: of no bucket are both the default and what is tuned for it measured")
        return
    rows = {
        "covered": f"{len(covered)} of {len(found.rows)} buckets, {per_cent(found.coverage)} of the decode steps; "
        "nothing is assumed of the others",
        "default": _number(found.default, environment),
        "tuned": _expected_text(found.default, found.tuned, found.tuned_configs, environment),
    }
    if found.portfolio is not None and found.chosen is not None:
        text = _expected_text(found.default, found.portfolio, len(found.chosen.configs), environment)
        rows["portfolio"] = f"{text}; at most {(found.chosen.worst or 0):.1%} over the fastest anywhere"
    out.print(output.facts(rows))
    out.print()
    table = output.plain_table("b", "s2", "share", "default", "tuned", "speed-up", "portfolio", "speed-up", "served")
    for column in table.columns[:-1]:
        column.justify = "right"
    for row in covered[:_LISTED]:
        table.add_row(*_row(row, environment))
    out.print(output.indented(table))
    if len(covered) > _LISTED:
        out.print(f"  and {len(covered) - _LISTED} more; --json has all", style="dim")
    out.print(
        "  every bucket is measured at its own b and s2, each request full, the most that its steps ask", style="dim"
    )


def report_document(found: TrafficReport, environment: Environment) -> dict[str, Any]:
    """The report for programs; ratios are the default's expected cost over the other."""
    default, chosen = found.default, found.chosen
    return {
        "environment": {**environment.to_json(), "digest": environment.digest},
        "unit": environment.unit,
        "coverage": found.coverage,
        "expected_cost": {"default": default, "tuned": found.tuned, "portfolio": found.portfolio},
        "speedup": {
            "tuned": default / found.tuned if default and found.tuned else None,
            "portfolio": default / found.portfolio if default and found.portfolio else None,
        },
        "tuned_configs": found.tuned_configs,
        "portfolio_configs": [config.to_json() for config in chosen.configs] if chosen else [],
        "portfolio_regret": chosen.worst if chosen else None,
        "buckets": [
            {
                "b": row.load.shape.b,
                "s2": row.load.shape.s2,
                "weight": row.load.weight,
                "covered": row.is_covered,
                "default_cost": row.default,
                "tuned_cost": row.tuned,
                "portfolio_cost": row.portfolio,
                "config_digest": row.config.digest,
                "provenance": row.provenance,
                "portfolio_digest": row.portfolio_config.digest if row.portfolio_config else None,
            }
            for row in found.rows
        ],
    }


def _row(row: Row, environment: Environment) -> list[str]:
    from ...autotune.traffic_picture import per_cent

    assert row.default is not None
    assert row.tuned is not None
    portfolio, faster = "", ""
    if row.portfolio is not None:
        portfolio, faster = _number(row.portfolio, environment), output.speedup_text(row.default / row.portfolio)
    return [
        str(row.load.shape.b),
        f"{row.load.shape.s2:,}",
        per_cent(row.load.weight),
        _number(row.default, environment),
        _number(row.tuned, environment),
        output.speedup_text(row.default / row.tuned),
        portfolio,
        faster,
        f"{row.config.digest} ({row.provenance})",
    ]


def _expected_text(default: float, cost: float, configs: int, environment: Environment) -> str:
    kernels = f"{configs} configuration{'s' if configs != 1 else ''}"
    faster = output.speedup_text(default / cost)
    return f"{_number(cost, environment)}, {faster} as fast as the default, with {kernels}"


def _number(cost: float, environment: Environment) -> str:
    return output.cost_text(cost, environment.backend).split(" ")[0]


def _family_text(traffic: Traffic) -> str:
    family = traffic.family
    return f"nq={family.nq} nkv={family.nkv} qd={family.qd} block_size={family.block_size}"
