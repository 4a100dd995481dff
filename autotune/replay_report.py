"""What replays come to: percent of the optimum after so many trials and after so many seconds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .replay import RecordedSpace, Step, replay, seconds_to, share_at
from .strategies import STRATEGIES

#: Shares of the optimum whose seconds are told.
NEAR = (0.9, 0.95, 0.97, 0.99)
_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Row:
    """Shares of the optimum at some point of all searches: ``at`` trials, or seconds."""

    at: float
    median: float
    mean: float
    lowest: float


@dataclass(frozen=True)
class Replays:
    """A strategy over a recorded space, once for each seed."""

    space: RecordedSpace
    searches: tuple[tuple[Step, ...], ...]

    def after(self, trials: int) -> Row:
        """After so many trials; a search that had nothing left stays where it ended."""
        return _row(trials, [share_at(steps, trials) for steps in self.searches])

    def after_seconds(self, seconds: float) -> Row:
        """After so many recorded seconds."""
        return _row(seconds, [_share_after(steps, seconds) for steps in self.searches])

    def seconds_to(self, share: float) -> float:
        """The median of the seconds until a share of the optimum was reached; infinity where most never reached it."""
        return statistics.median(seconds_to(steps, share) for steps in self.searches)

    def reached(self, share: float) -> int:
        """How many searches reached a share of the optimum."""
        return sum(math.isfinite(seconds_to(steps, share)) for steps in self.searches)


def replays(
    space: RecordedSpace,
    strategy: str,
    evaluations: int,
    seeds: int,
    *,
    parallel: int = 1,
    watch: Callable[[int], None] = lambda done: None,
) -> Replays:
    """Replay a strategy of ``strategies.STRATEGIES`` with the seeds from 0; ``watch`` is told how many are done."""
    searches = []
    for seed in range(seeds):
        search = STRATEGIES[strategy](space.table, (1.0,) * len(space.workloads), seed)
        searches.append(tuple(replay(space, search, evaluations, parallel=parallel)))
        watch(seed + 1)
    return Replays(space, tuple(searches))


def after(found: Sequence[Replays], trials: int) -> Row:
    """After so many trials, of several spaces: the means of their medians and means, the lowest of all."""
    return _pooled([one.after(trials) for one in found])


def after_seconds(found: Sequence[Replays], seconds: float) -> Row:
    """The same after so many recorded seconds."""
    return _pooled([one.after_seconds(seconds) for one in found])


def _pooled(rows: Sequence[Row]) -> Row:
    return Row(
        rows[0].at,
        statistics.fmean(r.median for r in rows),
        statistics.fmean(r.mean for r in rows),
        min(r.lowest for r in rows),
    )


def trial_marks(evaluations: int) -> list[int]:
    """5, 10, 25, 50, 100, 250, … trials, and the last."""
    marks = [base * 10**power for power in range(7) for base in (5, 10, 25) if base * 10**power < evaluations]
    return [*sorted(set(marks)), evaluations]


def second_marks(found: Sequence[Replays]) -> list[float]:
    """1, 2, 5, 10, … seconds, from where the first search has a trial done until all of every search are."""
    clocks = [[step.clock for step in steps] for one in found for steps in one.searches if steps]
    if not clocks:
        return []
    first, last = min(clock[0] for clock in clocks), max(clock[-1] for clock in clocks)
    powers = range(math.floor(math.log10(max(first, 1e-3))), math.ceil(math.log10(max(last, 1e-3))) + 1)
    marks = [base * 10.0**power for power in powers for base in _STEPS]
    return [mark for at, mark in enumerate(marks) if mark >= first and (at == 0 or marks[at - 1] < last)]


def _row(at: float, shares: Sequence[float]) -> Row:
    return Row(at, statistics.median(shares), statistics.fmean(shares), min(shares))


def _share_after(steps: Sequence[Step], seconds: float) -> float:
    return next((step.share for step in reversed(steps) if step.clock <= seconds), 0.0)
