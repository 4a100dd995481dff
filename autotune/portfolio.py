"""Portfolios: the fewest configurations of a family that are good at all of its shapes.

Each configuration is one more kernel that an engine compiles. A portfolio has as few as keep every
shape within a stated regret of the fastest one known there, and a rule for all other shapes: the
configuration of the nearest anchor, a shape that was measured, as ``kernel.ladder`` evaluates it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..kernel.config import KernelConfig
from ..kernel.ladder import Member, nearest_member
from .cover import MAX_STEPS, Cover, Matrix, best, smallest

#: b and s2 (tokens) of a shape.
Size = tuple[int, int]

DEFAULT_LIMIT = 0.05
#: Anchors up to which all shapes are: a lookup goes through them one by one.
MAX_ANCHORS = 64
_HELD_OUT_STEPS = MAX_STEPS // 10  # of each search without one shape, of which there are as many as shapes


@dataclass(frozen=True, slots=True)
class Costs:
    """What each configuration costs at each shape of one family, in one unit.

    ``costs[i][j]`` is that of ``configs[i]`` at ``sizes[j]``, nan where it is not known. ``weights``
    say how much a shape counts in means; empty: all alike.

    Raises:
        ValueError: nothing is given, or twice; a cost or weight is no finite number above 0; a shape has no cost.
    """

    sizes: tuple[Size, ...]
    configs: tuple[KernelConfig, ...]
    costs: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("shape", self.sizes), ("configuration", self.configs)):
            if not values or len(set(values)) != len(values):
                raise ValueError(
                    f"{len(values)} {name}s are given, {len(set(values))} of them distinct: give each once"
                )
        if len(self.costs) != len(self.configs) or any(len(row) != len(self.sizes) for row in self.costs):
            raise ValueError(f"the costs are no matrix of {len(self.configs)} by {len(self.sizes)}")
        if self.weights and len(self.weights) != len(self.sizes):
            raise ValueError(f"{len(self.weights)} weights are given for {len(self.sizes)} shapes")
        for value in (*self.weights, *(cost for row in self.costs for cost in row if not math.isnan(cost))):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"a cost or weight is {value!r}: give finite numbers above 0")
        for at, size in enumerate(self.sizes):
            if all(math.isnan(row[at]) for row in self.costs):
                raise ValueError(f"nothing is known to run at b={size[0]} s2={size[1]}: leave it out")

    @classmethod
    def of(
        cls,
        sizes: Sequence[Size],
        known: Mapping[KernelConfig, Mapping[Size, float]],
        weights: Mapping[Size, float] | None = None,
    ) -> Costs:
        """The matrix of what is known at the sizes, in an order of its own; configurations known nowhere are left out.

        Raises:
            ValueError: as the class itself.
        """
        order = sorted(set(sizes))
        configs = sorted((c for c, row in known.items() if any(s in row for s in order)), key=lambda c: c.digest)
        rows = tuple(tuple(known[config].get(size, math.nan) for size in order) for config in configs)
        return cls(tuple(order), tuple(configs), rows, tuple(weights[s] for s in order) if weights else ())

    @property
    def best(self) -> tuple[float, ...]:
        """The least cost known at each shape."""
        return tuple(float(cost) for cost in np.nanmin(np.asarray(self.costs), axis=0))

    def cost(self, config: KernelConfig, size: Size) -> float | None:
        """What a configuration costs at a shape; None if it is not known."""
        cost = self.costs[self.configs.index(config)][self.sizes.index(size)]
        return None if math.isnan(cost) else cost

    def regrets(self) -> Matrix:
        """Cost over the best of the shape, less 1; inf where it is not known."""
        costs = np.asarray(self.costs, dtype=np.float64)
        found: Matrix = np.where(np.isnan(costs), np.inf, costs / np.asarray(self.best) - 1)
        return found

    def without(self, at: int) -> Costs:
        """The same without one shape."""
        sizes = self.sizes[:at] + self.sizes[at + 1 :]
        known = {
            config: {s: c for s, c in zip(self.sizes, row, strict=True) if not math.isnan(c)}
            for config, row in zip(self.configs, self.costs, strict=True)
        }
        return Costs.of(sizes, known, dict(zip(self.sizes, self.weights, strict=True)) if self.weights else None)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the rule has for a shape. ``regret`` is 0.05 for 5 % over the best known; None: not measured there."""

    size: Size
    config: KernelConfig
    regret: float | None


