"""The tuning loop: propose, measure, verify, keep the best; nothing finished is ever lost.

Measurements are stored as they come. Whatever is served later is derived from them: a run that
was stopped, however, goes on where it was, without measuring anything twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..db.records import Kind, Measurement, TunedConfig, Verification
from ..db.store import Store
from ..kernel.config import KernelConfig, canonical, default_config
from ..kernel.legality import violations
from ..kernel.shapes import Workload
from .backend import Backend
from .errors import DefaultFailedError, WorkerSetupError
from .progress import Budget, Progress, TuneResult, Watch
from .search import Search, starting_points
from .space import space_for
from .trial import TrialPool, TrialResult

_FAULT_RETRIES = 2  # of a trial that ended in an environment fault
_MAX_FAULTS = 5  # trials in a row, each tried again, after which it is the machine
_TICK = 0.5  # seconds between looks at the clock


class Tuner:
    """Tunes workloads of one family together: every configuration is compiled once and timed on all.

    Args:
        store: where measurements go and come from.
        backend: the worker that measures.
        pool: its trials.
        workloads: shapes of one family; the objective is the mean of log cost over the default's.
        budget: when to stop.
        parallel: trials at once, from 1.
        seed: of the search.
        watch: called after every change.
        study: a free name kept with the measurements of this run.

    Raises:
        ValueError: no workload, workloads of several families, or ``parallel`` below 1.
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
        watch: Watch = lambda progress: None,
        study: str = "",
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}: give at least 1")
        self._store = store
        self._backend = backend
        self._pool = pool
        self._workloads = tuple(dict.fromkeys(workloads))
        space = space_for(self._workloads, backend.soc, backend=backend.name)
        self._family = space.family
        self._parallel = parallel
        self._watch = watch
        self._study = study
        self._started = time.monotonic()
        self._env = store.environment_id(backend.environment)
        self.progress = Progress(self._workloads, backend.environment.unit, budget)
        self._defaults = {w: canonical(default_config(w.shape), self._family) for w in self._workloads}
        starts = [*dict.fromkeys(self._defaults.values())]
        starts += starting_points(space, default_config(self._workloads[0].shape))
        self._search = Search(space, starts, seed=seed)
        self._rows: dict[KernelConfig, dict[Workload, Measurement]] = {}
        self._verdicts: dict[KernelConfig, Verification] = {}
        self._jobs: dict[int, tuple[str, KernelConfig, tuple[Workload, ...]]] = {}
        self._ended: list[TrialResult] = []
        self._retries: dict[tuple[str, KernelConfig], int] = {}
        self._faults = 0
        self._last_fault = ""
        self._exhausted = False

    def run(self) -> TuneResult:
        """Search until the budget is spent; on Ctrl-C stop at once and keep everything.

        Raises:
            DefaultFailedError: the default configuration of a workload cannot be measured or
                computes wrong numbers, so that no speed-up could be stated.
            WorkerSetupError: trial after trial cannot be run, whatever the configuration.
        """
        self._recall()
        try:
            self._measure_defaults()
            while True:
                self._launch()
                if not self._jobs:
                    break
                self._collect()
        except KeyboardInterrupt:
            self.progress.interrupted = True
        finally:
            self._stop_running()
        return TuneResult(self._promote_all(), self.progress)

    def _recall(self) -> None:
        """Take in what earlier runs measured in this environment."""
        for workload in self._workloads:
            for row in self._store.measurements(self._env, workload=workload):
                if row.kind is not Kind.ENVIRONMENT_FAULT:
                    self._rows.setdefault(row.config, {})[workload] = row
        for config in list(self._rows):
            self._note_default(config)
            if self._is_complete(config):
                self._count(config)
            self._recall_verdict(config)
        self.progress.known = self.progress.trials
        if self._has_all_defaults():
            self._learn_all()
        self._refresh()

    def _recall_verdict(self, config: KernelConfig) -> None:
        """Take in what is known of a configuration's numbers, whichever workload it was checked for."""
        if config not in self._verdicts:
            verdict = self._store.verification(self._env, self._family, config.digest)
            if verdict is not None:
                self._apply_verdict(config, verdict)

    def _measure_defaults(self) -> None:
        """The default of every workload first, timed on all: every speed-up is against it."""
        queue = [config for config in dict.fromkeys(self._defaults.values()) if not self._is_complete(config)]
        for config in queue:
            broken = violations(config, self._family, self._backend.soc)
            if broken:
                raise DefaultFailedError(f"the default configuration is illegal here: {broken[0].message}")
        while queue or self._jobs:
            while queue and self._free():
                self._start(queue.pop(0))
            self._collect()
        self._require_defaults()
        self._learn_all()

    def _require_defaults(self) -> None:
        for workload, config in self._defaults.items():
            row = self._rows.get(config, {}).get(workload)
            if row is None or row.cost is None:
                kind, message = (row.kind, row.message) if row else (Kind.ENVIRONMENT_FAULT, self._last_fault)
                raise DefaultFailedError(
                    f"the default configuration of {workload} cannot be measured ({kind}: {_first_line(message)})"
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
        return len(self._jobs) < self._parallel

    def _spent(self) -> bool:
        budget = self.progress.budget
        self.progress.elapsed = time.monotonic() - self._started
        if budget.seconds is not None and self.progress.elapsed >= budget.seconds:
            return True
        in_flight = sum(1 for what, _, _ in self._jobs.values() if what == "time")
        return self._exhausted or (budget.trials is not None and self.progress.trials + in_flight >= budget.trials)

    def _start(self, config: KernelConfig) -> None:
        missing = tuple(w for w in self._workloads if w not in self._rows.get(config, {}))
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
        fastest = [found[0] for w in self._workloads if (found := self._fastest(w, self._can_be_verified))]
        verifying = {config for what, config, _ in self._jobs.values() if what == "verify"}
        for config in (*self._defaults.values(), *fastest):
            if config not in self._verdicts and config not in verifying and self._can_be_verified(config):
                return config
        return None

    def _can_be_verified(self, config: KernelConfig) -> bool:
        return self._retries.get(("verify", config), 0) <= _FAULT_RETRIES

    def _collect(self) -> None:
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
        else:
            self._take_verdict(config, result)

    def _retry(self, result: TrialResult) -> bool:
        """An environment fault says nothing of a configuration: try it again, a few times."""
        if result.kind is not Kind.ENVIRONMENT_FAULT or result.message == "cancelled":
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
                    f"{self._faults} trials in a row could not be run ({_first_line(result.message)}): "
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
        self._store_rows(config, self._backend.measurements(config, workloads, result, study=self._study))
        if result.kind is Kind.ENVIRONMENT_FAULT:  # not forgotten: in this run it is not proposed again
            self._last_fault = result.message
            return
        self._count(config)
        self._note_default(config)
        if self._has_all_defaults():
            self._search.learn(config, self._objective(config))
        self._recall_verdict(config)
        self._refresh()

    def _take_verdict(self, config: KernelConfig, result: TrialResult) -> None:
        if result.kind is Kind.ENVIRONMENT_FAULT:
            return
        verdict = self._backend.verification(config, self._family, result)
        self._apply_verdict(config, replace(verdict, id=self._store.add_verification(self._env, verdict)))
        self._refresh()
        if not verdict.passed and config in self._defaults.values():
            self._require_defaults()

    def _apply_verdict(self, config: KernelConfig, verdict: Verification) -> None:
        """Keep a verdict; what was measured of a configuration with wrong numbers is void."""
        self._verdicts[config] = verdict
        timed = [workload for workload, row in self._rows.get(config, {}).items() if row.cost is not None]
        if verdict.passed or not timed:
            return
        message = f"failed its check: {verdict.message}"
        rows = [
            Measurement(workload, config, Kind.WRONG_RESULT, None, message=message, study=self._study)
            for workload in timed
        ]
        if self._is_complete(config):
            self._count(config, -1)
        self._store_rows(config, rows)
        if self._is_complete(config):
            self._count(config)
        self._search.reject(config)

    def _store_rows(self, config: KernelConfig, rows: Sequence[Measurement]) -> None:
        ids = self._store.add(self._env, rows)
        for row, row_id in zip(rows, ids, strict=True):
            if row.kind is not Kind.ENVIRONMENT_FAULT:
                self._rows.setdefault(config, {})[row.workload] = replace(row, id=row_id)

    def _objective(self, config: KernelConfig) -> float | None:
        """Mean log of cost over the default's; None if the configuration failed or was found wrong."""
        rows = self._rows.get(config, {})
        if not self._is_complete(config) or any(row.cost is None for row in rows.values()):
            return None
        logs = [math.log((rows[w].cost or math.inf) / self.progress.default[w]) for w in self._workloads]
        return sum(logs) / len(logs)

    def _is_complete(self, config: KernelConfig) -> bool:
        return len(self._rows.get(config, {})) == len(self._workloads)

    def _has_all_defaults(self) -> bool:
        return len(self.progress.default) == len(self._workloads)

    def _note_default(self, config: KernelConfig) -> None:
        for workload, row in self._rows.get(config, {}).items():
            if self._defaults[workload] == config and row.cost is not None:
                self.progress.default[workload] = row.cost

    def _learn_all(self) -> None:
        for config in self._rows:
            if self._is_complete(config):
                self._search.learn(config, self._objective(config))

    def _count(self, config: KernelConfig, step: int = 1) -> None:
        kinds = [row.kind for row in self._rows[config].values()]
        kind = next((k for k in kinds if k is not Kind.OK), Kind.OK)
        self.progress.trials += step
        self.progress.kinds[kind] = self.progress.kinds.get(kind, 0) + step
        self.progress.last = f"{config.digest} {kind}"

    def _winner(self, workload: Workload) -> tuple[KernelConfig, Measurement] | None:
        """The fastest verified configuration of a workload."""
        return self._fastest(workload, lambda config: config in self._verdicts and self._verdicts[config].passed)

    def _fastest(
        self, workload: Workload, eligible: Callable[[KernelConfig], bool]
    ) -> tuple[KernelConfig, Measurement] | None:
        """The fastest of the eligible configurations of a workload; among equals, the one measured first."""
        candidates = [
            (row.cost, row.id or 0, config, row)
            for config, rows in self._rows.items()
            if (row := rows.get(workload)) is not None and row.cost is not None and eligible(config)
        ]
        if not candidates:
            return None
        _, _, config, row = min(candidates, key=lambda item: item[:2])
        return config, row

    def _refresh(self) -> None:
        self.progress.best = {w: winner[1].cost or math.inf for w in self._workloads if (winner := self._winner(w))}

    def _show(self) -> None:
        self.progress.elapsed = time.monotonic() - self._started
        self.progress.running = len(self._jobs)
        self.progress.verifying = sum(1 for what, _, _ in self._jobs.values() if what == "verify")
        self._watch(self.progress)

    def _stop_running(self) -> None:
        """End what still runs; what finished before that is kept."""
        for trial in self._jobs:
            self._pool.kill(trial)
        while self._ended or (self._jobs and self._pool.running):
            self._ended = self._ended or self._pool.wait(_TICK)
            while self._ended:
                self._take(self._ended.pop(0))

    def _promote_all(self) -> tuple[TunedConfig, ...]:
        tuned = []
        for workload in self._workloads:
            winner = self._winner(workload)
            default = self._rows.get(self._defaults[workload], {}).get(workload)
            if winner is None or default is None or default.id is None or default.cost is None:
                continue
            config, row = winner
            verdict = self._verdicts[config]
            if row.id is not None and verdict.id is not None and (row.cost or math.inf) <= default.cost:
                tuned.append(self._store.promote(self._env, row.id, default.id, verdict.id))
        return tuple(tuned)


def _first_line(message: str) -> str:
    return message.splitlines()[0] if message else "no message"
