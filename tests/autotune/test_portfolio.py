"""Portfolios of a family: what is chosen, the rule for every shape, and what a shape that is left out gets."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune.family_costs import costs_of
from pfatune.autotune.landscape import Landscape, Point, read, write
from pfatune.autotune.portfolio import MAX_ANCHORS, Costs, Size, choose, leave_one_out, median, worst
from pfatune.db import Environment, Kind
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.ladder import Ladder
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload

BASE = canonical(default_config(PfaShape(2, 1024)), PfaFamily())
SIZES = st.tuples(st.integers(1, 64), st.sampled_from([1, 128, 1024, 1100, 4096, 8192]))


def config(number: int) -> KernelConfig:
    return replace(BASE, stitch_function_max_num=number)


A, B, C = config(1), config(2), config(3)


@st.composite
def family_costs(draw: st.DrawFn, most: int = 6) -> Costs:
    """Costs with gaps, each shape having one at least."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=most, unique=True))
    configs = [config(number + 1) for number in range(draw(st.integers(1, 5)))]
    values = st.integers(100, 300).map(float)
    known = {one: {size: draw(values) for size in sizes if draw(st.integers(0, 4))} for one in configs}
    for size in sizes:
        known[draw(st.sampled_from(configs))].setdefault(size, draw(values))
    return Costs.of(sizes, known)


def regret(costs: Costs, one: KernelConfig, size: Size) -> float | None:
    cost = costs.cost(one, size) if one in costs.configs else None
    return None if cost is None else cost / costs.best[costs.sizes.index(size)] - 1


@given(family_costs(), st.sampled_from([0.0, 0.05, 0.2, 1.0]))
def test_every_shape_is_within_the_limit_by_the_rule(costs: Costs, limit: float) -> None:
    found = choose(costs, limit)
    assert found.proven
    assert found.worst is not None
    assert found.worst <= limit + 1e-9
    assert [choice.size for choice in found.choices] == list(costs.sizes)
    for choice in found.choices:
        assert choice.config == found.config(*choice.size)
        assert choice.regret == pytest.approx(regret(costs, choice.config, choice.size))
    assert set(found.configs) == {choice.config for choice in found.choices}
    assert {member[2] for member in found.anchors} <= set(found.configs)


@given(family_costs(), st.integers(1, 3), SIZES)
def test_the_rule_is_what_the_runtime_evaluates(costs: Costs, most: int, size: Size) -> None:
    found = choose(costs, max_configs=most)
    assert len(found.configs) <= most
    ladder = Ladder()
    ladder.set_portfolio(PfaFamily(), found.anchors)
    for asked in (size, *costs.sizes):
        answer = ladder.lookup(PfaShape(*asked))
        assert (answer.config, answer.provenance) == (found.config(*asked), "portfolio")


@given(family_costs(), st.sampled_from([0.0, 0.1]), st.integers(1, 3))
def test_with_both_the_number_wins_over_the_limit(costs: Costs, limit: float, most: int) -> None:
    free, both = choose(costs, limit), choose(costs, limit, most)
    expected = free if len(free.configs) <= most else choose(costs, max_configs=most)
    assert both == expected


@given(family_costs(), st.sampled_from([0.05, 0.3]))
def test_a_shape_that_is_left_out_gets_what_the_others_have_for_it(costs: Costs, limit: float) -> None:
    found = leave_one_out(costs, limit)
    if len(costs.sizes) == 1:
        assert found == ()
        return
    assert [choice.size for choice in found] == list(costs.sizes)
    for choice in found:
        known = {
            one: {s: cost for s in costs.sizes if s != choice.size and (cost := costs.cost(one, s)) is not None}
            for one in costs.configs
        }
        others = Costs.of([size for size in costs.sizes if size != choice.size], known)
        assert choice.config == choose(others, limit).config(*choice.size)
        assert choice.regret == pytest.approx(regret(costs, choice.config, choice.size))


def test_fewest_configurations_then_least_mean() -> None:
    sizes = [(1, 128), (4, 1024), (16, 8192)]
    known = {
        A: dict(zip(sizes, (100.0, 100.0, 200.0), strict=True)),
        B: dict(zip(sizes, (104.0, 104.0, 100.0), strict=True)),
        C: dict(zip(sizes, (101.0, 103.0, 103.0), strict=True)),
    }
    found = choose(Costs.of(sizes, known))
    assert found.configs == (C,)
    assert found.worst == pytest.approx(0.03)
    assert choose(Costs.of(sizes, known), 0.02).configs == (A, B)
    # The shape at b=1 counts most, where C is better; the worst regret of B is less.
    weighted = Costs.of(
        sizes, {B: known[B], C: {**known[C], sizes[2]: 105.0}}, {(1, 128): 98, (4, 1024): 1, (16, 8192): 1}
    )
    assert choose(weighted, max_configs=1).configs == (B,)
    assert choose(weighted, 0.06).configs == (C,)


