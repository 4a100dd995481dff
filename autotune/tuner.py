"""The tuning loop: propose, measure, verify, keep the best; nothing finished is ever lost.

Measurements are stored as they come. Whatever is served later is derived from them: a run that
was stopped, however, goes on where it was, without measuring anything twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..db.errors import DatabaseFullError, DatabaseLockedError, StoreError
from ..db.records import Kind, Measurement, TunedConfig, Verification
from ..db.store import Store
from ..kernel.config import KernelConfig, canonical, default_config
from ..kernel.legality import violations
from ..kernel.shapes import Workload
from .backend import Backend
from .errors import DefaultFailedError, WorkerSetupError
from .known import Known
from .progress import Budget, Progress, TuneResult, Watch
from .search import Search, starting_points
from .space import space_for
from .strategy import DEFAULT
from .tracing import Traces
from .trial import TrialPool, TrialResult, first_line

_T = TypeVar("_T")

_FAULT_RETRIES = 2  # of a trial that ended in an environment fault
_MAX_FAULTS = 5  # trials in a row, each tried again, after which it is the machine
_TICK = 0.5  # seconds between looks at the clock


class Tuner:
    """Tunes workloads of one family together: every configuration is compiled once and timed on all.

    Args:
        store: where measurements go and come from.
        backend: the worker that measures.
        pool: its trials.
        workloads: shapes of one family; the search aims at the gain of each in log cost, by weight.
        budget: when to stop.
        parallel: trials at once, from 1.
        seed: of the search.
        weights: how much each workload counts in the search; those not named count 1, none given: all alike.
        strategy: of the search, a name of ``strategies.STRATEGIES``.
        watch: called after every change.
        study: a free name kept with the measurements of this run.
        warn: told of what went wrong and does not matter to the result.
        wait_for_store: called where the database is locked or full, and so kept nothing of a write;
            it waits, and says whether to try again.

    Raises:
        ValueError: no workload, workloads of several families, ``parallel`` below 1, a weight that is no
            finite number above 0, or a strategy that there is not.
    """

    def __init__(
        self,
        store: Store,
        backend: Backend,
        pool: TrialPool,
        workloads: Sequence[Workload],
        *,
        budget: Budget,
        parallel: int = 1,
        seed: int = 0,
        weights: Mapping[Workload, float] | None = None,
        strategy: str = DEFAULT,
        watch: Watch = lambda progress: None,
        study: str = "",
        warn: Callable[[str], None] = lambda text: None,
        wait_for_store: Callable[[StoreError], bool] = lambda error: False,
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}: give at least 1")
        self._store = store
        self._backend = backend
        self._pool = pool
        self._workloads = tuple(dict.fromkeys(workloads))
        shares = [(weights or {}).get(workload, 1.0) for workload in self._workloads]
        for share in shares:
            if not (math.isfinite(share) and share > 0):
                raise ValueError(f"a weight is {share!r}: give finite numbers above 0")
        space = space_for(self._workloads, backend.soc, backend=backend.name)
        self._family = space.family
        self._parallel = parallel
        self._watch = watch
        self._study = study
        self._warn = warn
        self._wait_for_store = wait_for_store
        self._traces = Traces(store, warn)
        self._started = time.monotonic()
        self._env = store.environment_id(backend.environment)
        self.progress = Progress(self._workloads, backend.environment.unit, budget)
        self._defaults = {w: canonical(default_config(w.shape), self._family) for w in self._workloads}
        starts = [*dict.fromkeys(self._defaults.values())]
        starts += starting_points(space, default_config(self._workloads[0].shape))
        self._search = Search(space, starts, weights=shares, strategy=strategy, seed=seed)
        self._known = Known(self._workloads)
        self._jobs: dict[int, tuple[str, KernelConfig, tuple[Workload, ...]]] = {}
        self._ended: list[TrialResult] = []
        self._traced: dict[int, tuple[Measurement, ...]] = {}
        self._retries: dict[tuple[str, KernelConfig], int] = {}
        self._faults = 0
        self._last_fault = ""
        self._exhausted = False
        self._draining = False
        self._cancelled = False

    def drain(self) -> None:
        """From any thread: start nothing more, take in what runs, and end with ``drained`` in the progress."""
        self._draining = True

    def cancel(self) -> None:
        """From any thread: stop at once as on Ctrl-C, keeping everything that finished."""
        self._cancelled = True

    def run(self) -> TuneResult:
        """Search until the budget is spent; on Ctrl-C stop at once and keep everything.

        What is served then, and its default, are traced if they never were and the backend can.

        Raises:
            DefaultFailedError: the default configuration of a workload cannot be measured or
                computes wrong numbers, so that no speed-up could be stated.
            WorkerSetupError: trial after trial cannot be run, whatever the configuration.
            StoreError: the database failed; what was stored before stays.
        """
        self._recall()
        try:
            self._measure_defaults()
            while True:
                self._launch()
                if not self._jobs:
                    break
                self._collect()
        except (KeyboardInterrupt, _CancelledError):
            self.progress.interrupted = True
        finally:
            self._stop_running()
        tuned = self._promote_all()
        if self._backend.traces and not self.progress.interrupted:
            self._trace(tuned)
        self.progress.interrupted |= self._cancelled
        self.progress.drained = self._draining and not self.progress.interrupted
        return TuneResult(tuned, self.progress)

    def _recall(self) -> None:
        """Take in what earlier runs measured in this environment."""
        for workload in self._workloads:
            for row in self._store.measurements(self._env, workload=workload):
                if row.kind is not Kind.ENVIRONMENT_FAULT:
                    self._known.add(row)
        for config in self._known.configs:
            self._note_default(config)
            if self._known.is_complete(config):
                self._count(config)
            self._recall_verdict(config)
        self.progress.known = self.progress.trials
        if self._has_all_defaults():
            self._learn_all()
        self._refresh()

    def _recall_verdict(self, config: KernelConfig) -> None:
        """Take in what is known of a configuration's numbers, whichever workload it was checked for."""
        if config not in self._known.verdicts:
            verdict = self._store.verification(self._env, self._family, config.digest)
            if verdict is not None:
                self._apply_verdict(config, verdict)

    def _measure_defaults(self) -> None:
        """The default of every workload first, timed on all: every speed-up is against it."""
        queue = [config for config in dict.fromkeys(self._defaults.values()) if not self._known.is_complete(config)]
        for config in queue:
            broken = violations(config, self._family, self._backend.soc)
            if broken:
                raise DefaultFailedError(f"the default configuration is illegal here: {broken[0].message}")
        while self._jobs or (queue and not self._is_stopping()):
            while queue and self._free():
                self._start(queue.pop(0))
            self._collect()
        if queue:
            return
        self._require_defaults()
        self._learn_all()

    def _require_defaults(self) -> None:
        for workload, config in self._defaults.items():
            row = self._known.row(config, workload)
            if row is None or row.cost is None:
                kind, message = (row.kind, row.message) if row else (Kind.ENVIRONMENT_FAULT, self._last_fault)
                raise DefaultFailedError(
                    f"the default configuration of {workload} cannot be measured ({kind}: {first_line(message)})",
                    by_machine=kind is Kind.ENVIRONMENT_FAULT,
                )

    def _launch(self) -> None:
        """Fill the free places: what would be served next is checked before anything else is measured."""
        while self._free():
            unchecked = self._next_to_verify()
            if unchecked is not None:
                self._verify(unchecked)
                continue
            if self._spent():
                return
            config = self._search.propose()
            if config is None:
                self._exhausted = True
                return
            self._start(config)

    def _free(self) -> bool:
        return len(self._jobs) < self._parallel and not self._is_stopping()

    def _is_stopping(self) -> bool:
        return self._draining or self._cancelled

    def _spent(self) -> bool:
        budget = self.progress.budget
        self.progress.elapsed = time.monotonic() - self._started
        if budget.seconds is not None and self.progress.elapsed >= budget.seconds:
            return True
        in_flight = sum(1 for what, _, _ in self._jobs.values() if what == "time")
        return self._exhausted or (budget.trials is not None and self.progress.trials + in_flight >= budget.trials)

    def _start(self, config: KernelConfig) -> None:
        missing = self._known.missing(config)
        trial = self._pool.submit(self._backend.time_job(config, missing))
        self._jobs[trial] = ("time", config, missing)
        self._show()

    def _verify(self, config: KernelConfig) -> None:
        job = self._backend.verify_job(config, self._family)
        trial = self._pool.submit(job, timeout=self._backend.verify_timeout)
        self._jobs[trial] = ("verify", config, ())
        self._show()

    def _next_to_verify(self) -> KernelConfig | None:
        """A default or the fastest configuration of a workload, if its numbers were not checked yet."""
        fastest = [found[0] for w in self._workloads if (found := self._known.fastest(w, self._can_be_verified))]
        verifying = {config for what, config, _ in self._jobs.values() if what == "verify"}
        for config in (*self._defaults.values(), *fastest):
            if config not in self._known.verdicts and config not in verifying and self._can_be_verified(config):
                return config
        return None

    def _can_be_verified(self, config: KernelConfig) -> bool:
        return self._retries.get(("verify", config), 0) <= _FAULT_RETRIES

    def _collect(self) -> None:
        if self._cancelled:
            raise _CancelledError
        self._ended += self._pool.wait(_TICK)
        while self._ended:
            result = self._ended.pop(0)
            if not self._retry(result):
                self._take(result)
                self._check_machine(result)
        budget = self.progress.budget
        if budget.seconds is not None and time.monotonic() - self._started > budget.seconds:
            self._cancel_timing()
        self._show()

    def _take(self, result: TrialResult) -> None:
        what, config, workloads = self._jobs.pop(result.trial)
        if what == "time":
            self._take_times(config, workloads, result)
        elif what == "verify":
            self._take_verdict(config, result)
        elif result.message != "cancelled":
            self._traces.keep(config, self._traced.pop(result.trial), result)

    def _retry(self, result: TrialResult) -> bool:
        """An environment fault says nothing of a configuration: try it again, a few times."""
        if result.kind is not Kind.ENVIRONMENT_FAULT or result.message == "cancelled" or self._is_stopping():
            return False
        what, config, _ = self._jobs[result.trial]
        retries = self._retries[what, config] = self._retries.get((what, config), 0) + 1
        if retries > _FAULT_RETRIES:
            return False
        del self._jobs[result.trial]
        if what == "time":
            self._start(config)
        else:
            self._verify(config)
        return True

    def _check_machine(self, result: TrialResult) -> None:
        """One configuration may bring a machine down; when all of them do, no other will fare better."""
        if result.kind is not Kind.ENVIRONMENT_FAULT:
            self._faults = 0
        elif result.message != "cancelled":
            self._faults += 1
            if self._faults >= _MAX_FAULTS:
                raise WorkerSetupError(
                    f"{self._faults} trials in a row could not be run ({first_line(result.message)}): "
                    "run `pfatune doctor`"
                )

    def _cancel_timing(self) -> None:
        if self._has_all_defaults():
            for trial, (what, _, _) in self._jobs.items():
                if what == "time":
                    self._pool.kill(trial)

    def _take_times(self, config: KernelConfig, workloads: tuple[Workload, ...], result: TrialResult) -> None:
        if result.message == "cancelled":
            self._search.forget(config)
            return
        self._store_rows(self._backend.measurements(config, workloads, result, study=self._study))
        if result.kind is Kind.ENVIRONMENT_FAULT:  # not forgotten: in this run it is not proposed again
            self._last_fault = result.message
            return
        self._count(config)
        self._note_default(config)
        if self._has_all_defaults():
            self._learn(config)
        self._recall_verdict(config)
        self._refresh()

    def _take_verdict(self, config: KernelConfig, result: TrialResult) -> None:
        if result.kind is Kind.ENVIRONMENT_FAULT:
            return
        verdict = self._backend.verification(config, self._family, result)
        verdict_id = self._persist(lambda: self._store.add_verification(self._env, verdict))
        self._apply_verdict(config, replace(verdict, id=verdict_id))
        self._refresh()
        if not verdict.passed and config in self._defaults.values():
            self._require_defaults()

    def _apply_verdict(self, config: KernelConfig, verdict: Verification) -> None:
        """Keep a verdict; what was measured of a configuration with wrong numbers is void."""
        self._known.verdicts[config] = verdict
        timed = [row.workload for row in self._known.rows(config) if row.cost is not None]
        if verdict.passed or not timed:
            return
        message = f"failed its check: {verdict.message}"
        rows = [
            Measurement(workload, config, Kind.WRONG_RESULT, None, message=message, study=self._study)
            for workload in timed
        ]
        if self._known.is_complete(config):
            self._count(config, -1)
        self._store_rows(rows)
        if self._known.is_complete(config):
            self._count(config)
        self._learn(config)

    def _store_rows(self, rows: Sequence[Measurement]) -> None:
        ids = self._persist(lambda: self._store.add(self._env, rows))
        for row, row_id in zip(rows, ids, strict=True):
            if row.kind is not Kind.ENVIRONMENT_FAULT:
                self._known.add(replace(row, id=row_id))

    def _persist(self, write: Callable[[], _T]) -> _T:
        """Write to the store, again where it surely kept nothing: a repeated row would be worse than a lost one."""
        while True:
            try:
                return write()
            except (DatabaseLockedError, DatabaseFullError) as error:
                if self._cancelled or not self._wait_for_store(error):
                    raise

    def _has_all_defaults(self) -> bool:
        return len(self.progress.default) == len(self._workloads)

    def _note_default(self, config: KernelConfig) -> None:
        for row in self._known.rows(config):
            if self._defaults[row.workload] == config and row.cost is not None:
                self.progress.default[row.workload] = row.cost

    def _learn_all(self) -> None:
        for config in self._known.configs:
            if self._known.is_complete(config):
                self._learn(config)

    def _learn(self, config: KernelConfig) -> None:
        self._search.learn(config, self._known.costs(config), self._known.seconds(config))

    def _count(self, config: KernelConfig, step: int = 1) -> None:
        kind = self._known.kind(config)
        self.progress.trials += step
        self.progress.kinds[kind] = self.progress.kinds.get(kind, 0) + step
        self.progress.last = f"{config.digest} {kind}"

    def _refresh(self) -> None:
        winners = {workload: self._known.winner(workload) for workload in self._workloads}
        self.progress.best = {workload: won[1].cost or math.inf for workload, won in winners.items() if won}

    def _show(self) -> None:
        self._count_running()
        self._watch(self.progress)

    def _count_running(self) -> None:
        self.progress.elapsed = time.monotonic() - self._started
        self.progress.running = len(self._jobs)
        self.progress.verifying = sum(1 for what, _, _ in self._jobs.values() if what == "verify")
        self.progress.tracing = sum(1 for what, _, _ in self._jobs.values() if what == "trace")

    def _stop_running(self) -> None:
        """End what still runs; what finished before that is kept. The pool is free then, whatever happens."""
        failure: Exception | None = None
        for trial in self._jobs:
            self._pool.kill(trial)
        while self._ended or (self._jobs and self._pool.running):
            self._ended = self._ended or self._pool.wait(_TICK)
            while self._ended:
                try:
                    self._take(self._ended.pop(0))
                except (StoreError, DefaultFailedError) as error:
                    failure = failure or error
        self._jobs.clear()  # an interrupt may have cost the results of some
        self._count_running()
        if failure is not None:
            raise failure

    def _promote_all(self) -> tuple[TunedConfig, ...]:
        tuned = []
        for workload in self._workloads:
            winner = self._known.winner(workload)
            default = self._known.row(self._defaults[workload], workload)
            if winner is None or default is None or default.id is None or default.cost is None:
                continue
            config, row = winner
            verdict = self._known.verdicts[config]
            if row.id is not None and verdict.id is not None and (row.cost or math.inf) <= default.cost:
                ids = row.id, default.id, verdict.id
                tuned.append(self._persist(partial(self._store.promote, self._env, *ids)))
        return tuple(tuned)

    def _trace(self, tuned: Sequence[TunedConfig]) -> None:
        """Trace what has no trace yet, unless asked to stop; what cannot be traced is let be."""
        queue = self._traces.missing(tuned) if not self._is_stopping() else []
        try:
            while self._jobs or (queue and not self._is_stopping()):
                while queue and self._free():
                    config, rows = queue.pop(0)
                    workloads = tuple(row.workload for row in rows)
                    trial = self._pool.submit(self._backend.time_job(config, workloads, trace=True))
                    self._jobs[trial] = ("trace", config, workloads)
                    self._traced[trial] = rows
                    self._show()
                self._ended += self._pool.wait(_TICK)
                while self._ended:
                    self._take(self._ended.pop(0))
                self._show()
                if self._is_stopping():
                    break
        except KeyboardInterrupt:
            self.progress.interrupted = True
        except WorkerSetupError as error:
            self._warn(f"no trace is taken: {error}")
        finally:
            self._stop_running()


class _CancelledError(Exception):
    """The run is to stop at once."""