@dataclass(frozen=True, slots=True)
class Portfolio:
    """A set of configurations, those that serve most shapes first, and what each shape gets.

    ``anchors`` are what the rule needs. ``proven`` tells that no set is better, in the sense in
    which it was asked for; else a better one may not have been found.
    """

    configs: tuple[KernelConfig, ...]
    choices: tuple[Choice, ...]
    anchors: tuple[Member, ...]
    proven: bool

    def config(self, b: int, s2: int) -> KernelConfig:
        """What a shape gets by the rule."""
        return nearest_member(self.anchors, b, s2)

    @property
    def worst(self) -> float | None:
        """The largest regret; None if some shape's is not known."""
        return worst(self.choices)


def choose(
    costs: Costs, limit: float | None = None, max_configs: int | None = None, *, max_steps: int = MAX_STEPS
) -> Portfolio:
    """The portfolio of a family.

    With ``limit``, the fewest configurations with regret up to it at every shape; of as few, those
    of the least mean regret, then of the least worst. With ``max_configs``, at most so many with the least
    worst regret, then mean. With both, the first, or if those are too many the second; with
    neither, a limit of ``DEFAULT_LIMIT``. ``max_steps`` bounds the search, as in ``cover``.

    Raises:
        ValueError: ``limit`` is no number from 0, or ``max_configs`` is below 1.
    """
    if limit is None and max_configs is None:
        limit = DEFAULT_LIMIT
    if limit is not None and not (math.isfinite(limit) and limit >= 0):
        raise ValueError(f"limit is {limit!r}: give a finite number from 0")
    if max_configs is not None and max_configs < 1:
        raise ValueError(f"max_configs is {max_configs!r}: give 1 at least")
    regrets = costs.regrets()
    weights = costs.weights or (1.0,) * len(costs.sizes)
    found: Cover | None = None
    if limit is not None:
        found = smallest(regrets, weights, limit, max_steps=max_steps)
    if max_configs is not None and (found is None or len(found.rows) > max_configs):
        found = best(regrets, weights, max_configs, max_steps=max_steps)
    assert found is not None
    return _portfolio(costs, regrets, found)


def leave_one_out(costs: Costs, limit: float | None = None, max_configs: int | None = None) -> tuple[Choice, ...]:
    """For each shape, what the portfolio of all others has for it; nothing if there is but one shape.

    What a shape of the same kind, which was not measured, has to expect.

    Raises:
        ValueError: as ``choose``.
    """
    if len(costs.sizes) < 2:
        return ()
    regrets = costs.regrets()
    held_out = []
    for at, size in enumerate(costs.sizes):
        config = choose(costs.without(at), limit, max_configs, max_steps=_HELD_OUT_STEPS).config(*size)
        held_out.append(Choice(size, config, _finite(regrets[costs.configs.index(config), at])))
    return tuple(held_out)


def median(choices: Sequence[Choice]) -> float | None:
    """The median of the regrets that are known; None if none is."""
    known = [choice.regret for choice in choices if choice.regret is not None]
    return statistics.median(known) if known else None


def worst(choices: Sequence[Choice]) -> float | None:
    """The largest regret; None if one is not known, or there is none."""
    known = [choice.regret for choice in choices if choice.regret is not None]
    return max(known) if known and len(known) == len(choices) else None


def _portfolio(costs: Costs, regrets: Matrix, found: Cover) -> Portfolio:
    rows = list(found.rows)
    members: list[Member] = []
    for at, (b, s2) in enumerate(costs.sizes):
        row = min(rows, key=lambda row: regrets[row, at])
        if np.isfinite(regrets[row, at]):
            members.append((b, s2, costs.configs[row]))
    anchors = _condensed(members) if len(members) > MAX_ANCHORS else members
    choices = []
    for at, size in enumerate(costs.sizes):
        config = nearest_member(anchors, *size)
        choices.append(Choice(size, config, _finite(regrets[costs.configs.index(config), at])))
    used = [choice.config for choice in choices]
    configs = sorted(set(used), key=lambda config: (-used.count(config), config.digest))
    return Portfolio(tuple(configs), tuple(choices), tuple(anchors), found.proven)


def _condensed(members: Sequence[Member]) -> list[Member]:
    """Some of the members, by which all of them get the same configuration."""
    kept = [members[0]]
    while True:
        wrong = [one for one in members if nearest_member(kept, one[0], one[1]) != one[2]]
        if not wrong:
            return sorted(kept, key=lambda one: one[:2])
        kept.append(wrong[len(wrong) // 2])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
