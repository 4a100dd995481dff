"""The tuning loop: propose, measure, verify, keep the best; nothing finished is ever lost.

Measurements are stored as they come. Whatever is served later is derived from them: a run that
was stopped, however, goes on where it was, without measuring anything twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..db.records import Environment, Kind, Measurement, TunedConfig, Verification
from ..db.store import Store
from ..kernel.config import KernelConfig, canonical, default_config
from ..kernel.legality import violations
from ..kernel.shapes import PfaFamily, Workload
from ..kernel.soc import Soc
from .errors import DefaultFailedError
from .search import Search, starting_points
from .space import space_for
from .trial import TrialPool, TrialResult

_FAULT_RETRIES = 2  # of a trial that ended in an environment fault
_TICK = 0.5  # seconds between looks at the clock


class Backend(Protocol):
    """What the loop needs of a worker; ``sim.SimBackend`` is one."""

    name: str
    soc: Soc
    environment: Environment
    verify_timeout: float

    def time_job(
        self, config: KernelConfig, workloads: Sequence[Workload], *, trace: bool = False
    ) -> dict[str, Any]: ...

    def verify_job(self, config: KernelConfig, family: PfaFamily, *, seed: int = 0) -> dict[str, Any]: ...

    def measurements(
        self, config: KernelConfig, workloads: Sequence[Workload], result: TrialResult, *, study: str = ""
    ) -> list[Measurement]: ...

    def verification(self, config: KernelConfig, family: PfaFamily, result: TrialResult) -> Verification: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: after ``trials`` configurations measured in all, or ``seconds`` of this run.

    ``trials`` counts those that earlier runs measured for the same workloads, so that a rerun
    finishes what was begun and a second rerun does nothing.
    """

    trials: int | None = 40
    seconds: float | None = None


@dataclass(slots=True)
class Progress:
    """How far a run is; the same object all along, shown to ``watch`` after every change.

    ``trials`` are configurations measured in all, ``known`` those of earlier runs. ``best`` and
    ``default`` hold the cost of each workload, verified ones only for ``best``.
    """

    workloads: tuple[Workload, ...]
    unit: str
    budget: Budget
    known: int = 0
    trials: int = 0
    running: int = 0
    elapsed: float = 0.0
    kinds: dict[Kind, int] = field(default_factory=dict)
    default: dict[Workload, float] = field(default_factory=dict)
    best: dict[Workload, float] = field(default_factory=dict)
    verifying: int = 0
    last: str = ""
    interrupted: bool = False

    @property
    def speedup(self) -> float | None:
        """Geometric mean of default's cost over the best verified cost; None before there is one."""
        pairs = [(self.default[w], self.best[w]) for w in self.workloads if w in self.default and w in self.best]
        if len(pairs) < len(self.workloads):
            return None
        return math.exp(sum(math.log(d / b) for d, b in pairs) / len(pairs))

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far; None before anything was measured."""
        fresh = self.trials - self.known
        estimates = []
        if self.budget.trials is not None and fresh > 0:
            estimates.append((self.budget.trials - self.trials) * self.elapsed / fresh)
        if self.budget.seconds is not None:
            estimates.append(self.budget.seconds - self.elapsed)
        return max(0.0, min(estimates)) if estimates else None


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a run leaves: the tuned configuration of each workload, as stored, and how it went."""

    tuned: tuple[TunedConfig, ...]
    progress: Progress


