"""How long a run may take, how far it is, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..db.records import Kind, TunedConfig
from ..kernel.shapes import Workload


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
    ``default`` hold the cost of each workload, verified ones only for ``best``. ``running`` counts
    trials of every sort, among them ``verifying`` and ``tracing``. A run that was stopped before
    its budget was spent is ``drained`` if it ended what it had begun, else ``interrupted``.
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
    tracing: int = 0
    last: str = ""
    interrupted: bool = False
    drained: bool = False

    @property
    def speedup(self) -> float | None:
        """Geometric mean of default's cost over the best verified cost; None before there is one."""
        pairs = [(self.default[w], self.best[w]) for w in self.workloads if w in self.default and w in self.best]
        return mean_speedup(pairs) if len(pairs) == len(self.workloads) else None

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the pace so far; None before anything was measured."""
        return seconds_left(self.budget, self.trials, self.trials - self.known, self.elapsed)

    def to_json(self) -> dict[str, Any]:
        """The progress as programs read it, one line of ``pfatune tune --json``."""
        left = self.seconds_left
        return {
            "event": "progress",
            "family": self.workloads[0].shape.family.to_json(),
            "shapes": len(self.workloads),
            "trials": self.trials,
            "budget_trials": self.budget.trials,
            "known": self.known,
            "running": self.running,
            "verifying": self.verifying,
            "tracing": self.tracing,
            "kinds": kinds_json(self.kinds),
            "unit": self.unit,
            "default_cost": [self.default.get(workload) for workload in self.workloads],
            "best_cost": [self.best.get(workload) for workload in self.workloads],
            "speedup": self.speedup,
            "last": self.last,
            "elapsed_seconds": round(self.elapsed, 1),
            "seconds_left": None if left is None else round(left, 1),
        }


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a run leaves: the tuned configuration of each workload, as stored, and how it went."""

    tuned: tuple[TunedConfig, ...]
    progress: Progress


def mean_speedup(pairs: list[tuple[float, float]]) -> float | None:
    """Geometric mean of the first over the second of each pair; None of none."""
    if not pairs:
        return None
    return math.exp(sum(math.log(default / best) for default, best in pairs) / len(pairs))


def seconds_left(budget: Budget, trials: int, fresh: int, elapsed: float) -> float | None:
    """An estimate from the pace of the ``fresh`` trials of ``elapsed`` seconds; None without any limit or pace."""
    estimates = []
    if budget.trials is not None and fresh > 0:
        estimates.append((budget.trials - trials) * elapsed / fresh)
    if budget.seconds is not None:
        estimates.append(budget.seconds - elapsed)
    return max(0.0, min(estimates)) if estimates else None


def kinds_json(kinds: dict[Kind, int]) -> dict[str, int]:
    """How many trials ended in each way, without the ways in which none did."""
    return {str(kind): count for kind, count in kinds.items() if count}
