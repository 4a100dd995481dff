"""``pfatune tune``: search, prove and store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...kernel.shapes import Workload
from ...kernel.soc import Soc, soc
from ..errors import InputError
from ..log import log
from . import options, traffic
from .embedded import check, worker
from .stop import stop

if TYPE_CHECKING:
    from rich.console import Console

    from ...autotune.progress import TuneResult
    from ...autotune.sim import SimBackend
    from ...autotune.traffic import Traffic
    from ...autotune.trial import TrialPool
    from ...db.store import Store
    from .progress import Report

DEFAULT_TRIALS = 40

EXAMPLES = """
[bold]Examples[/]

  pfatune tune --b 16 --s2 8192
    one shape, 40 configurations; again, to finish a run that was stopped

  pfatune tune --case pfa_fp8_b2_s1_1_s2_1k --trials 100 --parallel 4
    a case of the kernel's own test, longer, four trials at a time

  pfatune tune --b 1,8,16 --s2 2048,8192 --nkv 2 --seconds 3600
    six shapes for an hour: a configuration is compiled once, timed on all

  pfatune tune --b 2 --s2 4096 --actual-seq 4096,300
    requests of unequal length

  pfatune tune --trace AzureLLMInferenceTrace_conv.csv --cover 0.9
    the shapes in which 90 % of a trace's decode steps fall, the heaviest
    first; then the expected cost of a step: default, tuned and portfolio

  pfatune tune --b 16 --s2 8192 --json | tail -1 | jq '.results\\[0].config'
    only the configuration found

[bold]JSON[/]

  With --json every line is a document. Those with event "progress": family,
  shapes (their number), trials, budget_trials, known, running, verifying,
  tracing, kinds, unit, default_cost and best_cost (one for each shape),
  speedup, last, elapsed_seconds, seconds_left.
  The last one has event "result": soc, backend, unit, environment, database,
  interrupted, trials (total, known, kinds, ok_share), note, and results, one
  for each shape: shape, actual_seq, tuned, config, config_digest, cost,
  default_config, default_cost, speedup, verified, max_abs_diff; tuned is
  false, and all after it null, if nothing is known yet. With --trace also
  traffic: what `pfatune shapes --report --json` prints.

[bold]Exit codes[/]

  0 done
  1 could not be done
  2 bad input
  130 stopped by Ctrl-C, 143 by SIGTERM: everything measured is kept
"""

Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        parser=options.whole("--trials", 1, 1_000_000),
        metavar="N",
        help=f"Configurations measured in all, earlier runs included. Default {DEFAULT_TRIALS}; with --seconds none.",
        rich_help_panel=options.SEARCH_PANEL,
        show_default=False,
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        parser=options.number("--seconds", 30 * 86400, "seconds"),
        metavar="SECONDS",
        help="Stop after so long. Default: no limit.",
        rich_help_panel=options.SEARCH_PANEL,
        show_default=False,
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        parser=options.whole("--parallel", 1, 256),
        metavar="N",
        help="Trials at once. Default: PFATUNE_PARALLEL, else the cores less one.",
        rich_help_panel=options.SEARCH_PANEL,
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        parser=options.whole("--seed", 0, 2**32 - 1),
        metavar="N",
        help="Seed of the search. Default 0.",
        rich_help_panel=options.SEARCH_PANEL,
        show_default=False,
    ),
]


def tune(
    case: options.Cases = None,
    b: options.Bs = None,
    s2: options.S2s = None,
    s1: options.S1 = None,
    nq: options.Nq = None,
    nkv: options.Nkv = None,
    qd: options.Qd = None,
    block_size: options.BlockSize = None,
    actual_seq: options.ActualSeq = None,
    trace: traffic.TraceFile = None,
    max_batch: traffic.MaxBatch = None,
    step_ms: traffic.StepMs = None,
    top: traffic.Top = None,
    cover: traffic.Cover = None,
    trials: Trials = None,
    seconds: Seconds = None,
    parallel: Parallel = None,
    seed: Seed = 0,
    timeout: options.Timeout = None,
    memory_gib: options.MemoryGib = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Find the fastest configuration of a shape, check its numbers, and store it.

    The kernel's own configuration is measured first: every speed-up is
    against it. A configuration is stored as tuned only if it is no slower and
    its numbers agree with the golden. Every measurement is kept as it comes:
    a run that was stopped goes on where it was.
    """
    static = {"s1": s1, "nq": nq, "nkv": nkv, "qd": qd, "block_size": block_size}
    asked = None
    if trace is None:
        _refuse_without_trace({"--max-batch": max_batch, "--step-ms": step_ms, "--top": top, "--cover": cover})
        wanted = options.workloads(case or [], b, s2, static, actual_seq)
    else:
        _refuse_with_trace({"--case": case, "--b": b, "--s2": s2, "--s1": s1, "--actual-seq": actual_seq})
        asked = traffic.load(trace, static, max_batch, step_ms)
        wanted = [Workload(load.shape) for load in traffic.heaviest(asked, top, cover)]
    from ..settings import load_settings

    settings = load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)
    if trials is None and seconds is None:
        trials = DEFAULT_TRIALS

    from ...autotune.families import by_family
    from ...db.store import Store
    from ...db.target import Target
    from . import summary
    from .output import console

    Target.parse(settings.db).check(read_only=False)
    out = console()
    quiet = None if as_json else out
    check(chip, settings.cache_folder)
    with (
        Store.open(settings.db) as store,
        worker(
            chip,
            settings.cache_folder,
            timeout=timeout or settings.trial_timeout,
            memory_gib=memory_gib or settings.trial_memory_gib,
            console=quiet,
        ) as (backend, pool),
    ):
        weights = None if asked is None else {Workload(load.shape): load.weight for load in asked.loads}
        run = _Run(store, backend, pool, out, as_json, parallel or settings.parallel, seed, weights)
        results = run.families(by_family(wanted), trials, seconds)
        more = {} if asked is None else {"traffic": run.traffic(asked, trace or "")}
        if as_json:
            summary.print_result_json(results, wanted, backend.environment, store.database.name, more)
    return stop.exit_code if any(result.progress.interrupted for result in results) else 0


