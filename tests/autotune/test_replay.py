"""Replays of recorded spaces: what counts, what it costs, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune.candidates import Field, Point, Table
from pfatune.autotune.replay import Outcome, RecordedSpace, replay, seconds_to, share_at
from pfatune.autotune.replay_report import Replays, after, replays, second_marks, trial_marks
from pfatune.autotune.strategies import STRATEGIES

FIELDS = (Field("a", (1, 2, 4, 8)), Field("b", (0, 1)))
POINTS = tuple((a, b) for a in range(4) for b in range(2))


class Given:
    """A strategy that proposes what it was given, and notes what it learns."""

    promise = None

    def __init__(self, points: Sequence[Point]) -> None:
        self.left = list(points)
        self.learnt: list[tuple[Point, Sequence[float] | None, float]] = []

    def propose(self) -> Point | None:
        return self.left.pop(0) if self.left else None

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        self.learnt.append((point, costs, seconds))

    def reserve(self, point: Point) -> None: ...

    def believe(self, point: Point, costs: Sequence[float]) -> None: ...

    def forget(self, point: Point) -> None: ...


def space(costs: Sequence[Sequence[float] | None], seconds: Sequence[float]) -> RecordedSpace:
    points = POINTS[: len(costs)]
    outcomes = {
        point: Outcome(None if cost is None else tuple(cost), took)
        for point, cost, took in zip(points, costs, seconds, strict=True)
    }
    workloads = tuple("xyz"[: len(next(cost for cost in costs if cost is not None))])
    return RecordedSpace("made up", Table(FIELDS, points), outcomes, workloads)


FEW = space([(8.0,), None, (4.0,), (2.0,)], [1.0, 10.0, 2.0, 4.0])


def test_failures_cost_what_they_cost_and_find_nothing() -> None:
    steps = replay(FEW, Given(POINTS[:4]), 10)
    assert [(step.clock, step.share) for step in steps] == [(1, 0.25), (11, 0.25), (13, 0.5), (17, 1)]


def test_the_strategy_learns_what_was_recorded() -> None:
    strategy = Given(POINTS[1:3])
    replay(FEW, strategy, 10)
    assert strategy.learnt == [(POINTS[1], None, 10.0), (POINTS[2], (4.0,), 2.0)]


def test_no_more_trials_than_allowed() -> None:
    assert len(replay(FEW, Given(POINTS[:4]), 3)) == 3


def test_trials_in_parallel_end_in_their_order_and_the_next_waits_for_no_other() -> None:
    steps = replay(FEW, Given([POINTS[1], POINTS[0], POINTS[2], POINTS[3]]), 4, parallel=2)
    assert [(step.point, step.clock) for step in steps] == [
        (POINTS[0], 1),
        (POINTS[2], 3),
        (POINTS[3], 7),
        (POINTS[1], 10),
    ]


@pytest.mark.parametrize("points", [[POINTS[0], POINTS[0]], [POINTS[5]]])
def test_a_strategy_that_repeats_or_leaves_the_space_is_told(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="not new or not in made up"):
        replay(FEW, Given(points), 4)


def test_several_workloads_count_by_their_geometric_mean() -> None:
    both = space([(1.0, 4.0), (4.0, 1.0), (2.0, 2.0)], [1, 1, 1])
    assert [step.share for step in replay(both, Given([POINTS[2]]), 1)] == [pytest.approx(0.5)]
    assert replay(both, Given(POINTS[:2]), 2)[-1].share == pytest.approx(1)  # each has its own best


def test_a_workload_by_itself_takes_its_own_seconds() -> None:
    outcomes = {
        POINTS[0]: Outcome((3.0, 5.0), 10.0, (1.0, 4.0)),
        POINTS[1]: Outcome(None, 7.0),
        POINTS[2]: Outcome((2.0, 9.0), 20.0, (2.0, 8.0)),
    }
    whole = RecordedSpace("two", Table(FIELDS, POINTS[:3]), outcomes, ("x", "y"))
    first = whole.of_workload(0)
    assert first.optimum == (2.0,)
    assert first.outcomes[POINTS[0]] == Outcome((3.0,), 6.0, (1.0,))
    assert first.outcomes[POINTS[1]] == outcomes[POINTS[1]]
    assert (first.name, first.workloads) == ("two x", ("x",))


def test_share_and_seconds_of_nothing() -> None:
    assert share_at([], 5) == 0
    assert seconds_to([], 0.5) == math.inf
    assert share_at(replay(FEW, Given(POINTS[:2]), 2), 100) == 0.25


@given(st.permutations(POINTS[:4]), st.integers(1, 4))
def test_the_share_never_falls_and_time_never_runs_backwards(order: list[Point], parallel: int) -> None:
    steps = replay(FEW, Given(order), 4, parallel=parallel)
    assert {step.point for step in steps} == set(order)
    assert steps[-1].share == 1
    for earlier, later in pairwise(steps):
        assert earlier.share <= later.share
        assert earlier.clock <= later.clock
    assert steps[-1].clock <= 17


def test_a_report_is_over_the_seeds() -> None:
    found = Replays(FEW, tuple(tuple(replay(FEW, Given(order), 4)) for order in (POINTS[:4], POINTS[3::-1])))
    assert (found.after(1).median, found.after(1).lowest) == (0.625, 0.25)
    assert found.after_seconds(3.9).mean == 0.125
    assert found.after_seconds(17).lowest == 1
    assert found.seconds_to(1) == (17 + 4) / 2
    assert found.reached(1) == 2
    assert after([found, found], 1) == found.after(1)


def test_marks() -> None:
    assert trial_marks(40) == [5, 10, 25, 40]
    assert trial_marks(1) == [1]
    found = Replays(FEW, (tuple(replay(FEW, Given(POINTS[:4]), 4)),))
    assert second_marks([found]) == [1, 2, 5, 10, 20]
    assert second_marks([Replays(FEW, ((),))]) == []


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_finds_the_best_of_a_small_space(strategy: str) -> None:
    told: list[int] = []
    found = replays(FEW, strategy, 10, 2, watch=told.append)
    assert told == [1, 2]
    assert [len(steps) for steps in found.searches] == [4, 4]
    assert found.after(10).lowest == 1
