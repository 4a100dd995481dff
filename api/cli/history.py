"""``pfatune history``: what was measured of a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernel.shapes import Workload
from ...kernel.soc import Soc
from ..errors import InputError
from . import lookup, options, output

if TYPE_CHECKING:
    from ...db.records import Environment, Measurement

DEFAULT_LIMIT = 20
KINDS = (
    "ok",
    "illegal",
    "rejected",
    "does_not_fit",
    "crashed",
    "timeout",
    "out_of_memory",
    "wrong_result",
    "environment_fault",
)

EXAMPLES = """
[bold]Examples[/]

  pfatune history --b 16 --s2 8192
    the newest measurements of the shape first

  pfatune history --b 16 --s2 8192 --kind rejected --kind crashed --limit 100
    what failed; `pfatune explain --digest` with the shape says more of one

  pfatune history --b 16 --s2 8192 --limit 100000 --json | jq .default_cost
    all of it, for programs

[bold]JSON[/]

  shape, actual_seq, soc, environment, unit, default_cost, total, and
  measurements: id, created_at, config_digest, config, kind, cost, speedup,
  seconds, compile_seconds, run_seconds, peak_bytes, message, study.
"""

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help=f"Only this kind: {', '.join(KINDS)}. May be given several times.",
        show_default=False,
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        "--limit",
        parser=options.whole("--limit", 1, 10_000_000),
        metavar="N",
        help=f"At most so many, the newest. Default {DEFAULT_LIMIT}.",
        show_default=False,
    ),
]


def history(
    case: options.Case = None,
    b: options.B = None,
    s2: options.S2 = None,
    s1: options.S1 = None,
    nq: options.Nq = None,
    nkv: options.Nkv = None,
    qd: options.Qd = None,
    block_size: options.BlockSize = None,
    actual_seq: options.ActualSeq = None,
    kind: Kinds = None,
    limit: Limit = DEFAULT_LIMIT,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """List what was measured of a shape, the newest first.

    Measurements of two environments are never compared: those of the
    environment in which the shape was measured last are shown. Nothing is
    written.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload, chip, settings = options.request(case, b, s2, static, actual_seq, db, soc_name)
    for name in kind or []:
        if name not in KINDS:
            raise InputError(f"--kind is {name!r}: use one of {', '.join(KINDS)}")

    from ...db.store import Store

    rows: list[Measurement] = []
    with Store.open(settings.db, read_only=True) as store:
        where = lookup.environment_of(store, workload, chip)
        if where is not None:
            rows = store.measurements(where[0], workload=workload, newest_first=True)
    default = lookup.default_for(workload)
    default_cost = next((row.cost for row in rows if row.config == default and row.cost is not None), None)
    wanted = [row for row in rows if not kind or row.kind in kind]
    environment = where[1] if where else None
    if as_json:
        output.print_json(
            {
                **lookup.shape_document(workload, chip),
                "environment": environment and lookup.environment_document(environment),
                "unit": environment and environment.unit,
                "default_cost": default_cost,
                "total": len(wanted),
                "measurements": [_measurement_document(row, default_cost) for row in wanted[:limit]],
            }
        )
    else:
        _print_history(workload, chip, wanted, limit, environment, default_cost)
    return 0


def _measurement_document(row: Measurement, default_cost: float | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "created_at": row.created_at and row.created_at.isoformat(),
        "config_digest": row.config.digest,
        "config": row.config.to_json(),
        "kind": str(row.kind),
        "cost": row.cost,
        "speedup": default_cost / row.cost if default_cost and row.cost else None,
        "seconds": row.seconds,
        "compile_seconds": row.compile_seconds,
        "run_seconds": row.run_seconds,
        "peak_bytes": row.peak_bytes,
        "message": row.message,
        "study": row.study,
    }


def _print_history(
    workload: Workload,
    chip: Soc,
    rows: list[Measurement],
    limit: int,
    environment: Environment | None,
    default_cost: float | None,
) -> None:
    from rich.text import Text

    out = output.console()
    out.print(f"{workload} on {chip.name}", style="bold")
    if environment is None or not rows:
        what = "no measurement of this kind" if environment else "never measured"
        out.print(f"{what}; `pfatune tune {options.shape_options(workload)}` measures")
        return
    out.print(f"measured in: {lookup.environment_text(environment)}", style="dim")
    table = output.plain_table("when (UTC)", "config", "kind", environment.unit, "speed-up", "s", "MiB", "message")
    for column in table.columns:
        column.no_wrap = True
    for at in (3, 4, 5, 6):
        table.columns[at].justify = "right"
    table.columns[7].no_wrap = False  # so that it, and no other, is cut where there is no room
    for row in rows[:limit]:
        speedup = output.speedup_text(default_cost / row.cost) if default_cost and row.cost else ""
        table.add_row(
            f"{row.created_at:%Y-%m-%d %H:%M}" if row.created_at else "",
            row.config.digest[:8],
            str(row.kind),
            "" if row.cost is None else f"{row.cost:,.{0 if environment.backend == 'sim' else 2}f}",
            speedup,
            f"{row.seconds:.1f}",
            f"{row.peak_bytes / (1 << 20):,.0f}" if row.peak_bytes else "",
            Text(row.message.partition("\n")[0], no_wrap=True, overflow="ellipsis"),
            style="" if row.cost is not None else "yellow",
        )
    out.print(table)
    if any(row.cost is None for row in rows[:limit]):
        out.print("`pfatune explain --digest` with the shape says more of a failure", style="dim")
    if len(rows) > limit:
        out.print(f"{len(rows) - limit} older; --limit {len(rows)} shows all", style="dim")
