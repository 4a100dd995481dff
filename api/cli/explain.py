"""``pfatune explain``: why a configuration is illegal, how it failed, or that it is good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...kernel.config import KernelConfig, canonical
from ...kernel.legality import Violation, violations
from ...kernel.shapes import Workload
from ...kernel.soc import Soc
from . import lookup, options, output

if TYPE_CHECKING:
    from ...db.records import Environment, Measurement, Verification

EXAMPLES = """
[bold]Examples[/]

  pfatune explain --b 16 --s2 8192 --digest 3fa2
    what became of a configuration that `pfatune history` lists

  pfatune explain --b 16 --s2 8192 --config mine.json
    which rules a configuration breaks, one a line, with the remedy

[bold]JSON[/]

  shape, actual_seq, soc, config, config_digest, legal,
  violations: field, value, limit, message
  measurement, null if there is none: kind, cost, unit, message, created_at
  verification, null if there is none: passed, max_abs_diff, message

[bold]Exit codes[/]

  0 explained, whatever the explanation is
  1 could not be
  2 bad input
"""


def explain(
    case: options.Case = None,
    b: options.B = None,
    s2: options.S2 = None,
    s1: options.S1 = None,
    nq: options.Nq = None,
    nkv: options.Nkv = None,
    qd: options.Qd = None,
    block_size: options.BlockSize = None,
    actual_seq: options.ActualSeq = None,
    config_file: options.ConfigFile = None,
    digest: options.Digest = None,
    use_default: options.UseDefault = False,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Say why a configuration is illegal, how it failed, or that it is good.

    Rules in closed form come first, no compiler needed; then what the
    database knows of it: how its measurement ended, what the compiler said,
    and whether its numbers were right. Nothing is written.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload, chip, settings = options.request(case, b, s2, static, actual_seq, db, soc_name)
    family = workload.shape.family
    store = lookup.open_if_there(settings.db)
    row: Measurement | None = None
    environment: Environment | None = None
    verdict: Verification | None = None
    try:
        chosen = lookup.choose(store, workload, chip, file=config_file, digest=digest, default=use_default)
        broken = violations(chosen.config, family, chip)
        config = chosen.config if broken else canonical(chosen.config, family)
        if store is not None and not broken:
            for key, found in lookup.environments(store, chip):
                rows = store.measurements(
                    key, workload=workload, config_digest=config.digest, limit=1, newest_first=True
                )
                verdict = verdict or store.verification(key, family, config.digest)
                if rows:
                    row, environment = rows[0], found
                    verdict = store.verification(key, family, config.digest)
                    break
    finally:
        if store is not None:
            store.close()
    if as_json:
        document = lookup.config_document(workload, chip, config)
        document |= {
            "legal": not broken,
            "violations": [
                {"field": v.field, "value": v.value, "limit": v.limit, "message": v.message} for v in broken
            ],
            "measurement": row
            and environment
            and {
                "kind": str(row.kind),
                "cost": row.cost,
                "unit": environment.unit,
                "message": row.message,
                "created_at": row.created_at and row.created_at.isoformat(),
            },
            "verification": verdict
            and {"passed": verdict.passed, "max_abs_diff": verdict.max_abs_diff, "message": verdict.message},
        }
        output.print_json(document)
    else:
        _print_explanation(workload, chip, chosen.name, config, broken, row, environment, verdict)
    return 0


def _print_explanation(
    workload: Workload,
    chip: Soc,
    name: str,
    config: KernelConfig,
    broken: list[Violation],
    row: Measurement | None,
    environment: Environment | None,
    verdict: Verification | None,
) -> None:
    out = output.console()
    out.print(f"{workload} on {chip.name}, configuration {config.digest} ({name})", style="bold")
    if broken:
        count = len(broken)
        out.print(f"illegal: it breaks {count} rule{'s' if count > 1 else ''}", style="red")
        out.print(output.violation_table(broken))
        return
    rows = {"legal": "yes, it breaks no rule in closed form"}
    if row is None or environment is None:
        rows["measured"] = f"never; `pfatune tune {options.shape_options(workload)}` measures"
    elif row.cost is not None:
        rows["measured"] = f"ok: {output.cost_text(row.cost, environment.backend)}"
    else:
        rows["measured"] = f"{row.kind}: {row.message}"
    if environment is not None:
        rows["measured in"] = lookup.environment_text(environment)
    if verdict is None:
        rows["verified"] = "never"
    elif verdict.passed:
        rows["verified"] = f"yes, max abs diff {verdict.max_abs_diff or 0:g} from the golden"
    else:
        rows["verified"] = f"no: {verdict.message}"
    out.print(output.facts(rows))