def _refuse_without_trace(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for the shapes of a trace: give --trace FILE too, or leave it out")


def _refuse_with_trace(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None and value != []:
            raise InputError(
                f"--trace and {name} are both given: a trace has its own shapes, of one query token; give one of them"
            )


class _Run:
    """One command: families tuned one after another, each shown while it runs and summed up after."""

    def __init__(
        self,
        store: Store,
        backend: SimBackend,
        pool: TrialPool,
        out: Console,
        as_json: bool,
        parallel: int,
        seed: int,
        weights: Mapping[Workload, float] | None,
    ) -> None:
        self._weights = weights
        self._store, self._backend, self._pool, self._out = store, backend, pool, out
        self._as_json, self._parallel, self._seed = as_json, parallel, seed

    def families(
        self, groups: Sequence[Sequence[Workload]], trials: int | None, seconds: float | None
    ) -> list[TuneResult]:
        from ...autotune.families import share_of_seconds
        from . import summary

        started = time.monotonic()
        results = []
        for done, group in enumerate(groups):
            left = share_of_seconds(seconds, time.monotonic() - started, len(groups) - done)
            result = self._family(group, trials, left)
            results.append(result)
            if not self._as_json:
                summary.print_result(self._out, result, self._backend.environment, self._store.database.name)
            if result.progress.interrupted:
                break
        return results

    def traffic(self, asked: Traffic, trace: str) -> dict[str, Any]:
        """What a step of the traffic is expected to cost by now: shown to people, returned for programs."""
        from ...autotune.traffic_report import evidence_of, report

        environment = self._backend.environment
        found = report(asked, evidence_of(self._store, self._store.environment_id(environment), asked))
        if not self._as_json:
            self._out.print()
            traffic.print_report(self._out, found, environment)
        return {**traffic.document(asked, None, trace), "report": traffic.report_document(found, environment)}

    def _family(self, group: Sequence[Workload], trials: int | None, seconds: float | None) -> TuneResult:
        from ...autotune.progress import Budget, Progress
        from ...autotune.tuner import Tuner

        report = self._report()
        pool = self._pool

        def watch(progress: Progress) -> None:
            try:
                report.watch(progress)
            except BrokenPipeError:  # whoever read has gone: end as at Ctrl-C, with everything kept
                stop.request(_broken_pipe())
            if progress.running == pool.running:  # every result that came in is stored
                stop.check()

        report.start(group, self._heading(self._backend.soc, trials, seconds))
        try:
            with stop.deferred():
                tuner = Tuner(
                    self._store,
                    self._backend,
                    pool,
                    group,
                    budget=Budget(trials, seconds),
                    parallel=self._parallel,
                    seed=self._seed,
                    weights=None if self._weights is None else {one: self._weights[one] for one in group},
                    watch=watch,
                    warn=log().warning,
                )
                return tuner.run()
        finally:
            report.stop()

    def _report(self) -> Report:
        from .progress import JsonReport, LineReport, LiveReport, Logged

        if self._as_json:
            return Logged(JsonReport())
        if self._out.is_terminal and not self._out.is_dumb_terminal:
            return Logged(LiveReport(self._out))
        return Logged(LineReport())

    def _heading(self, chip: Soc, trials: int | None, seconds: float | None) -> str:
        from .output import duration

        limits = [f"{trials} trials"] if trials is not None else []
        limits += [duration(seconds)] if seconds is not None else []
        return f"Tuning for {chip.name} on the cost model: up to {' or '.join(limits)}, {self._parallel} at a time"


def _broken_pipe() -> int:
    """Point stdout nowhere, so that nothing fails again, and return the signal's number."""
    import signal
    import sys

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return signal.SIGPIPE
