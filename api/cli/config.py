"""``pfatune config``: what a shape is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...kernel.legality import violations
from ...kernel.shapes import Workload
from ...kernel.soc import Soc
from . import lookup, options, output

if TYPE_CHECKING:
    from ...db.records import TunedConfig

EXAMPLES = """
[bold]Examples[/]

  pfatune config --b 16 --s2 8192
    what is served for the shape, and how good it is

  pfatune config --case pfa_fp8_b2_s1_1_s2_1k --json > config.json
    the same for programs; verify, explain and trace read it with --config

[bold]Provenance[/]

  exact: tuned for this very shape
  bucket: tuned for the shape that stands for those of its size
  nearest: tuned for a shape close by, at most a factor of four away
  portfolio: the family's common one, as `pfatune portfolio` chose it
  default: never tuned, the kernel's own configuration

[bold]JSON[/]

  shape, actual_seq, soc, provenance, note, config, config_digest, and, null
  where provenance is portfolio or default: measured_shape, which all that
  follows is of, unit, cost, default_cost, speedup, verified, max_abs_diff,
  measured_at, environment.
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

    Every legal shape gets an answer: the configuration tuned for it or for a
    shape like it, or the kernel's own default. Nothing is written.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload, chip, settings = options.request(case, b, s2, static, actual_seq, db, soc_name)
    store = lookup.open_if_there(settings.db)
    if store is None:
        found = lookup.served(None, workload, chip)
    else:
        with store:
            found = lookup.served(store, workload, chip)
    note = found.note
    broken = violations(found.config, workload.shape.family, chip)
    if broken and found.provenance == "default":
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
        "measured_shape": tuned and tuned.workload.shape.to_json(),
        "unit": tuned and tuned.environment.unit,
        "cost": tuned and tuned.cost,
        "default_cost": tuned and tuned.default_cost,
        "speedup": tuned and tuned.speedup,
        "verified": tuned and tuned.verification.passed,
        "max_abs_diff": tuned and tuned.verification.max_abs_diff,
        "measured_at": tuned and tuned.measurement.created_at and tuned.measurement.created_at.isoformat(),
        "environment": tuned and lookup.environment_document(tuned.environment),
    }


def _print_served(workload: Workload, chip: Soc, found: lookup.Served, note: str) -> None:
    out = output.console()
    out.print(f"{workload} on {chip.name}", style="bold")
    if found.tuned is None:
        out.print(output.facts({"provenance": found.provenance, "digest": found.config.digest}))
    else:
        out.print(output.facts(_evidence(found.provenance, found.tuned)))
    out.print()
    out.print(output.config_table(found.config))
    if note:
        out.print(f"\n{note[0].upper()}{note[1:]}.", style="yellow")
    if found.tuned is not None and found.tuned.environment.backend == "sim":
        out.print(f"\n{output.COST_MODEL_NOTE}", style="dim")


def _evidence(provenance: str, tuned: TunedConfig) -> dict[str, str]:
    from .summary import verified_text

    environment = tuned.environment
    backend = environment.backend
    speedup = output.speedup_text(tuned.speedup)
    when = tuned.measurement.created_at
    return {
        "provenance": provenance if provenance == "exact" else f"{provenance}, tuned for {tuned.workload}",
        "digest": tuned.measurement.config.digest,
        "cost": f"{output.cost_text(tuned.cost, backend)}, {speedup} as fast as the default",
        "default": output.cost_text(tuned.default_cost, backend),
        "verified": verified_text(tuned),
        "measured": f"{when:%Y-%m-%d %H:%M} UTC" if when else "unknown",
        "environment": lookup.environment_text(environment),
    }
