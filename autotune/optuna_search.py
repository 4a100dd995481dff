"""Optuna's samplers as strategies, as they are shipped."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import Trial, TrialState, create_trial

from .baselines import draw_new, mean_cost
from .candidates import Candidates, Field, Point, Table

_TPE_ASKS = 16  # that may be illegal or known before the nearest new point is taken
_GP_ASKS = 4  # the same; each takes a tenth of a second and more, and the next ones differ little
_DENSE = 0.01  # share of a table's combinations that exist, below which the nearest one is taken at once


class OptunaSearch:
    """One of Optuna's samplers, asked for points and told their costs.

    Numbers are integers to it (their index), texts are categories. The objective is the cost,
    on several workloads the geometric mean by weight. A combination that may not be proposed is told as
    pruned; one that is known already as what it cost; one that failed as the highest cost so far.
    Where a sampler insists on either, or where hardly any combination exists, the new point
    nearest to what it asked for is taken.
    """

    promise: float | None = None

    def __init__(
        self,
        candidates: Candidates,
        sampler: BaseSampler,
        weights: Sequence[float] = (1.0,),
        seed: int = 0,
        *,
        asks: int = _TPE_ASKS,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._candidates = candidates
        self._weights = tuple(weights)
        self._study = optuna.create_study(sampler=sampler)
        self._distributions = {field.name: _distribution(field) for field in candidates.fields}
        self._rng = random.Random(seed)
        self._pending: dict[Point, Trial | None] = {}
        self._costs: dict[Point, float | None] = {}
        self._asks = 1 if _is_sparse(candidates) else asks

    def propose(self) -> Point | None:
        wanted: Point = ()
        for _ in range(self._asks):
            trial = self._study.ask(self._distributions)
            wanted = tuple(int(trial.params[field.name]) for field in self._candidates.fields)
            point = self._candidates.nearest(wanted)
            if point is not None and self._is_new(point):
                self._pending[point] = trial
                return point
            cost = None if point is None else self._costs.get(point)
            if cost is None:
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, cost)
        point = self._nearest_new(wanted)
        if point is not None:
            self._pending[point] = None
        return point

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        trial = self._pending.pop(point, None)
        known = [cost for cost in self._costs.values() if cost is not None]
        value = max(known, default=None) if costs is None else mean_cost(costs, self._weights)
        self._costs[point] = value
        if trial is not None:
            self._study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)
        elif value is not None:
            params = {field.name: at for field, at in zip(self._candidates.fields, point, strict=True)}
            self._study.add_trial(create_trial(params=params, distributions=self._distributions, value=value))

    def reserve(self, point: Point) -> None:
        self._pending[point] = None

    def believe(self, point: Point, costs: Sequence[float]) -> None:
        """Nothing is made of it: to the sampler, a belief would be a measurement."""

    def forget(self, point: Point) -> None:
        trial = self._pending.pop(point, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)

    def _is_new(self, point: Point) -> bool:
        return point not in self._costs and point not in self._pending

    def _nearest_new(self, wanted: Point) -> Point | None:
        if not isinstance(self._candidates, Table):
            return draw_new(self._candidates, self._rng, {*self._costs, *self._pending})
        new = [point for point in self._candidates.points if self._is_new(point)]
        return min(new, key=lambda point: _apart(self._candidates.fields, point, wanted), default=None)


def tpe(candidates: Candidates, weights: Sequence[float] = (1.0,), seed: int = 0) -> OptunaSearch:
    """Optuna's tree-structured Parzen estimator with its default settings."""
    return _quietly(lambda: OptunaSearch(candidates, optuna.samplers.TPESampler(seed=seed), weights, seed))


def gp(candidates: Candidates, weights: Sequence[float] = (1.0,), seed: int = 0) -> OptunaSearch:
    """Optuna's Gaussian process sampler with its default settings."""
    return _quietly(
        lambda: OptunaSearch(candidates, optuna.samplers.GPSampler(seed=seed), weights, seed, asks=_GP_ASKS)
    )


def _quietly(make: Callable[[], OptunaSearch]) -> OptunaSearch:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return make()


def _distribution(field: Field) -> BaseDistribution:
    if _is_ordered(field):
        return IntDistribution(0, len(field.values) - 1)
    return CategoricalDistribution(tuple(range(len(field.values))))


def _is_ordered(field: Field) -> bool:
    return not any(isinstance(value, str) for value in field.values)


def _is_sparse(candidates: Candidates) -> bool:
    if not isinstance(candidates, Table):
        return False
    return len(candidates.points) < _DENSE * math.prod(len(field.values) for field in candidates.fields)


def _apart(fields: Sequence[Field], one: Point, other: Point) -> float:
    """Sum over the fields of how far apart two points are, each from 0 to 1."""
    return math.fsum(
        abs(a - b) / (len(field.values) - 1) if _is_ordered(field) else float(a != b)
        for field, a, b in zip(fields, one, other, strict=True)
        if a != b
    )
