"""Recorded spaces as a backend: what a search would have found, after how many trials and seconds.

Nothing is compiled or timed: every outcome was recorded, failures with what they cost.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from .candidates import Point, Table
from .strategy import Strategy


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was recorded of a point: ``costs`` on each workload, None if it failed, and the trial's seconds.

    ``run_seconds`` are the part of each workload, where that is known.
    """

    costs: tuple[float, ...] | None
    seconds: float
    run_seconds: tuple[float, ...] = ()

    def of(self, index: int) -> Outcome:
        """What a trial on one workload alone would have been; what failed costs what it cost."""
        if self.costs is None:
            return self
        others = sum(self.run_seconds) - self.run_seconds[index] if self.run_seconds else 0.0
        return Outcome((self.costs[index],), self.seconds - others, self.run_seconds[index : index + 1])


@dataclass(frozen=True)
class RecordedSpace:
    """A space of which every point was measured, on one workload or on several together.

    ``unit`` is that of the costs. Compared are geometric means over the workloads of cost over
    the lowest cost of the space.
    """

    name: str
    table: Table
    outcomes: Mapping[Point, Outcome]
    workloads: tuple[str, ...] = ("",)
    unit: str = ""

    @cached_property
    def optimum(self) -> tuple[float, ...]:
        """The lowest cost of each workload."""
        measured = [outcome.costs for outcome in self.outcomes.values() if outcome.costs is not None]
        return tuple(min(costs[i] for costs in measured) for i in range(len(self.workloads)))

    def of_workload(self, index: int) -> RecordedSpace:
        """The same points timed on one workload only."""
        outcomes = {point: found.of(index) for point, found in self.outcomes.items()}
        name = f"{self.name} {self.workloads[index]}".strip()
        return RecordedSpace(name, self.table, outcomes, (self.workloads[index],), self.unit)


@dataclass(frozen=True, slots=True)
class Step:
    """One trial of a replay that ended at ``clock`` seconds of recorded time.

    ``share`` is how near the optimum the best so far is, from 0 (nothing succeeded) to 1: the
    geometric mean over the workloads of lowest possible cost over lowest cost found.
    """

    point: Point
    outcome: Outcome
    clock: float
    share: float


def replay(space: RecordedSpace, strategy: Strategy, evaluations: int, *, parallel: int = 1) -> list[Step]:
    """The first ``evaluations`` trials of a strategy over a recorded space, in the order in which they ended.

    ``parallel`` trials run at once; a new one starts when any has ended. It ends early where
    the strategy has nothing left to propose.

    Raises:
        ValueError: the strategy proposed a point twice, or one that the space does not have.
    """
    steps: list[Step] = []
    best = [math.inf] * len(space.workloads)
    running: list[tuple[float, int, Point]] = []
    started: set[Point] = set()
    clock, going = 0.0, True
    while True:
        while going and len(running) < parallel and len(started) < evaluations:
            point = strategy.propose()
            if point is None:
                going = False
                break
            if point in started or point not in space.outcomes:
                raise ValueError(f"the strategy proposed {point}, which is not new or not in {space.name}")
            heapq.heappush(running, (clock + space.outcomes[point].seconds, len(started), point))
            started.add(point)
        if not running:
            return steps
        clock, _, point = heapq.heappop(running)
        outcome = space.outcomes[point]
        if outcome.costs is not None:
            best = [min(pair) for pair in zip(best, outcome.costs, strict=True)]
        strategy.learn(point, outcome.costs, outcome.seconds)
        steps.append(Step(point, outcome, clock, _share(space.optimum, best)))


def _share(optimum: Sequence[float], best: Sequence[float]) -> float:
    if math.inf in best:
        return 0.0
    return math.exp(sum(math.log(low / found) for low, found in zip(optimum, best, strict=True)) / len(best))


def share_at(steps: Sequence[Step], evaluations: int) -> float:
    """How near the optimum a replay was after some trials; a search that ended early stays where it was."""
    return steps[min(evaluations, len(steps)) - 1].share if steps and evaluations > 0 else 0.0


def seconds_to(steps: Sequence[Step], share: float) -> float:
    """Recorded seconds until a share of the optimum was reached; infinity if it never was."""
    return next((step.clock for step in steps if step.share >= share), math.inf)
