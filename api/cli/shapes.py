"""``pfatune shapes``: what a trace of requests asks of the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernel.shapes import PfaFamily
from ...kernel.soc import Soc, soc
from ...kernel.source import kernel_digest
from ..errors import InputError
from . import options, output, traffic

if TYPE_CHECKING:
    from ...autotune.traffic import Traffic
    from ...autotune.traffic_report import TrafficReport
    from ...db.records import Environment
    from ...db.store import Store

EXAMPLES = """
[bold]Examples[/]

  pfatune shapes --trace AzureLLMInferenceTrace_conv.csv
    the buckets in which most decode steps fall

  pfatune shapes --trace mooncake_trace.jsonl --max-batch 128 --step-ms 45
    under another batching model

  pfatune shapes --trace requests.csv --plot traffic.png
    a picture as well: the share of every b and s2

  pfatune shapes --trace requests.csv --report
    what a decode step is expected to cost, by what is measured already;
    `pfatune tune --trace` with the same file measures what is missing

[bold]JSON[/]

  trace, family, max_batch, step_ms, requests, steps, tokens, mean_b,
  full_steps, cut_requests, cut_tokens, unstepped_requests, total_buckets,
  and buckets: b, s2, steps, weight, mean_b, mean_s2, mean_length.
  With --report also report, null if nothing of the family is tuned:
  environment, unit, coverage, expected_cost and speedup (default, tuned,
  portfolio), tuned_configs (their number), portfolio_configs,
  portfolio_regret, and buckets: b, s2, weight, covered, default_cost,
  tuned_cost, portfolio_cost, config_digest, provenance, portfolio_digest.
"""

Plot = Annotated[
    str | None,
    typer.Option(
        "--plot", metavar="FILE.png", help="Also draw the weights, b by s2, into this file.", show_default=False
    ),
]
Report = Annotated[
    bool,
    typer.Option("--report", help="Also tell the expected cost of default, tuned and portfolio, as measured so far."),
]


def shapes(
    trace: traffic.TraceFile = None,
    max_batch: traffic.MaxBatch = None,
    step_ms: traffic.StepMs = None,
    top: traffic.Top = None,
    cover: traffic.Cover = None,
    nq: options.Nq = None,
    nkv: options.Nkv = None,
    qd: options.Qd = None,
    block_size: options.BlockSize = None,
    plot: Plot = None,
    report: Report = False,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Turn a trace of requests into the shapes of its decode steps, by weight.

    Requests are batched continuously: each step yields a token for every
    request that runs, takes --step-ms, and new requests join at the start of
    a step while fewer than --max-batch run. Prefill takes no time. A step's b
    is the requests that run, its s2 the tokens of the longest; both are
    rounded up to a bucket. Nothing is written but the picture.
    """
    if trace is None:
        raise InputError("--trace is missing: give the file of a trace of requests")
    picture = picture_file(plot)
    if not report:
        for name, value in (("--db", db), ("--soc", soc_name)):
            if value is not None:
                raise InputError(f"{name} is for --report, which alone reads a database: add --report, or leave it out")
    from ..settings import load_settings

    settings = load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)
    found = traffic.load(trace, {"nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}, max_batch, step_ms)
    loads = found.heaviest(top, cover) if top or cover else None
    measured = _measured(settings.db, found, chip) if report else None
    if picture is not None:
        _draw(found, picture, Path(trace).name)
    if as_json:
        document = traffic.document(found, loads, trace)
        if report:
            document["report"] = measured and traffic.report_document(*measured)
        output.print_json(document)
        return 0
    out = output.console()
    traffic.print_traffic(out, found, loads, Path(trace).name)
    if measured is not None:
        out.print()
        traffic.print_report(out, *measured)
        out.print(f"\n{output.COST_MODEL_NOTE}", style="dim")
    elif report:
        out.print(f"\nnothing of this family is tuned for {chip.name}: `pfatune tune --trace` with this file tunes it")
    if picture is not None:
        out.print(f"\npicture: {picture}")
    return 0


def picture_file(plot: str | None) -> Path | None:
    """The picture's file, after checking that it can be made."""
    if plot is None:
        return None
    path = Path(plot)
    if path.suffix != ".png":
        raise InputError(f"--plot is {plot!r}: give a file that ends in .png")
    if not path.parent.is_dir():
        raise InputError(f"--plot is {plot!r}, but {path.parent} is no folder: create it first, or give another file")
    return path


def _draw(found: Traffic, path: Path, name: str) -> None:
    from ...autotune.traffic_picture import draw

    try:
        draw(found, path, title=f"Decode steps of {name}")
    except OSError as error:
        raise InputError(f"--plot {str(path)!r} cannot be written: {error.strerror}; give another file") from None


def _measured(target: str, found: Traffic, chip: Soc) -> tuple[TrafficReport, Environment] | None:
    from ...autotune.traffic_report import evidence_of, report
    from ...db.store import Store

    with Store.open(target, read_only=True) as store:
        for env_id, environment in store.served_environments():
            is_current = (environment.soc, environment.kernel_digest) == (chip.name, kernel_digest())
            if is_current and _serves(store, env_id, found.family):
                return report(found, evidence_of(store, env_id, found)), environment
    return None


def _serves(store: Store, env_id: int, family: PfaFamily) -> bool:
    return any(shape.family == family for shape, _ in store.served(env_id)[1])
