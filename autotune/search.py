"""Which configuration to try next: Optuna's sampler and the neighbours of the best, over canonical configs.

The study lives in memory and is rebuilt from stored measurements, so resuming and starting
are one mechanism. Only legal, canonical configurations that were neither measured nor are
being measured are proposed: illegal and repeated suggestions cost microseconds, trials seconds.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial

from ..kernel.config import KernelConfig, canonical
from .space import Choice, Params, Space

#: What a failed configuration counts as, relative to the worst that succeeded.
_FAILURE_PENALTY = math.log(2)
_ASKS = 64  # suggestions of the sampler that may be illegal or known before a random one is taken
_STARTUP_TRIALS = 8
_LOCAL_SHARE = 0.85  # of the proposals after the start are neighbours of the best few
_ONE_FIELD = 0.7  # of those change one parameter, the rest two
#: How often a local step tries a parameter, relative to the others: on the cost model these move
#: the cost, while L0 sizes and output tiles hardly do.
_STEP_WEIGHTS = {
    "s2_tile": 4.0,
    "vec_nbuffer": 4.0,
    "cube_nbuffer": 4.0,
    "cube_l1_reuse": 4.0,
    "c2_k_l1": 3.0,
    "v1_n": 3.0,
    "unroll_list": 2.0,
    "g_tile": 2.0,
    "c1_n": 1.5,
}


class Search:
    """Proposes configurations of a space and learns from their costs.

    A cost here is the objective: log of cost over the default's, averaged over the shapes
    asked for. ``seed`` makes the proposals repeatable.
    """

    def __init__(self, space: Space, starts: Iterable[KernelConfig], *, seed: int = 0) -> None:
        self._space = space
        self._rng = random.Random(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_STARTUP_TRIALS
            )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in space.choices.items()
        }
        self._costs: dict[KernelConfig, float | None] = {}
        self._pending: dict[KernelConfig, optuna.trial.Trial | None] = {}
        self._starts = [config for config in starts if space.legal(config)]

    @property
    def best(self) -> KernelConfig | None:
        """The configuration of the lowest cost so far."""
        known = [(cost, index, config) for index, (config, cost) in enumerate(self._costs.items()) if cost is not None]
        return min(known)[2] if known else None

    def propose(self) -> KernelConfig | None:
        """A configuration to measure, or None if nothing new is left to propose.

        It counts as being measured until ``learn`` or ``forget`` is called with it.
        """
        while self._starts:
            config = self._starts.pop(0)
            if self._is_new(config):
                self._pending[config] = None
                return config
        if self.best is not None and self._rng.random() < _LOCAL_SHARE:
            config_or_none = self._near_best()
            if config_or_none is not None:
                self._pending[config_or_none] = None
                return config_or_none
        return self._ask() or self._any()

    def learn(self, config: KernelConfig, cost: float | None) -> None:
        """Record a measured configuration; ``cost`` None means that it failed."""
        trial = self._pending.pop(config, None)
        if config in self._costs:
            return
        self._costs[config] = cost
        value = self._failure_value() if cost is None else cost
        if trial is not None:
            self._study.tell(trial, value)
            return
        params = self._space.params(config)
        if params is not None:
            self._study.add_trial(create_trial(params=dict(params), distributions=self._distributions, values=[value]))

    def reject(self, config: KernelConfig) -> None:
        """A measured configuration turned out wrong: its neighbours are no longer sought for its sake."""
        if config in self._costs:
            self._costs[config] = None

    def forget(self, config: KernelConfig) -> None:
        """Take back a proposal that was not measured; it may be proposed again."""
        trial = self._pending.pop(config, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)

    def _is_new(self, config: KernelConfig) -> bool:
        return config not in self._costs and config not in self._pending

    def _ask(self) -> KernelConfig | None:
        for _ in range(_ASKS):
            trial = self._study.ask(self._distributions)
            config = self._space.config(trial.params)
            if self._is_new(config) and self._space.legal(config):
                self._pending[config] = trial
                return config
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def _near_best(self) -> KernelConfig | None:
        """A neighbour of one of the best few, one or two parameters away."""
        ranked = sorted((c for c in self._costs.items() if c[1] is not None), key=lambda item: item[1] or 0.0)
        for _ in range(_ASKS):
            base = ranked[min(int(self._rng.expovariate(1.5)), len(ranked) - 1)][0]
            params = self._space.params(base)
            if params is None:
                continue
            config = self._space.config(self._step(params))
            if not self._space.legal(config):
                config = self._space.config(self._step(params, shorten=True))
            if self._is_new(config) and self._space.legal(config):
                return config
        return None

    def _step(self, params: Params, *, shorten: bool = False) -> Params:
        """The choices with one or two of them moved; ``shorten`` doubles s2_tile and halves the unrolling."""
        changed = dict(params)
        names = list(self._space.choices)
        weights = [_STEP_WEIGHTS.get(name, 0.7) for name in names]
        for name in self._rng.choices(names, weights, k=1 if self._rng.random() < _ONE_FIELD else 2):
            step = self._rng.choice((-2, -1, -1, 1, 1, 2))
            changed[name] = self._moved(name, changed[name], step)
        if shorten:
            changed["s2_tile"] = self._moved("s2_tile", params["s2_tile"], 1)
            factors = [int(n) for n in str(params["unroll_list"]).split(",")]
            halves = [",".join(map(str, sorted({max(1, n // 2) for n in factors} | {1}, reverse=True)))]
            changed["unroll_list"] = next((h for h in halves if h in self._space.choices["unroll_list"]), "2,1")
        return changed

    def _moved(self, name: str, value: Choice, step: int) -> Choice:
        values = self._space.choices[name]
        return values[max(0, min(len(values) - 1, values.index(value) + step))]

    def _any(self) -> KernelConfig | None:
        for _ in range(_ASKS):
            config = self._space.random(self._rng)
            if config is not None and self._is_new(config):
                self._pending[config] = None
                return config
        for config in list(self._costs):
            for other in islice(self._space.neighbours(config), 200):
                if self._is_new(other):
                    self._pending[other] = None
                    return other
        return None

    def _failure_value(self) -> float:
        known = [cost for cost in self._costs.values() if cost is not None]
        return max(known, default=0.0) + _FAILURE_PENALTY


def starting_points(space: Space, default: KernelConfig) -> Iterator[KernelConfig]:
    """Where to look first: the default, then what a kernel engineer would try by hand.

    Larger s2 tiles do fewer, longer tasks, whose dispatch costs less. A softmax tile as wide as
    the s2 tile copies S in at once. A P·V tile longer than a page reads P in larger pieces, but
    V has to be gathered first, in copies that a deep vec_nbuffer merges into few tasks.
    """
    yield canonical(default, space.family)
    base = space.params(canonical(default, space.family))
    if base is None:
        return
    wide: Params = {"v1_n": 1024, "c2_k_l1": 1024, "vec_nbuffer": 8}
    changes: tuple[Params, ...] = (
        {**wide, "s2_tile": 2048, "cube_nbuffer": 2, "unroll_list": "4,1"},
        {**wide, "s2_tile": 1024},
        {**wide, "s2_tile": 512},
        {**wide, "s2_tile": 256},
        {"s2_tile": 1024, "cube_nbuffer": 2},
        {"s2_tile": 256, "v1_n": 256},
    )
    for change in changes:
        params = {**base, **change}
        if params["s2_tile"] in space.choices["s2_tile"]:
            for name in ("v1_n", "c2_k_l1"):
                params[name] = min(int(params[name]), int(params["s2_tile"]))
            yield space.config(params)