class Tuner:
    """Tunes workloads of one family together: every configuration is compiled once and timed on all.

    Args:
        store: where measurements go and come from.
        backend: the worker that measures.
        pool: its trials.
        workloads: shapes of one family; the objective is the mean of log cost over the default's.
        budget: when to stop.
        parallel: trials at once.
        seed: of the search.
        watch: called after every change.
        study: a free name kept with the measurements of this run.
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
        self._store = store
        self._backend = backend
        self._pool = pool
        self._workloads = tuple(dict.fromkeys(workloads))
        self._family = self._workloads[0].shape.family
        self._parallel = parallel
        self._watch = watch
        self._study = study
        self._started = time.monotonic()
        self._env = store.environment_id(backend.environment)
        self.progress = Progress(self._workloads, backend.environment.unit, budget)
        self._defaults = {w: canonical(default_config(w.shape), self._family) for w in self._workloads}
        space = space_for(self._workloads, backend.soc, backend=backend.name)
        starts = [*dict.fromkeys(self._defaults.values())]
        starts += starting_points(space, default_config(self._workloads[0].shape))
        self._search = Search(space, starts, seed=seed)
        self._rows: dict[KernelConfig, dict[Workload, Measurement]] = {}
        self._verdicts: dict[KernelConfig, Verification] = {}
        self._jobs: dict[int, tuple[str, KernelConfig, tuple[Workload, ...]]] = {}
        self._retries: dict[tuple[str, KernelConfig], int] = {}
        self._queue: list[KernelConfig] = []
        self._exhausted = False

    def run(self) -> TuneResult:
        """Search until the budget is spent; on Ctrl-C stop at once and keep everything.

        Raises:
            DefaultFailedError: the default configuration of a workload cannot be measured, so
                that no speed-up could be stated.
        """
        self._recall()
        try:
            self._measure_defaults()
            self._verify_next()
            while True:
                self._launch()
                if not self._jobs:
                    break
                self._collect()
        except KeyboardInterrupt:
            self.progress.interrupted = True
        self._stop_running()
        return TuneResult(self._promote_all(), self.progress)

    def _recall(self) -> None:
        """Take in what earlier runs measured in this environment."""
        for workload in self._workloads:
            for row in self._store.measurements(self._env, workload=workload):
                if row.kind is not Kind.ENVIRONMENT_FAULT:
                    self._rows.setdefault(row.config, {})[workload] = row
        for config in list(self._rows):
            verdict = self._store.verification(self._env, self._family, config.digest)
            if verdict is not None:
                self._verdicts[config] = verdict
            self._note_default(config)
        for config in list(self._rows):
            if self._is_complete(config):
                self._count(config)
        self.progress.known = self.progress.trials
        if self._has_all_defaults():
            self._learn_all()
        self._refresh()

    def _measure_defaults(self) -> None:
        """The default of every workload first, timed on all: every speed-up is against it."""
        for config in dict.fromkeys(self._defaults.values()):
            if not self._is_complete(config):
                broken = violations(config, self._family, self._backend.soc)
                if broken:
                    raise DefaultFailedError(f"the default configuration is illegal here: {broken[0].message}")
                self._search.forget(config)
                self._queue.append(config)
        while self._queue or self._jobs:
            while self._queue and self._free():
                self._start(self._queue.pop(0))
            self._collect()
        for workload, config in self._defaults.items():
            row = self._rows.get(config, {}).get(workload)
            if row is None or row.cost is None:
                why = f"{row.kind}: {row.message.splitlines()[0] if row.message else ''}" if row else "no measurement"
                raise DefaultFailedError(f"the default configuration of {workload} cannot be measured ({why})")
        self._learn_all()
        for config in dict.fromkeys(self._defaults.values()):
            self._verify(config)

    def _launch(self) -> None:
        while self._free() and not self._spent():
            config = self._queue.pop(0) if self._queue else self._search.propose()
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
        if config not in self._verdicts and all(
            not (what == "verify" and other == config) for what, other, _ in self._jobs.values()
        ):
            trial = self._pool.submit(
                self._backend.verify_job(config, self._family), timeout=self._backend.verify_timeout
            )
            self._jobs[trial] = ("verify", config, ())
            self._show()

    def _collect(self) -> None:
        for result in self._pool.wait(_TICK):
            what, config, workloads = self._jobs.pop(result.trial)
            if result.kind is Kind.ENVIRONMENT_FAULT and self._retry(what, config):
                continue
            if what == "time":
                self._take_times(config, workloads, result)
            else:
                self._take_verdict(config, result)
        budget = self.progress.budget
        if budget.seconds is not None and time.monotonic() - self._started > budget.seconds:
            self._cancel_timing()
        self._show()

    def _retry(self, what: str, config: KernelConfig) -> bool:
        """An environment fault says nothing of a configuration: try it again, a few times."""
        self._retries[what, config] = self._retries.get((what, config), 0) + 1
        if self._retries[what, config] > _FAULT_RETRIES:
            return False
        if what == "time":
            self._start(config)
        else:
            self._verify(config)
        return True

    def _cancel_timing(self) -> None:
        if not self._has_all_defaults():
            return
        for trial, (what, config, _) in self._jobs.items():
            if what == "time":
                self._retries[what, config] = _FAULT_RETRIES
                self._pool.kill(trial)

    def _take_times(self, config: KernelConfig, workloads: tuple[Workload, ...], result: TrialResult) -> None:
        rows = self._backend.measurements(config, workloads, result, study=self._study)
        if result.message == "cancelled":
            self._search.forget(config)
            return
        self._store_rows(config, rows)
        if result.kind is Kind.ENVIRONMENT_FAULT:
            self._search.forget(config)
            return
        self._count(config)
        self._note_default(config)
        if self._has_all_defaults():
            self._search.learn(config, self._objective(config))
            if self._could_be_best(config):
                self._verify(config)

    def _take_verdict(self, config: KernelConfig, result: TrialResult) -> None:
        if result.kind is Kind.ENVIRONMENT_FAULT:
            return
        verdict = self._backend.verification(config, self._family, result)
        self._verdicts[config] = replace(verdict, id=self._store.add_verification(self._env, verdict))
        if not verdict.passed:
            message = f"wrong numbers: {verdict.message}"
            rows = [
                Measurement(workload, config, Kind.WRONG_RESULT, None, message=message, study=self._study)
                for workload in self._workloads
            ]
            self._search.reject(config)
            self._uncount(config)
            self._store_rows(config, rows)
            self._count(config)
        self._refresh()
        self._verify_next()

    def _verify_next(self) -> None:
        """Check the fastest of those that would be best if they are right.

        A wrong one may have hidden it, or an earlier run have stopped before its check.
        """
        waiting = [config for config in self._rows if self._could_be_best(config)]
        if waiting:
            self._verify(min(waiting, key=lambda config: self._objective(config) or 0.0))

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

    def _could_be_best(self, config: KernelConfig) -> bool:
        if config in self._verdicts:
            return False
        for workload, row in self._rows.get(config, {}).items():
            best = self.progress.best.get(workload)
            if row.cost is not None and (best is None or row.cost < best):
                return True
        return False

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

    def _uncount(self, config: KernelConfig) -> None:
        self._count(config, -1)

    def _winner(self, workload: Workload) -> tuple[KernelConfig, Measurement] | None:
        """The fastest verified configuration of a workload."""
        candidates = [
            (row.cost, row.id or 0, config, row)
            for config, rows in self._rows.items()
            if (row := rows.get(workload)) is not None
            and row.cost is not None
            and (verdict := self._verdicts.get(config)) is not None
            and verdict.passed
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
        for trial in self._jobs:
            self._pool.kill(trial)
        while self._pool.running:
            self._pool.wait(10)
        self._jobs.clear()

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
