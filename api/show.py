"""``pfatune config`` and ``pfatune history``: what the database knows. They only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..kernel.legality import violations
from ..kernel.shapes import Workload
from ..kernel.soc import Soc, soc
from . import lookup, options, output
from .errors import InputError

if TYPE_CHECKING:
    from ..db.records import Environment, Measurement, TunedConfig

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

CONFIG_EXAMPLES = """
[bold]Examples[/]

  pfatune config --b 16 --s2 8192
    what is served for the shape, and how good it is

  pfatune config --case pfa_fp8_b2_s1_1_s2_1k --json > config.json
    the same for programs; verify, explain and trace read it with --config

[bold]Provenance[/]

  exact: tuned for this very shape
  default: never tuned, the kernel's own configuration

[bold]JSON[/]

  shape, actual_seq, soc, provenance, note, config, config_digest, and, null
  where provenance is default: unit, cost, default_cost, speedup, verified,
  max_abs_diff, measured_at, environment.
"""

HISTORY_EXAMPLES = """
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


def config(
    case: options.Case = None,
    b: options.B = None,
    s2: options.S2 = None,
    s1: options.S1 = None,
    nq: options.Nq = None,
    nkv: options.Nkv = None,
    qd: options.Qd = None,
    block_size: options.BlockSize = None,
    actual_seq: options.ActualSeq = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Show the configuration that is served for a shape, and where it comes from.

    Every legal shape gets an answer: the tuned configuration, or the kernel's
    own default where the shape was never tuned. Nothing is written.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload = options.one_workload(case, b, s2, static, actual_seq)
    settings = options.load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)
    store = lookup.open_if_there(settings.db)
    if store is None:
        found = lookup.served(None, workload, chip)
    else:
        with store:
            found = lookup.served(store, workload, chip)
    note = found.note
    broken = violations(found.config, workload.shape.family, chip)
    if broken:
        note = f"the default configuration is illegal here ({broken[0].message}); {note}"
    if as_json:
        output.print_json(_served_document(workload, chip, found, note))
    else:
        _print_served(workload, chip, found, note)
    return 0


def _served_document(workload: Workload, chip: Soc, found: lookup.Served, note: str) -> dict[str, Any]:
    tuned = found.tuned
    return {
        **lookup.shape_document(workload, chip),
        "provenance": found.provenance,
        "note": note,
        "config": found.config.to_json(),
        "config_digest": found.config.digest,
        "unit": tuned and tuned.environment.unit,
        "cost": tuned and tuned.cost,
        "default_cost": tuned and tuned.default_cost,
        "speedup": tuned and tuned.speedup,
        "verified": tuned and tuned.verification.passed,
        "max_abs_diff": tuned and tuned.verification.max_abs_diff,
        "measured_at": tuned and tuned.measurement.created_at and tuned.measurement.created_at.isoformat(),
        "environment": tuned and _environment_document(tuned.environment),
    }


def _environment_document(environment: Environment) -> dict[str, str]:
    return {**environment.to_json(), "digest": environment.digest}


def _print_served(workload: Workload, chip: Soc, found: lookup.Served, note: str) -> None:
    out = output.console()
    out.print(f"{workload} on {chip.name}", style="bold")
    if found.tuned is None:
        out.print(output.facts({"provenance": "default", "digest": found.config.digest}))
    else:
        out.print(output.facts(_evidence(found.tuned)))
    out.print()
    out.print(output.config_table(found.config))
    if note:
        out.print(f"\n{note[0].upper()}{note[1:]}.", style="yellow")
    if found.tuned is not None and found.tuned.environment.backend == "sim":
        out.print(f"\n{output.COST_MODEL_NOTE}", style="dim")


def _evidence(tuned: TunedConfig) -> dict[str, str]:
    from .summary import verified_text

    environment = tuned.environment
    backend = environment.backend
    speedup = output.speedup_text(tuned.speedup)
    when = tuned.measurement.created_at
    return {
        "provenance": "exact",
        "digest": tuned.measurement.config.digest,
        "cost": f"{output.cost_text(tuned.cost, backend)}, {speedup} as fast as the default",
        "default": output.cost_text(tuned.default_cost, backend),
        "verified": verified_text(tuned),
        "measured": f"{when:%Y-%m-%d %H:%M} UTC" if when else "unknown",
        "environment": (
            f"{backend}, pypto {environment.pypto}, torch {environment.torch}, "
            f"kernel {environment.kernel_digest[:8]}, model {environment.model_digest[:8]}"
        ),
    }


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
    workload = options.one_workload(case, b, s2, static, actual_seq)
    for name in kind or []:
        if name not in KINDS:
            raise InputError(f"--kind is {name!r}: use one of {', '.join(KINDS)}")
    settings = options.load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)

    from ..db.store import Store

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
                "environment": environment and _environment_document(environment),
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
