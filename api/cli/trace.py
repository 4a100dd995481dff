"""``pfatune trace``: when each core was busy, for Perfetto and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernel.config import KernelConfig, canonical
from ...kernel.legality import violations
from ...kernel.shapes import Workload
from ..errors import InputError
from . import lookup, options, output
from .embedded import check, run_job, worker

if TYPE_CHECKING:
    from ...autotune.sim import SimBackend
    from ...autotune.swimlane import Swimlane
    from ...autotune.trial import TrialPool

EXAMPLES = """
[bold]Examples[/]

  pfatune trace --b 16 --s2 8192 --out lanes
    the default beside the tuned one: lanes.png, and lanes.json, which
    https://ui.perfetto.dev opens

  pfatune trace --b 16 --s2 8192 --config mine.json --out mine
    a configuration of one's own beside the default

[bold]JSON[/]

  shape, actual_seq, soc, unit, perfetto and png (paths), and lanes: name,
  config_digest, cost.
"""


def trace(
    out_prefix: Annotated[
        str,
        typer.Option("--out", metavar="PREFIX", help="Files to write: PREFIX.json and PREFIX.png.", show_default=False),
    ],
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
    timeout: options.Timeout = None,
    memory_gib: options.MemoryGib = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Draw the swim lanes of a configuration beside those of the default.

    Both are compiled and simulated anew: a picture is of this kernel and this
    cost model, not of what was measured before. Nothing is stored.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    workload, chip, settings = options.request(case, b, s2, static, actual_seq, db, soc_name)
    perfetto, png = _outputs(out_prefix)
    store = lookup.open_if_there(settings.db)
    try:
        chosen = lookup.choose(store, workload, chip, file=config_file, digest=digest, default=use_default)
    finally:
        if store is not None:
            store.close()
    broken = violations(chosen.config, workload.shape.family, chip)
    if broken:
        raise InputError(f"the configuration is illegal ({broken[0].message}): `pfatune explain` tells more")
    default = lookup.default_for(workload)
    config = canonical(chosen.config, workload.shape.family)
    named = {"default": default} if config == default else {"default": default, chosen.name.split(",")[0]: config}

    from ...autotune import swimlane, swimlane_picture

    out = output.console()
    check(chip, settings.cache_folder)
    timeout = timeout or settings.trial_timeout
    memory = memory_gib or settings.trial_memory_gib
    console = None if as_json else out
    with worker(chip, settings.cache_folder, timeout=timeout, memory_gib=memory, console=console) as (backend, pool):
        lanes = {name: _lanes(backend, pool, one, workload, name) for name, one in named.items()}
    title = f"Paged flash attention, {workload}"
    try:
        perfetto.write_text(json.dumps(swimlane.to_perfetto(lanes), separators=(",", ":")), encoding="utf-8")
        subtitle = f"{chip.name} in PyPTO's cost model: cycles for ranking, no time on a device"
        swimlane_picture.draw(list(lanes.items()), png, title=title, subtitle=subtitle)
    except OSError as error:
        raise InputError(f"--out {out_prefix!r} cannot be written: {error.strerror}; give another prefix") from None
    if as_json:
        output.print_json(
            {
                **lookup.shape_document(workload, chip),
                "unit": backend.environment.unit,
                "perfetto": str(perfetto),
                "png": str(png),
                "lanes": [
                    {"name": name, "config_digest": named[name].digest, "cost": one.makespan}
                    for name, one in lanes.items()
                ],
            }
        )
        return 0
    out.print(f"{workload} on {chip.name}", style="bold")
    reference = lanes["default"].makespan
    rows = {
        name: f"{output.cost_text(one.makespan)}, {output.speedup_text(reference / one.makespan)}"
        for name, one in lanes.items()
    }
    out.print(output.facts({**rows, "Perfetto": str(perfetto), "picture": str(png)}))
    if len(named) == 1:
        out.print(f"\nOnly the default is drawn: the configuration is {chosen.name}.")
    return 0


def _outputs(prefix: str) -> tuple[Path, Path]:
    """The two files, after checking that they can be made: a trial takes longer than a typing error."""
    base = Path(prefix)
    if not base.name:
        raise InputError(f"--out is {prefix!r}: give a file's name without its ending")
    if not base.parent.is_dir():
        raise InputError(
            f"--out is {prefix!r}, but {base.parent} is no folder: create it first, or give another prefix"
        )
    outputs = base.with_name(f"{base.name}.json"), base.with_name(f"{base.name}.png")
    for path in outputs:
        if path.is_dir():
            raise InputError(f"--out is {prefix!r}, but {path} is a folder: give another prefix")
    return outputs


def _lanes(backend: SimBackend, pool: TrialPool, config: KernelConfig, workload: Workload, name: str) -> Swimlane:
    from ...autotune.errors import WorkerSetupError
    from ...autotune.swimlane import Swimlane

    result = run_job(pool, backend.time_job(config, [workload], trace=True))
    if result.reply is None:
        raise WorkerSetupError(
            f"the {name} configuration {config.digest} cannot be traced ({result.kind}: {result.message})"
        )
    return Swimlane.from_json(result.reply["results"][0]["swimlane"])
