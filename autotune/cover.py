"""Few rows of a matrix that are good in every column: the search behind portfolios, without a word of kernels.

A row is a candidate, a column a case, an entry the regret of the candidate there: 0 for the best, ``inf``
where it is unknown. A set of rows has in each column the least regret of its rows. Regrets that differ by
less than 1e-12, as rounding makes them, are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

#: Steps of one search, after which the best found so far is taken: a few seconds.
MAX_STEPS = 20_000
_UNKNOWN = 1e9  # in place of inf, so that means can be compared
_DIGITS = 12
_EPSILON = 10.0**-_DIGITS


@dataclass(frozen=True, slots=True)
class Cover:
    """Rows of a matrix in ascending order; ``proven``: no other set is better."""

    rows: tuple[int, ...]
    proven: bool


def smallest(regrets: Matrix, weights: Sequence[float], limit: float, *, max_steps: int = MAX_STEPS) -> Cover:
    """The fewest rows with regret up to ``limit`` in every column.

    Of as small ones, that of the least mean regret, by the columns' weights, then of the least
    worst one, then of the lowest rows. The search is exact; where it needs more than
    ``max_steps``, the best found is given, never more rows than a greedy choice has.

    Raises:
        ValueError: no row is within the limit in some column.
    """
    problem = _Problem(regrets, weights)
    if not (problem.regrets <= limit + _EPSILON).any(axis=0).all():
        raise ValueError(f"no row is within {limit:g} in some column: raise the limit")
    greedy = problem.improved(problem.greedy(limit), limit)
    proven = True
    for count in range(1, len(greedy) + 1):
        search = _Search(problem, limit, count, max_steps)
        if count == len(greedy):
            search.offer(greedy)
        search.run()
        proven &= search.finished
        if search.best is not None:
            return Cover(problem.original(search.best), proven)
    return Cover(problem.original(greedy), False)


def best(regrets: Matrix, weights: Sequence[float], count: int, *, max_steps: int = MAX_STEPS) -> Cover:
    """At most ``count`` rows with the least worst regret.

    Of as good ones, that of the least mean regret, then of the fewest rows, then of the lowest.
    Exact up to ``max_steps``, as ``smallest``.
    """
    problem = _Problem(regrets, weights)
    values = np.unique(np.round(problem.regrets, _DIGITS))
    low, high, proven = 0, len(values) - 1, True
    found: list[int] | None = None
    while low < high:
        middle = (low + high) // 2
        greedy = problem.greedy(float(values[middle]), count)
        if not problem.is_within(greedy, float(values[middle])):
            search = _Search(problem, float(values[middle]), count, max_steps, first=True)
            search.run()
            proven &= search.finished
            greedy = search.best or []
        if greedy:
            found, high = greedy, middle
        else:
            low = middle + 1
    limit = float(values[high])
    search = _Search(problem, limit, count, max_steps)
    start = found if found and problem.is_within(found, limit) else problem.greedy(limit, count)
    if problem.is_within(start, limit):
        search.offer(start)
        search.offer(problem.improved(start, limit))
    search.run()
    assert search.best is not None  # the largest value of all is a limit that any row keeps
    return Cover(problem.original(search.best), proven and search.finished)


class _Problem:
    """The matrix without rows that another is never worse than."""

    def __init__(self, regrets: Matrix, weights: Sequence[float]) -> None:
        if regrets.ndim != 2 or 0 in regrets.shape:
            raise ValueError(f"the matrix has the shape {regrets.shape}: give a row and a column at least")
        share = np.asarray(weights, dtype=np.float64)
        if share.shape != regrets.shape[1:] or not (np.isfinite(share).all() and (share > 0).all()):
            raise ValueError("the weights do not fit: give a finite number above 0 for each column")
        filled = np.where(np.isfinite(regrets), np.minimum(regrets, _UNKNOWN), _UNKNOWN)
        self._rows = _undominated(filled)
        self.regrets: Matrix = filled[self._rows]
        self.weights: Matrix = share / share.sum()

    def original(self, rows: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(int(self._rows[row]) for row in rows))

    def least(self, rows: Sequence[int]) -> Matrix:
        if not rows:
            return np.full(self.regrets.shape[1], _UNKNOWN)
        found: Matrix = self.regrets[list(rows)].min(axis=0)
        return found

    def is_within(self, rows: Sequence[int], limit: float) -> bool:
        return bool(rows) and bool((self.least(rows) <= limit + _EPSILON).all())

    def key(self, rows: Sequence[int]) -> tuple[float, int, float, tuple[int, ...]]:
        """Smaller is better."""
        least = self.least(rows)
        mean, worst = float(least @ self.weights), float(least.max())
        return round(mean, _DIGITS), len(rows), round(worst, _DIGITS), self.original(rows)

    def greedy(self, limit: float, most: int | None = None) -> list[int]:
        """Row after row, each bringing most columns within the limit, then gaining most on the mean."""
        rows: list[int] = []
        while not self.is_within(rows, limit) and (most is None or len(rows) < most):
            least = self.least(rows)
            open_columns = least > limit + _EPSILON
            covered = (self.regrets[:, open_columns] <= limit + _EPSILON).sum(axis=1)
            if not covered.any():
                break
            gains = np.maximum(least - self.regrets, 0) @ self.weights
            rows.append(int(np.lexsort((-gains, -covered))[0]))
        return rows

    def improved(self, rows: Sequence[int], limit: float) -> list[int]:
        """The rows with one after another exchanged, or left out, as long as that is better."""
        now = sorted(rows)
        while True:
            others = [now[:at] + now[at + 1 :] for at in range(len(now))]
            fewer = [one for one in others if self.is_within(one, limit)]
            if fewer:
                now = min(fewer, key=self.key)
                continue
            exchanged = (sorted([*one, row]) for one in others for row in range(len(self.regrets)) if row not in now)
            better = min((one for one in exchanged if self.is_within(one, limit)), key=self.key, default=now)
            if self.key(better) >= self.key(now):
                return now
            now = better


def _undominated(regrets: Matrix) -> list[int]:
    kept = []
    for row, values in enumerate(regrets):
        no_worse = (regrets <= values).all(axis=1)
        better = no_worse & (regrets < values).any(axis=1)
        same_before = no_worse[:row] & ~better[:row]
        if not better.any() and not same_before.any():
            kept.append(row)
    return kept


class _Search:
    """Branch and bound: sets of at most ``count`` rows within a limit, ``first`` stopping at any."""

    def __init__(self, problem: _Problem, limit: float, count: int, max_steps: int, *, first: bool = False) -> None:
        self._problem = problem
        self._limit = limit + _EPSILON
        self._count = count
        self._steps = max_steps
        self._first = first
        self.best: list[int] | None = None
        self._key: tuple[float, int, float, tuple[int, ...]] = (math.inf, 0, 0.0, ())
        self.finished = True

    def offer(self, rows: Sequence[int]) -> None:
        """Keep a set that is within the limit if it is the best so far."""
        key = self._problem.key(rows)
        if key < self._key:
            self.best, self._key = sorted(rows), key

    def run(self) -> None:
        self._visit([], np.arange(len(self._problem.regrets)))

    def _visit(self, rows: list[int], allowed: NDArray[np.intp]) -> None:
        if self._first and self.best is not None:
            return
        self._steps -= 1
        if self._steps < 0:
            self.finished = False
            return
        problem, least = self._problem, self._problem.least(rows)
        open_columns = least > self._limit
        is_open = bool(open_columns.any())
        if rows and not is_open:
            self.offer(rows)
        left = self._count - len(rows)
        if not left or not len(allowed):
            return
        candidates = problem.regrets[allowed]
        gains = np.maximum(least - candidates, 0) @ problem.weights
        if self._is_hopeless(least, candidates, gains, left):
            return
        if is_open:
            covers = candidates[:, open_columns] <= self._limit
            counts = np.sort(covers.sum(axis=1))[::-1]
            if counts[:left].sum() < open_columns.sum():
                return
            column = int(covers.sum(axis=0).argmin())
            useful = covers.all(axis=1) if left == 1 else covers[:, column]
        else:
            useful = gains > _EPSILON
        order = np.flatnonzero(useful)[np.argsort(-gains[useful], kind="stable")]
        if left == 1:
            # Only those of the least mean can win.
            order = order[gains[order] >= gains[order[0]] - 2 * _EPSILON] if len(order) else order
            for place in order:
                self.offer([*rows, int(allowed[place])])
            return
        free = np.ones(len(allowed), dtype=bool)
        for place in order:
            free[place] = False
            self._visit([*rows, int(allowed[place])], allowed[free])
            if not self.finished:
                return

    def _is_hopeless(self, least: Matrix, candidates: Matrix, gains: Matrix, left: int) -> bool:
        """Whether no ``left`` more rows can reach the mean of the best set."""
        if self.best is None:
            return False
        weights = self._problem.weights
        floor = float(np.minimum(least, candidates.min(axis=0)) @ weights)
        together = float(least @ weights - np.sort(gains)[::-1][:left].sum())
        return max(floor, together) > self._key[0] + _EPSILON
