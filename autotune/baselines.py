"""Plain strategies to measure others against: random choice and local search."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from .candidates import Candidates, Point

_DRAWS = 1000  # at random that may all be known before a search ends
_LOCAL_START = 8  # points at random before a local search begins
_LOCAL_BEST = 4  # points whose neighbours it tries


class RandomSearch:
    """Points at random, each once."""

    promise: float | None = None

    def __init__(self, candidates: Candidates, weights: Sequence[float] = (1.0,), seed: int = 0) -> None:
        self._candidates = candidates
        self._weights = tuple(weights)
        self._rng = random.Random(seed)
        self._seen: set[Point] = set()

    def propose(self) -> Point | None:
        point = draw_new(self._candidates, self._rng, self._seen)
        if point is not None:
            self._seen.add(point)
        return point

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        self._seen.add(point)

    def reserve(self, point: Point) -> None:
        self._seen.add(point)

    def believe(self, point: Point, costs: Sequence[float]) -> None:
        """Nothing is made of it."""

    def forget(self, point: Point) -> None:
        self._seen.discard(point)


class LocalSearch(RandomSearch):
    """After some points at random, the next untried neighbour of the best, then of the second best, and so on.

    The nearest values of all fields come first. Failures are never built upon.
    """

    def __init__(self, candidates: Candidates, weights: Sequence[float] = (1.0,), seed: int = 0) -> None:
        super().__init__(candidates, weights, seed)
        self._costs: dict[Point, float] = {}
        self._tried = 0

    def propose(self) -> Point | None:
        self._tried += 1
        if self._tried > _LOCAL_START:
            for best in sorted(self._costs, key=lambda point: self._costs[point])[:_LOCAL_BEST]:
                for point in self._candidates.neighbours(best):
                    if point not in self._seen:
                        self._seen.add(point)
                        return point
        return super().propose()

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        super().learn(point, costs, seconds)
        self._costs.pop(point, None)
        if costs is not None:
            self._costs[point] = mean_cost(costs, self._weights)


def mean_cost(costs: Sequence[float], weights: Sequence[float]) -> float:
    """The geometric mean by weight."""
    pairs = zip(costs, weights, strict=True)
    return math.exp(math.fsum(weight * math.log(cost) for cost, weight in pairs) / math.fsum(weights))


def draw_new(candidates: Candidates, rng: random.Random, known: set[Point]) -> Point | None:
    """A point at random that is not among the known ones; None if none was found."""
    for _ in range(_DRAWS):
        point = candidates.draw(rng)
        if point is not None and point not in known:
            return point
    return None
