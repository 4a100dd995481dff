"""What the decode steps of a traffic are expected to cost: with the default, with what is tuned, with a portfolio.

The expected cost of a step is the mean over buckets, weighted by their steps, of what was measured at
the bucket's own shape, every request full. Buckets of which not all is measured are left out, and the
weights of the others made to sum to 1: nothing is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..db.records import Kind
from ..db.store import Store
from ..kernel.config import KernelConfig, canonical, default_config
from ..kernel.ladder import Answer, Ladder, Provenance
from ..kernel.shapes import PfaFamily, PfaShape, Workload
from .known import Known
from .portfolio import Costs, Portfolio, choose
from .traffic import Load, Traffic

#: Verified configurations and what they cost at each shape.
KnownCosts = Mapping[KernelConfig, Mapping[PfaShape, float]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured of a family: verified configurations, its defaults, and what is served for each bucket."""

    known: KnownCosts
    defaults: Mapping[PfaShape, float]
    served: Mapping[PfaShape, Answer]


@dataclass(frozen=True, slots=True)
class Row:
    """A bucket with its costs, in the environment's unit: None where that was not measured.

    ``config`` is what is served for the bucket and ``provenance`` where that comes from; where it is the
    default, for want of anything else, nothing counts as tuned.
    """

    load: Load
    default: float | None
    tuned: float | None
    config: KernelConfig
    provenance: Provenance
    portfolio: float | None = None
    portfolio_config: KernelConfig | None = None

    @property
    def is_covered(self) -> bool:
        """Whether the bucket counts in the expected costs."""
        return self.default is not None and self.tuned is not None


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Expected costs of a decode step over the buckets of which all is known; None if there are none.

    ``coverage`` is the share of all steps that these buckets have. ``chosen`` is the portfolio:
    the fewest verified configurations within its limit of the fastest at each of these buckets.
    """

    rows: tuple[Row, ...]
    coverage: float
    default: float | None
    tuned: float | None
    portfolio: float | None
    chosen: Portfolio | None

    @property
    def tuned_configs(self) -> int:
        """How many configurations are served for the buckets that count: as many kernels are compiled."""
        return len({row.config for row in self.rows if row.is_covered})


def report(traffic: Traffic, evidence: Evidence, limit: float | None = None) -> TrafficReport:
    """The report; ``limit`` is the portfolio's, 0.05 for 5 % over the fastest known, its default where None.

    Raises:
        ValueError: ``limit`` is no number from 0.
    """
    rows = [_row(load, evidence) for load in traffic.loads]
    covered = [row for row in rows if row.is_covered]
    chosen = _portfolio(covered, evidence.known, limit) if covered else None
    if chosen is not None:
        by_size = {choice.size: choice.config for choice in chosen.choices}
        rows = [_with_portfolio(row, by_size.get(_size(row.load.shape)), evidence.known) for row in rows]
        covered = [row for row in rows if row.is_covered]
    return TrafficReport(
        tuple(rows),
        math.fsum(row.load.weight for row in covered),
        _expected([(row.load.steps, row.default) for row in covered]),
        _expected([(row.load.steps, row.tuned) for row in covered]),
        _expected([(row.load.steps, row.portfolio) for row in covered]),
        chosen,
    )


def _row(load: Load, evidence: Evidence) -> Row:
    answer = evidence.served[load.shape]
    tuned = None
    if answer.provenance != "default":
        tuned = evidence.known.get(answer.config, {}).get(load.shape)
    return Row(load, evidence.defaults.get(load.shape), tuned, answer.config, answer.provenance)


def _portfolio(covered: list[Row], known: KnownCosts, limit: float | None) -> Portfolio:
    sizes = {row.load.shape: _size(row.load.shape) for row in covered}
    costs = {
        config: {sizes[shape]: cost for shape, cost in row.items() if shape in sizes} for config, row in known.items()
    }
    weights = {_size(row.load.shape): float(row.load.steps) for row in covered}
    return choose(Costs.of(list(weights), costs, weights), limit)


def _with_portfolio(row: Row, config: KernelConfig | None, known: KnownCosts) -> Row:
    cost = known[config].get(row.load.shape) if config is not None else None
    return replace(row, portfolio=cost, portfolio_config=config)


def _expected(costs: list[tuple[int, float | None]]) -> float | None:
    """The mean by steps; None of none, or if a cost is not known."""
    known = [(steps, cost) for steps, cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return None
    return math.fsum(steps * cost for steps, cost in known) / sum(steps for steps, _ in known)


def _size(shape: PfaShape) -> tuple[int, int]:
    return shape.b, shape.s2


def evidence_of(store: Store, env_id: int, traffic: Traffic) -> Evidence:
    """What an environment's measurements say of a traffic's buckets.

    Raises:
        StoreError: the database cannot be read.
    """
    family = traffic.family
    workloads = tuple(Workload(load.shape) for load in traffic.loads)
    known = Known(workloads)
    wanted = set(workloads)
    for row in store.measurements(env_id, family=family):
        if row.kind is not Kind.ENVIRONMENT_FAULT and row.workload in wanted:
            known.add(row)
    costs = {config: _costs(known, config) for config in known.configs}
    verdicts = {config: store.verification(env_id, family, config.digest) for config, row in costs.items() if row}
    ladder = Ladder()
    for shape, entry in store.served(env_id)[1]:
        if shape.family == family:
            ladder.add(shape, entry)
    ladder.settle()
    defaults = {load.shape: costs.get(_default(load.shape, family), {}).get(load.shape) for load in traffic.loads}
    return Evidence(
        {config: costs[config] for config, verdict in verdicts.items() if verdict is not None and verdict.passed},
        {shape: cost for shape, cost in defaults.items() if cost is not None},
        {load.shape: ladder.lookup(load.shape) for load in traffic.loads},
    )


def _costs(known: Known, config: KernelConfig) -> dict[PfaShape, float]:
    return {row.workload.shape: row.cost for row in known.rows(config) if row.cost is not None}


def _default(shape: PfaShape, family: PfaFamily) -> KernelConfig:
    return canonical(default_config(shape), family)