def test_a_shape_that_nothing_chosen_was_measured_at_has_no_regret() -> None:
    costs = Costs.of([(1, 128), (16, 8192)], {A: {(1, 128): 100.0}, B: {(16, 8192): 100.0}})
    found = choose(costs, max_configs=1)
    assert len(found.configs) == 1
    assert sorted(choice.regret is None for choice in found.choices) == [False, True]
    assert found.worst is None
    left_out = leave_one_out(costs)
    assert [choice.regret for choice in left_out] == [None, None]
    assert median(left_out) is worst(left_out) is None


def test_medians_and_worst() -> None:
    costs = Costs.of(
        [(1, 128), (2, 128), (4, 128)],
        {
            A: {(1, 128): 100.0, (2, 128): 150.0, (4, 128): 130.0},
            B: {(2, 128): 100.0, (4, 128): 100.0, (1, 128): 120.0},
        },
    )
    left_out = leave_one_out(costs)
    assert [choice.regret for choice in left_out] == pytest.approx([0.2, 0.0, 0.0])
    assert median(left_out) == statistics.median([0.2, 0.0, 0.0])
    assert worst(left_out) == pytest.approx(0.2)


def test_a_large_portfolio_keeps_few_anchors_and_the_same_answers() -> None:
    sizes = [(b, s2) for b in range(1, 17) for s2 in (128, 256, 1024, 4096, 8192)]
    known = {
        A: {size: 100.0 if size[1] <= 256 else 200.0 for size in sizes},
        B: {size: 200.0 if size[1] <= 256 else 100.0 for size in sizes},
    }
    found = choose(Costs.of(sizes, known))
    assert len(sizes) > MAX_ANCHORS >= len(found.anchors)
    assert found.worst == 0
    assert all(found.config(b, s2) == (A if s2 <= 256 else B) for b, s2 in sizes)


@pytest.mark.parametrize(
    ("sizes", "known", "message"),
    [
        ([], {A: {}}, "0 shapes are given"),
        ([(1, 128)], {}, "0 configurations are given"),
        ([(1, 128)], {A: {(1, 128): 0.0}}, "a cost or weight is 0.0"),
        ([(1, 128)], {A: {(1, 128): math.inf}}, "a cost or weight is inf"),
        ([(1, 128), (2, 128)], {A: {(1, 128): 1.0}}, "nothing is known to run at b=2 s2=128"),
    ],
)
def test_costs_that_nothing_can_be_chosen_from_are_refused(
    sizes: list[Size], known: dict[KernelConfig, dict[Size, float]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Costs.of(sizes, known)


@pytest.mark.parametrize(("limit", "most"), [(-0.1, None), (math.nan, None), (math.inf, None), (None, 0)])
def test_what_cannot_be_asked_for_is_refused(limit: float | None, most: int | None) -> None:
    costs = Costs.of([(1, 128)], {A: {(1, 128): 1.0}})
    with pytest.raises(ValueError, match="give"):
        choose(costs, limit, most)


def landscape(*workloads: Workload, points: dict[KernelConfig, tuple[float, ...]]) -> Landscape:
    environment = Environment("sim", "950PR", "0.2.0", "2.13.0", "k" * 16, "m" * 16)
    found = [Point(one, Kind.OK, costs, costs) for one, costs in points.items()]
    return Landscape(PfaFamily(), environment, workloads, (Point(C, Kind.REJECTED, message="no"), *found))


def test_a_landscape_gives_the_costs_at_its_full_shapes(tmp_path: Path) -> None:
    recorded = landscape(
        Workload(PfaShape(16, 8192)),
        Workload(PfaShape(2, 1024), (7, 1024)),
        Workload(PfaShape(1, 128)),
        points={A: (5.0, 1.0, 3.0), B: (4.0, 1.0, 4.0)},
    )
    write(recorded, tmp_path / "a.json.gz")
    costs = costs_of(read(tmp_path / "a.json.gz"))
    assert costs.sizes == ((1, 128), (16, 8192))
    assert costs.best == (3.0, 4.0)
    assert costs.cost(A, (16, 8192)) == 5.0
    assert C not in costs.configs
    with pytest.raises(ValueError, match="0 shapes are given"):
        costs_of(landscape(Workload(PfaShape(2, 1024), (7, 1024)), points={A: (1.0,)}))


def test_the_recorded_family_is_served_by_few() -> None:
    """The figures that the documentation states."""
    folder = Path(__file__).parents[2] / "benchmarks" / "landscapes"
    few = choose(costs_of(read(folder / "nkv1.json.gz")), 0.05)
    assert len(few.configs) == 4
    assert few.proven
    assert (few.worst or 1) < 0.05
    grid = costs_of(read(folder / "nkv1-grid.json.gz"))
    assert len(choose(grid, 0.05).configs) == 8
    assert (median(leave_one_out(grid, 0.05)) or 1) < 0.01
    assert (median(leave_one_out(grid, max_configs=4)) or 1) < 0.05
