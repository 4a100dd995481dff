"""Every choice of the space means one configuration, and the other way round, whatever the shape."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfatune.autotune.space import Space, space_for
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.legality import violations
from pfatune.kernel.shapes import CASES, MAX_BLOCK_SIZE, MAX_HEAD_DIM, MAX_HEADS, MAX_S2, PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR

#: Families that the named cases say nothing of.
ODD = {
    "page of 32": PfaShape(b=2, s2=8192, block_size=32),
    "page of 96": PfaShape(b=2, s2=1000, block_size=96),
    "page of 160": PfaShape(b=2, s2=4000, block_size=160),
    "page of 1024": PfaShape(b=2, s2=3000, block_size=1024),
    "less than a page": PfaShape(b=1, s2=10, block_size=1024),
    "less than a small page": PfaShape(b=1, s2=10, block_size=32),
    "less than the default's tile": PfaShape(b=1, s2=64, block_size=64),
    "as many KV heads as heads": PfaShape(b=1, s2=500, nq=8, nkv=8),
    "prime group": PfaShape(b=1, s2=500, nq=13),
    "group of 192": PfaShape(b=1, s2=500, nq=192),
    "largest group": PfaShape(b=1, s2=500, nq=256),
    "smallest head": PfaShape(b=1, s2=500, qd=32),
    "head of 160": PfaShape(b=1, s2=500, qd=160),
    "largest head": PfaShape(b=1, s2=500, qd=512),
}
SHAPES = list(CASES.values()) + list(ODD.values())
spaces = st.sampled_from(SHAPES).map(lambda shape: space_of(shape))
seeds = st.integers(0, 2**32)
#: A busy machine fails no test.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def space_of(shape: PfaShape, *, backend: str = "sim") -> Space:
    return space_for([Workload(shape)], ASCEND_950PR, backend=backend)


@st.composite
def any_shape(draw: st.DrawFn) -> PfaShape:
    nkv = draw(st.integers(1, 16))
    return PfaShape(
        b=1,
        s2=draw(st.integers(1, MAX_S2)),
        nq=nkv * draw(st.integers(1, MAX_HEADS // nkv)),
        nkv=nkv,
        qd=32 * draw(st.integers(1, MAX_HEAD_DIM // 32)),
        block_size=32 * draw(st.integers(1, MAX_BLOCK_SIZE // 32)),
    )


def check(space: Space, shape: PfaShape) -> None:
    """The default is in the space, and there is something else to try."""
    default = canonical(default_config(shape), shape.family)
    params = space.params(default)
    assert params is not None
    assert space.config(params) == default
    found = space.random(random.Random(0))
    assert found is not None
    assert space.legal(found)
    assert space.params(found) is not None


@pytest.mark.parametrize("name", CASES)
def test_the_default_of_each_case_is_in_the_space_and_legal(name: str) -> None:
    check(space_of(CASES[name]), CASES[name])
    assert violations(default_config(CASES[name]), CASES[name].family, ASCEND_950PR) == []


@pytest.mark.parametrize("name", ODD)
def test_odd_shapes_have_a_usable_space(name: str) -> None:
    check(space_of(ODD[name]), ODD[name])


@unhurried
@given(any_shape())
def test_any_shape_has_a_usable_space(shape: PfaShape) -> None:
    check(space_of(shape), shape)


@unhurried
@given(spaces, seeds)
def test_choices_and_configuration_are_one_to_one(space: Space, seed: int) -> None:
    config = space.random(random.Random(seed))
    assert config is not None
    assert violations(config, space.family, space.soc) == []
    assert canonical(config, space.family) == config
    params = space.params(config)
    assert params is not None
    assert space.config(params) == config
    assert all(value in space.choices[name] for name, value in params.items())
    assert set(params) == set(space.choices)


@unhurried
@given(spaces, st.data())
def test_any_combination_of_choices_is_canonical(space: Space, data: st.DataObject) -> None:
    params = {name: data.draw(st.sampled_from(values), label=name) for name, values in space.choices.items()}
    config = space.config(params)
    assert canonical(config, space.family) == config
    if space.legal(config):
        assert space.params(config) is not None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_choices_are_ascending_and_without_repeats(shape: PfaShape) -> None:
    for name, values in space_of(shape, backend="npu").choices.items():
        numbers = [n for n in values if isinstance(n, int)]
        assert values, name
        assert numbers == sorted(set(numbers))
        assert len(set(values)) == len(values)


@unhurried
@given(spaces, seeds)
def test_neighbours_are_legal_and_differ_from_each_other(space: Space, seed: int) -> None:
    config = space.random(random.Random(seed))
    assert config is not None
    found = list(space.neighbours(config))
    assert len({config, *found}) == len(found) + 1
    for other in found:
        assert space.legal(other)
        assert canonical(other, space.family) == other
        assert space.params(other) is not None


def test_a_neighbour_differs_in_one_choice() -> None:
    shape = CASES["pfa_fp8_b16_s1_1_s2_8k_nkv_1"]
    space = space_of(shape)
    default = canonical(default_config(shape), shape.family)
    params = space.params(default)
    assert params is not None
    single = {space.config({**params, name: value}) for name, values in space.choices.items() for value in values} - {
        default
    }
    assert set(space.neighbours(default)) == {config for config in single if space.legal(config)}


def test_the_nearest_neighbours_come_first() -> None:
    shape = CASES["pfa_fp8_b16_s1_1_s2_8k_nkv_1"]
    space = space_of(shape)
    stitched = [
        config.stitch_function_max_num
        for config in space.neighbours(canonical(default_config(shape), shape.family))
        if config.stitch_function_max_num != 128
    ]
    assert stitched == [96, 64, 32, 16]


def test_a_configuration_outside_the_space_has_no_choices_and_no_neighbours() -> None:
    large = space_of(CASES["pfa_fp8_b16_s1_1_s2_8k_nkv_1"])
    outside = large.config({name: values[-1] for name, values in large.choices.items()})
    assert outside.tile.s2_tile == 4096
    space = space_of(PfaShape(b=1, s2=1024))
    assert space.params(outside) is None
    assert list(space.neighbours(outside)) == []


@pytest.mark.parametrize(("backend", "modes"), [("sim", None), ("npu", (0, 1, 2, 3))])
def test_the_scheduling_mode_is_a_choice_on_an_npu_only(backend: str, modes: tuple[int, ...] | None) -> None:
    space = space_of(CASES["pfa_fp8_b2_s1_1_s2_1k"], backend=backend)
    assert space.choices.get("device_sched_mode") == modes
    found = {space.random(random.Random(seed)) for seed in range(60)}
    assert {config.device_sched_mode for config in found if config} == set(modes or (0,))


def test_tiles_are_no_longer_than_the_longest_sequence_needs() -> None:
    shape = PfaShape(b=2, s2=8192)
    short = space_for([Workload(shape, (300, 200))], ASCEND_950PR)
    assert short.choices["s2_tile"] == (128, 256, 512, 1024)  # 1024 is the default's
    both = space_for([Workload(shape, (300, 200)), Workload(PfaShape(b=1, s2=4000))], ASCEND_950PR)
    assert max(both.choices["s2_tile"]) == 4096


def test_the_defaults_of_all_workloads_are_in_the_space() -> None:
    shapes = [PfaShape(b=2, s2=1024), PfaShape(b=16, s2=8192)]
    space = space_for([Workload(shape) for shape in shapes], ASCEND_950PR)
    for shape in shapes:
        check(space, shape)


def test_one_family_at_a_time() -> None:
    several = [Workload(PfaShape(b=1, s2=128)), Workload(PfaShape(b=1, s2=128, nkv=2))]
    with pytest.raises(ValueError, match="2 families at once: tune shapes of one family together"):
        space_for(several, ASCEND_950PR)
    with pytest.raises(ValueError, match="0 families"):
        space_for([], ASCEND_950PR)


def test_no_legal_configuration_within_the_attempts_is_none() -> None:
    space = space_of(CASES["pfa_fp8_b2_s1_1_s2_1k"])
    assert space.random(random.Random(0), attempts=0) is None
    impossible = Space(space.family, space.soc, {**space.choices, "g_tile": (5,)})
    assert impossible.random(random.Random(0), attempts=50) is None
