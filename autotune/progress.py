"""How long a run may take, how far it is, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

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
