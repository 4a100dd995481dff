"""The default strategy: a model of cost, of feasibility and of seconds, asked where a second promises most.

After a few points at random, the next one is that of the highest expected improvement, summed over the
workloads by weight, times the chance that it succeeds, over a power of the seconds it will take. While
nothing better is found, the model is trusted less and less, in waves: its deviations count wider, so that
points farther away get their turn between those that promise to polish what is known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from .candidates import Candidates, Point
from .cross import Cross
from .encoding import Codes, Encoding
from .pool import Pool
from .surrogate import Array, Surrogate

_START = 5  # points at random before the model is asked
_NEEDED = 3  # of them that succeeded
_CLIP_AT, _CLIP = 0.5, 0.3  # costs above this quantile count this much of the excess: bad is bad
_SECONDS = 0.5  # power of the expected seconds; less than 1, as they are estimated
_NOTABLE = 0.03  # gain in log of cost below which nothing better counts as found
_WIDER = 0.2  # of each deviation, for every point since the last that was better, …
_WIDEST = 10  # … up to so many points; then from the start again
_NEARNESS = 4  # power of the similarity by which failures and seconds spread to points not tried
_DOUBT = 0.25  # weight of the belief that all goes well, against points of similarity 1
_BELIEF_NOISE = 0.3  # extra variance of what was measured elsewhere, of outputs of variance 1
_ACTIVE = 256  # measured points the model holds; of more, the best half of it and others at random
_FITTED = 128  # and those it is fitted to
_ITERATIONS = 12, 5  # of the fit; the second with all of them, when little changes any more
_GROWTH = 1.1  # of the points, after which it is fitted anew
_LEAST = 1e-9


class ModelSearch:
    """Searches by a Gaussian process over the logarithm of the costs; see ``surrogate``.

    Points in flight count as if they cost what is expected of them. Beliefs are observations with much noise.
    """

    def __init__(self, candidates: Candidates, weights: Sequence[float] = (1.0,), seed: int = 0) -> None:
        self._weights: Array = np.asarray(weights, dtype=float) / math.fsum(weights)
        self._rng = random.Random(seed)
        self._encoding = Encoding(candidates.fields)
        self._model = Surrogate(self._encoding.distances, self._encoding.plain)
        self._cross = Cross(self._encoding, self._model)
        self._pool = Pool(candidates, self._rng)
        self._logs: dict[Point, Array] = {}
        self._beliefs: dict[Point, Array] = {}
        self._seconds: dict[Point, float] = {}
        self._pending: dict[Point, None] = {}
        self._best: Array = np.full(len(weights), np.inf)
        self._stalled = 0  # points since one was notably better
        self._fitted = 0
        self._promise: float | None = None

    @property
    def promise(self) -> float | None:
        return self._promise

    def propose(self) -> Point | None:
        self._promise = None
        self._pool.grow(self._ranked())
        points = self._pool.points
        new = np.array([self._is_new(point) for point in points], dtype=bool)
        if not new.any():
            point = self._pool.search({*self._seconds, *self._pending}, list(self._seconds))
            if point is None:
                return None
        elif self._can_judge():
            point = self._most_promising(points, new)
        else:
            point = points[self._rng.choice(np.flatnonzero(new).tolist())]
        self._pending[point] = None
        return point

    def reserve(self, point: Point) -> None:
        self._pending[point] = None

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        self._pending.pop(point, None)
        self._beliefs.pop(point, None)
        self._logs.pop(point, None)
        self._seconds[point] = max(seconds, _LEAST)
        if costs is not None:
            logs = self._logs[point] = np.log(np.asarray(costs, dtype=float))
            gain = float(np.maximum(self._best - logs, 0) @ self._weights)
            if gain > _NOTABLE:
                self._best, self._stalled = np.minimum(self._best, logs), 0
            else:
                self._stalled += 1

    def believe(self, point: Point, costs: Sequence[float]) -> None:
        if point not in self._seconds:
            self._beliefs[point] = np.log(np.asarray(costs, dtype=float))

    def forget(self, point: Point) -> None:
        self._pending.pop(point, None)

    def _can_judge(self) -> bool:
        """Whether enough is known to ask the model."""
        tried = len(self._seconds) + len(self._pending) + len(self._beliefs)
        return bool(self._logs) and len(self._logs) + len(self._beliefs) >= _NEEDED and tried >= _START

    def _is_new(self, point: Point) -> bool:
        return point not in self._seconds and point not in self._pending

    def _ranked(self) -> list[Point]:
        """What is measured or believed, the cheapest first."""
        known = {**self._beliefs, **self._logs}
        return sorted(known, key=lambda point: float(known[point] @ self._weights))

    def _most_promising(self, points: Sequence[Point], new: NDArray[np.bool_]) -> Point:
        """The best of the new ones among the points."""
        learnt, least, scale = self._learn()
        means, deviation = self._model.predict_from(self._cross.covariances(learnt, points))
        known = self._remembered()
        chance, seconds = np.ones(len(points)), np.zeros(len(points))
        if known:
            nearness = (self._cross.covariances(known, points) / self._model.variance).T ** _NEARNESS
            among = nearness.sum(1) + _DOUBT
            failed = np.array([point not in self._logs for point in known], dtype=float)
            chance = (1 - (nearness @ failed) / among) * self._chance(self._encoding.codes(known), failed)
            logs = np.log([self._seconds[point] for point in known])
            seconds = (nearness @ logs + _DOUBT * logs.mean()) / among
        # Where failures are likely, little known means little hoped for.
        wider = deviation * (1 + _WIDER * (self._stalled % _WIDEST) * chance)
        score = self._gains(least, means, wider, scale) + np.log(chance) - _SECONDS * seconds
        score[~new] = -np.inf
        at = int(np.argmax(score))
        self._promise = math.exp(float(self._gains(least, means[at : at + 1], deviation[at : at + 1], scale)[0]))
        return points[at]

    def _gains(self, least: Array, means: Array, deviation: Array, scale: Array) -> Array:
        """Log of the expected improvement of the mean log of cost over the workloads: (points,)."""
        gain = (least - means) / deviation[:, None]
        improvement = _log_improvement(gain) + np.log(deviation[:, None] * scale * self._weights)
        return np.asarray(np.logaddexp.reduce(improvement, axis=1))

    def _chance(self, known: Codes, failed: Array) -> Array:
        """How often what has the same value in a field succeeded, by the field where that was most seldom."""
        codes = self._cross.codes
        chance = np.ones(len(codes))
        for f, field in enumerate(self._encoding.fields):
            tried = np.bincount(known[:, f], minlength=len(field.values))
            bad = np.bincount(known[:, f], weights=failed, minlength=len(field.values))
            chance = np.minimum(chance, ((tried - bad + 1) / (tried + 1))[codes[:, f]])
        return chance

    def _learn(self) -> tuple[list[Point], Array, Array]:
        """Bring the model up to date.

        What it holds then, the lowest output of each workload, and what its unit is in logs of cost.
        """
        active = self._active()
        believed = [point for point in self._beliefs if point not in self._pending][:_ACTIVE]
        known = [*active, *believed]
        logs = np.array([self._logs[point] if point in self._logs else self._beliefs[point] for point in known])
        outputs, scale = _outputs(logs)
        noise = np.array([0.0] * len(active) + [_BELIEF_NOISE] * len(believed))
        codes = self._encoding.codes(known)
        if len(self._logs) >= self._fitted * _GROWTH:
            order = list(range(len(known))) if len(known) <= _FITTED else self._rng.sample(range(len(known)), _FITTED)
            self._model.fit(codes[order], outputs[order], noise[order], iterations=_ITERATIONS[len(order) >= _FITTED])
            self._fitted = len(self._logs)
        self._model.learn(codes, outputs, noise)
        flying = list(self._pending)
        if flying:
            extra = self._encoding.codes(flying)
            expected, _ = self._model.predict(extra)
            self._model.learn(
                np.concatenate([codes, extra]),
                np.concatenate([outputs, expected]),
                np.concatenate([noise, np.zeros(len(flying))]),
            )
        return [*known, *flying], outputs[: len(active)].min(0), scale

    def _remembered(self) -> list[Point]:
        """What failures and seconds are judged by: what the model holds, and the last that failed."""
        failed = [point for point in self._seconds if point not in self._logs]
        return [*self._active(), *failed[-_ACTIVE:]]

    def _active(self) -> list[Point]:
        if len(self._logs) <= _ACTIVE:
            return list(self._logs)
        ranked = sorted(self._logs, key=lambda point: float(self._logs[point] @ self._weights))
        best, rest = ranked[: _ACTIVE // 2], ranked[_ACTIVE // 2 :]
        return best + rest[:: math.ceil(len(rest) / (_ACTIVE // 2))]


def _outputs(logs: Array) -> tuple[Array, Array]:
    """Logs of costs with the bad ones drawn in, centred and of variance 1: (n, workloads), and the scale of each."""
    middle = np.quantile(logs, _CLIP_AT, axis=0)
    drawn = np.where(logs > middle, middle + _CLIP * (logs - middle), logs)
    scale = np.maximum(drawn.std(0), _LEAST)
    return (drawn - drawn.mean(0)) / scale, scale


def _log_improvement(gain: Array) -> Array:
    """Log of the expected improvement of a normal variable of mean ``-gain`` and variance 1 below 0."""
    density = -gain * gain / 2 - 0.5 * math.log(2 * math.pi)
    plain = np.log(np.maximum(np.exp(density) + gain * ndtr(gain), 1e-300))
    # Far out, where the two terms cancel, by the leading term of the expansion.
    far: NDArray[np.bool_] = gain < -20
    return np.where(far, density - 2 * np.log(np.maximum(-gain, 1.0)), plain)
