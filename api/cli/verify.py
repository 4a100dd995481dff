"""``pfatune verify``: whether a configuration's numbers are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernel.config import KernelConfig, canonical
from ...kernel.legality import Violation, violations
from ...kernel.shapes import Workload
from ...kernel.soc import Soc
from . import lookup, options, output
from .embedded import check, run_job, worker

if TYPE_CHECKING:
    from ...autotune.trial import TrialResult
    from ...db.records import Environment, Verification

#: The tolerances of the golden, which cannot be imported without torch: relative and absolute.
TOLERANCE = (1 / 128, 1e-4)

EXAMPLES = """
[bold]Examples[/]

  pfatune verify --b 16 --s2 8192
    the configuration that is served for the shape

  pfatune verify --b 16 --s2 8192 --default
    the kernel's own configuration

  pfatune verify --b 16 --s2 8192 --config mine.json
    a configuration of one's own, as JSON; - reads standard input

[bold]JSON[/]

  shape, actual_seq, soc, config, config_digest, passed, max_abs_diff, rtol,
  atol, checked_on (shape and actual_seq of the problem), message, seconds,
  stored.

[bold]Exit codes[/]

  0 the numbers agree
  1 they do not, or it could not be checked
  2 bad input
"""


def verify(
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
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            parser=options.whole("--seed", 0, 2**32 - 1),
            metavar="N",
            help="Seed of the random inputs. Default 0.",
            rich_help_panel=options.TRIALS_PANEL,
            show_default=False,
        ),
    ] = 0,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            parser=options.number("--timeout", 86400, "seconds"),
            metavar="SECONDS",
            help="Longest that the check may take. Default 600.",
            rich_help_panel=options.TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    memory_gib: options.MemoryGib = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Check a configuration's numbers on PyPTO's interpreter against the golden.

    The kernel's graph is interpreted on a small problem that exercises the
    configuration's tiles, before and after the compiler expands them. The
    verdict is kept in the database if there is one; none is made.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload, chip, settings = options.request(case, b, s2, static, actual_seq, db, soc_name)
    family = workload.shape.family
    target = settings.db
    store = lookup.open_if_there(target)
    try:
        chosen = lookup.choose(store, workload, chip, file=config_file, digest=digest, default=use_default)
    finally:
        if store is not None:
            store.close()
    broken = violations(chosen.config, family, chip)
    if broken:
        _tell_illegal(workload, chip, chosen.config, broken, as_json)
        return 1
    config = canonical(chosen.config, family)

    from ...autotune.errors import WorkerSetupError
    from ...autotune.sim import VERIFY_TIMEOUT
    from ...db.records import Kind

    out = None if as_json else output.console()
    check(chip, settings.cache_folder)
    limit = timeout or VERIFY_TIMEOUT
    memory = memory_gib or settings.trial_memory_gib
    with worker(chip, settings.cache_folder, timeout=limit, memory_gib=memory, console=out) as (backend, pool):
        result = run_job(pool, backend.verify_job(config, family, seed=seed))
        if result.kind is Kind.ENVIRONMENT_FAULT:
            raise WorkerSetupError(f"the check could not be done ({result.message}): run `pfatune doctor`")
        verdict = backend.verification(config, family, result)
    stored = _keep(target, backend.environment, verdict)
    if as_json:
        output.print_json(_verdict_document(workload, chip, config, verdict, result, stored))
    else:
        _print_verdict(workload, chip, chosen.name, config, verdict, result, stored)
    return 0 if verdict.passed else 1


def _keep(target: str, environment: Environment, verdict: Verification) -> str:
    """Store the verdict if there is a database, and return the database's name."""
    store = lookup.open_if_there(target, read_only=False)
    if store is None:
        return ""
    with store:
        store.add_verification(store.environment_id(environment), verdict)
        return store.database.name


def _tell_illegal(workload: Workload, chip: Soc, config: KernelConfig, broken: list[Violation], as_json: bool) -> None:
    if as_json:
        document = lookup.config_document(workload, chip, config)
        document |= {"passed": False, "max_abs_diff": None, "message": f"illegal: {broken[0].message}"}
        output.print_json(document)
    else:
        out = output.console()
        out.print(f"{workload} on {chip.name}", style="bold")
        out.print("The configuration is illegal, so it cannot be checked:", style="red")
        out.print(output.violation_table(broken))


def _checked_on(result: TrialResult) -> Workload:
    return Workload.from_json(result.job["workload"])


def _verdict_document(
    workload: Workload, chip: Soc, config: KernelConfig, verdict: Verification, result: TrialResult, stored: str
) -> dict[str, Any]:
    checked = _checked_on(result)
    return {
        **lookup.config_document(workload, chip, config),
        "passed": verdict.passed,
        "max_abs_diff": verdict.max_abs_diff,
        "rtol": TOLERANCE[0],
        "atol": TOLERANCE[1],
        "checked_on": {"shape": checked.shape.to_json(), "actual_seq": list(checked.lengths)},
        "message": verdict.message,
        "seconds": round(verdict.seconds, 3),
        "stored": stored or None,
    }


def _print_verdict(
    workload: Workload,
    chip: Soc,
    name: str,
    config: KernelConfig,
    verdict: Verification,
    result: TrialResult,
    stored: str,
) -> None:
    out = output.console()
    out.print(f"{workload} on {chip.name}", style="bold")
    out.print("passed" if verdict.passed else "FAILED", style="bold green" if verdict.passed else "bold red")
    diff = verdict.max_abs_diff
    checked = _checked_on(result)
    rows = {
        "configuration": f"{config.digest} ({name})",
        "max abs diff": "no output to compare" if diff is None else f"{diff:g} from the golden",
        "tolerance": f"{TOLERANCE[0]:g} relative, {TOLERANCE[1]:g} absolute",
        "checked on": f"{checked.shape}, KV lengths {' and '.join(map(str, checked.lengths))}, on the interpreter",
        "took": output.duration(verdict.seconds),
        "stored in": stored or "nothing: there is no database yet",
    }
    if verdict.message:
        rows["message"] = verdict.message
    out.print(output.facts(rows))
