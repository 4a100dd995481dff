"""The search proposes what is legal and new, learns from what it is told, and beats drawing at random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from statistics import mean

import pytest

from pfatune.autotune.search import Search, starting_points
from pfatune.autotune.space import Choice, Space, space_for
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import CASES, PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR

SHAPE = CASES["pfa_fp8_b16_s1_1_s2_8k_nkv_1"]
DEFAULT = canonical(default_config(SHAPE), SHAPE.family)
SPACE = space_for([Workload(SHAPE)], ASCEND_950PR)
Cost = Callable[[KernelConfig], float | None]


def search(seed: int = 0) -> Search:
    return Search(SPACE, starting_points(SPACE, default_config(SHAPE)), seed=seed)


def told(searching: Search, config: KernelConfig, cost: float | None) -> None:
    """Costs are logarithms here; a trial takes a second."""
    searching.learn(config, None if cost is None else (math.exp(cost),), 1.0)


def tiny(**choices: tuple[Choice, ...]) -> Space:
    """The space of the default's choices, but for the parameters given."""
    params = SPACE.params(DEFAULT)
    assert params is not None
    return Space(SPACE.family, SPACE.soc, {name: choices.get(name, (params[name],)) for name in SPACE.choices})


def planted(seed: int) -> Callable[[KernelConfig], float]:
    """A cost with one optimum: each parameter is worse the farther it is from a value of its own."""
    rng = random.Random(seed)
    best = {name: rng.randrange(len(values)) for name, values in SPACE.choices.items()}
    weight = {name: rng.choice((0.1, 0.3, 1.0)) for name in SPACE.choices}

    def cost(config: KernelConfig) -> float:
        params: Mapping[str, Choice] = SPACE.params(config) or {}
        return sum(
            weight[name] * abs(values.index(params[name]) - best[name]) / len(values)
            for name, values in SPACE.choices.items()
        )

    return cost


def run(searching: Search, cost: Cost, trials: int) -> list[KernelConfig]:
    """The proposals of so many trials, one at a time; each is checked."""
    proposed: list[KernelConfig] = []
    for _ in range(trials):
        config = searching.propose()
        if config is None:
            break
        assert SPACE.legal(config)
        assert canonical(config, SPACE.family) == config
        proposed.append(config)
        told(searching, config, cost(config))
    assert len(set(proposed)) == len(proposed)
    return proposed


def test_the_default_is_proposed_first() -> None:
    assert search().propose() == DEFAULT


def test_starting_points_are_tried_before_anything_else() -> None:
    starts = list(dict.fromkeys(config for config in starting_points(SPACE, DEFAULT) if SPACE.legal(config)))
    assert len(starts) > 5
    assert run(search(), planted(0), len(starts)) == starts


def test_illegal_starting_points_are_passed_over() -> None:
    illegal = SPACE.config({name: values[-1] for name, values in SPACE.choices.items()})
    assert not SPACE.legal(illegal)
    assert Search(SPACE, [illegal, DEFAULT]).propose() == DEFAULT


@pytest.mark.parametrize("seed", range(3))
def test_proposals_are_legal_and_never_repeat(seed: int) -> None:
    assert len(run(search(seed), planted(seed), 120)) == 120


def test_several_are_in_flight_at_once() -> None:
    searching, cost, flying, seen = search(), planted(1), list[KernelConfig](), set[KernelConfig]()
    rng = random.Random(0)
    for _ in range(100):
        config = searching.propose()
        assert config is not None
        assert config not in seen
        seen.add(config)
        flying.append(config)
        if len(flying) == 4:
            done = flying.pop(rng.randrange(4))
            told(searching, done, cost(done))


def test_the_same_seed_proposes_the_same() -> None:
    first, second, other = (run(search(seed), planted(2), 60) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_what_was_learnt_before_is_not_proposed_again() -> None:
    """A search rebuilt from measurements, as at every start of a run."""
    cost = planted(3)
    known = run(search(0), cost, 60)
    resumed = search(0)
    for config in known:
        told(resumed, config, cost(config))
    assert not set(run(resumed, cost, 60)) & set(known)


def test_what_is_taken_back_may_come_again_and_the_rest_not() -> None:
    space = tiny(stitch=(16, 32, 64, 128), vec_nbuffer=(2, 4))
    searching = Search(space, [DEFAULT])
    proposed = [searching.propose() for _ in range(8)]
    assert searching.propose() is None
    taken_back = proposed[3]
    assert taken_back is not None
    searching.forget(taken_back)
    assert searching.propose() == taken_back
    assert searching.propose() is None


def test_taking_back_what_was_never_proposed_changes_nothing() -> None:
    searching = search()
    searching.forget(DEFAULT)
    assert searching.propose() == DEFAULT


def test_the_search_goes_on_where_everything_fails() -> None:
    assert len(run(search(), lambda config: None, 40)) == 40


def test_the_search_goes_on_when_most_fail() -> None:
    cost = planted(4)
    searching = search()
    proposed = run(searching, lambda config: cost(config) if config.tile.g_tile == 12 else None, 80)
    assert len(proposed) == 80
    later = [config.tile.g_tile == 12 for config in proposed[40:]]
    assert mean(later) > 0.5  # one in six of those drawn at random


def test_configurations_outside_the_space_are_remembered() -> None:
    outside = canonical(default_config(PfaShape(b=1, s2=1024, block_size=96)), SPACE.family)
    assert SPACE.params(outside) is None
    searching = search()
    told(searching, outside, -2.0)
    assert len(run(searching, planted(0), 30)) == 30


@pytest.mark.slow
def test_a_tiny_space_is_proposed_whole_and_then_nothing() -> None:
    space = tiny(stitch=(16, 32, 64, 96, 128), cube_nbuffer=(1, 2, 4), vec_nbuffer=(2, 4))
    searching = Search(space, [DEFAULT])
    proposed = run(searching, planted(0), 1000)
    assert len(proposed) == 30
    assert searching.propose() is None
    assert searching.propose() is None


def test_a_space_of_one_has_one_proposal() -> None:
    assert run(Search(tiny(), [DEFAULT]), planted(0), 10) == [DEFAULT]


@pytest.mark.slow
def test_a_space_without_any_legal_configuration_has_none() -> None:
    assert Search(tiny(g_tile=(5,)), []).propose() is None


@pytest.mark.slow
def test_a_thousand_known_configurations_do_no_harm() -> None:
    cost = planted(7)
    rng = random.Random(0)
    known = {config: cost(config) for config in (SPACE.random(rng) for _ in range(1000)) if config}
    assert len(known) > 900
    searching = search()
    for config, value in known.items():
        told(searching, config, value)
    start = min(value for value in known.values() if value is not None)
    proposed = run(searching, cost, 25)
    assert len(proposed) == 25
    assert not set(proposed) & set(known)
    assert min(cost(config) for config in proposed) < start


@pytest.mark.slow
def test_the_search_finds_what_random_draws_do_not() -> None:
    """At an equal budget, over several optima: well closer to the optimum than the best of as many random draws."""
    found, drawn = [], []
    for seed in range(12):
        cost, rng = planted(seed), random.Random(1000 + seed)
        found.append(min(cost(config) for config in run(search(seed), cost, 60)))
        drawn.append(min(cost(config) for _ in range(60) if (config := SPACE.random(rng))))
    assert mean(found) < 0.85 * mean(drawn)
