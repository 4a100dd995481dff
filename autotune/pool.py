"""The points a model is asked about: all of a table, else a growing sample that is dense around the best."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Sequence

from .candidates import Candidates, Point, Table

_DRAWN = 40  # points at random for each proposal
_EXPANDED = 2  # of the best, whose neighbours are added
_BEST = 8  # that are crossed with one another
_CROSSED = 10
_DRAWS = 200  # before a space counts as drawn empty
_LARGEST = 600  # points; of more, the oldest that were drawn at random go


class Pool:
    """Points to choose from. A table's are all there from the start."""

    def __init__(self, candidates: Candidates, rng: random.Random) -> None:
        self._candidates = candidates
        self._rng = rng
        self._table = candidates.points if isinstance(candidates, Table) else None
        self._points: dict[Point, None] = {}
        self._neighbours: dict[Point, tuple[Point, ...]] = {}

    @property
    def points(self) -> Sequence[Point]:
        """What there is, in an order that the seed decides; the same object each time if it never changes."""
        return self._table if self._table is not None else list(self._points)

    def grow(self, ranked: Sequence[Point]) -> None:
        """Add points at random, and some around the best, which come first in ``ranked``."""
        if self._table is not None:
            return
        for _ in range(_DRAWN):
            drawn = self._candidates.draw(self._rng)
            if drawn is None:
                break
            self._add(drawn)
        fresh = [point for point in ranked[:_BEST] if point not in self._neighbours]
        for point in fresh[:_EXPANDED]:
            self._neighbours[point] = tuple(self._candidates.neighbours(point))
        best = ranked[:_BEST]
        for _ in range(_CROSSED if len(best) > 1 else 0):
            one, other = self._rng.sample(best, 2)
            mixed = tuple(self._rng.choice(pair) for pair in zip(one, other, strict=True))
            self._add(self._candidates.nearest(mixed))
        for point in best:
            for other in self._neighbours.get(point, ()):
                self._add(other)
        for point in list(self._points)[: max(0, len(self._points) - _LARGEST)]:
            del self._points[point]

    def search(self, known: Container[Point], ranked: Iterable[Point]) -> Point | None:
        """A point that is not known, where the pool has none: by many draws, then among all neighbours."""
        if self._table is not None:
            return None
        for _ in range(_DRAWS):
            drawn = self._candidates.draw(self._rng)
            if drawn is None:
                break
            if drawn not in known:
                return drawn
        others = (other for point in ranked for other in self._candidates.neighbours(point))
        return next((other for other in others if other not in known), None)

    def _add(self, point: Point | None) -> None:
        if point is not None:
            self._points.pop(point, None)
            self._points[point] = None
