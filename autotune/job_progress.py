"""How far a job is, over all the families it asks for, as it is stored with the job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..db.job_records import JobRequest
from ..db.records import Kind
from ..kernel.shapes import Workload
from .families import by_family
from .progress import Budget, Progress, kinds_json, mean_speedup, seconds_left

#: Numbers of KV lengths up to which they are repeated with the progress, whose size is limited.
_MAX_LENGTHS = 10_000


class JobProgress:
    """Collects the progress of one run after another.

    ``before`` is what an earlier worker stored of the same job: the seconds it spent count.
    """

    def __init__(self, request: JobRequest, unit: str, before: Mapping[str, Any]) -> None:
        self._request = request
        self._unit = unit
        self.families = by_family(request.workloads)
        self.families_done = 0
        self._runs: dict[tuple[Workload, ...], Progress] = {}
        self._started = time.monotonic()
        spent = before.get("elapsed_seconds", 0.0)
        self._spent_before = float(spent) if isinstance(spent, int | float) else 0.0
        self._names_lengths = sum(len(w.actual_seq or ()) for w in request.workloads) <= _MAX_LENGTHS

    def watch(self, progress: Progress) -> None:
        """Take in the progress of the run that is going on."""
        self._runs[progress.workloads] = progress

    @property
    def elapsed(self) -> float:
        """Seconds spent on the job, those of earlier workers included."""
        return self._spent_before + self._here

    @property
    def speedup(self) -> float | None:
        """Geometric mean over the shapes that have a verified configuration; None before there is one."""
        return mean_speedup([(d, b) for _, d, b in self._costs() if d is not None and b is not None])

    def to_json(self) -> dict[str, Any]:
        runs = self._runs.values()
        kinds: dict[Kind, int] = {}
        for run in runs:
            for kind, count in run.kinds.items():
                kinds[kind] = kinds.get(kind, 0) + count
        left = self._seconds_left()
        return {
            "families": len(self.families),
            "families_done": self.families_done,
            "trials": sum(run.trials for run in runs),
            "budget_trials": self._budget_trials,
            "known": sum(run.known for run in runs),
            "running": sum(run.running for run in runs),
            "verifying": sum(run.verifying for run in runs),
            "tracing": sum(run.tracing for run in runs),
            "kinds": kinds_json(kinds),
            "unit": self._unit,
            "shapes": [self._shape(workload, default, best) for workload, default, best in self._costs()],
            "speedup": self.speedup,
            "last": next((run.last for run in reversed(list(runs)) if run.last), ""),
            "elapsed_seconds": round(self.elapsed, 1),
            "seconds_left": None if left is None else round(left, 1),
        }

    @property
    def _here(self) -> float:
        return time.monotonic() - self._started

    @property
    def _budget_trials(self) -> int | None:
        trials = self._request.trials
        return None if trials is None else trials * len(self.families)

    def _costs(self) -> list[tuple[Workload, float | None, float | None]]:
        """Every workload of the job with its default's cost and the best, as far as they are known."""
        default = {workload: cost for run in self._runs.values() for workload, cost in run.default.items()}
        best = {workload: cost for run in self._runs.values() for workload, cost in run.best.items()}
        return [(workload, default.get(workload), best.get(workload)) for workload in self._request.workloads]

    def _shape(self, workload: Workload, default: float | None, best: float | None) -> dict[str, Any]:
        document: dict[str, Any] = {"shape": workload.shape.to_json()}
        if workload.actual_seq is None or self._names_lengths:
            document["actual_seq"] = None if workload.actual_seq is None else list(workload.actual_seq)
        return {**document, "default_cost": default, "best_cost": best}

    def _seconds_left(self) -> float | None:
        runs = self._runs.values()
        trials = sum(run.trials for run in runs)
        fresh = trials - sum(run.known for run in runs)
        by_pace = seconds_left(Budget(self._budget_trials), trials, fresh, self._here)
        limit = self._request.seconds
        estimates = [by_pace, None if limit is None else max(0.0, limit - self.elapsed)]
        return min((estimate for estimate in estimates if estimate is not None), default=None)
