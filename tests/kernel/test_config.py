"""Configurations: plain data, identity, the canonical form, and what the kernel ships."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import configs, shapes

from pfatune.kernel.config import (
    FIELD_NAMES,
    MAX_STITCHED,
    ConfigError,
    KernelConfig,
    canonical,
    default_config,
)
from pfatune.kernel.shapes import CASES, PfaShape, case

SMALL = case("pfa_fp8_b2_s1_1_s2_1k")
DIM = (128, 128)

#: The configuration around which the measured landscape below was taken.
BASE = replace(
    default_config(SMALL),
    tile=replace(default_config(SMALL).tile, s2_tile=512),
)


def round_trip(config: KernelConfig) -> KernelConfig:
    return KernelConfig.from_json(json.loads(json.dumps(config.to_json())))


@given(configs())
def test_plain_data_reads_back(config: KernelConfig) -> None:
    assert round_trip(config) == config
    assert round_trip(config).digest == config.digest


@given(shapes())
def test_every_default_reads_back(shape: PfaShape) -> None:
    config = default_config(shape)
    assert round_trip(config) == config
    shipped = canonical(config, shape.family)
    assert round_trip(shipped) == shipped


def test_plain_data_has_the_names_of_pypto_in_order() -> None:
    assert tuple(BASE.to_json()) == FIELD_NAMES
    assert FIELD_NAMES == (
        "g_tile",
        "s2_tile",
        "c1_tile_shape",
        "v1_tile_shape",
        "c2_tile_shape",
        "v2_tile_shape",
        "unroll_list",
        "cube_l1_reuse_setting",
        "vec_nbuffer_setting",
        "cube_nbuffer_setting",
        "stitch_function_max_num",
        "device_sched_mode",
    )


def test_the_scheduling_mode_may_be_left_out() -> None:
    data = BASE.to_json()
    del data["device_sched_mode"]
    assert KernelConfig.from_json(data) == BASE


def test_automatic_settings_read_back() -> None:
    config = replace(BASE, cube_nbuffer_setting=())
    assert config.to_json()["cube_nbuffer_setting"] == {}
    assert round_trip(config) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("g_tile", 12.0),
        ("s2_tile", True),
        ("s2_tile", "128"),
        ("c1_tile_shape", [[128, 128], [128, 128]]),
        ("c1_tile_shape", [[128, 128], [128, 128], [128]]),
        ("c2_tile_shape", 128),
        ("v1_tile_shape", [128]),
        ("v2_tile_shape", [128, None]),
        ("unroll_list", 8),
        ("unroll_list", [8, "4"]),
        ("cube_l1_reuse_setting", [[-1, 8]]),
        ("vec_nbuffer_setting", {"all": 4}),
        ("cube_nbuffer_setting", {"-1": "4"}),
        ("stitch_function_max_num", None),
        ("device_sched_mode", 1.0),
    ],
)
def test_a_field_of_the_wrong_form_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        KernelConfig.from_json({**BASE.to_json(), field: value})


def test_missing_and_unknown_fields_are_refused_by_name() -> None:
    data = BASE.to_json()
    with pytest.raises(ConfigError, match="unknown field 'tile'"):
        KernelConfig.from_json({**data, "tile": 1})
    del data["s2_tile"]
    with pytest.raises(ConfigError, match="lacks s2_tile"):
        KernelConfig.from_json(data)


def test_the_digest_does_not_change_between_releases() -> None:
    """Stored measurements are found by it."""
    assert default_config(SMALL).digest == "9e2f84b4e3c0dcc5"


@given(configs(), configs())
def test_the_digest_tells_configurations_apart(one: KernelConfig, other: KernelConfig) -> None:
    assert (one.digest == other.digest) == (one == other)


@given(configs(), shapes())
def test_the_canonical_form_is_its_own_canonical_form(config: KernelConfig, shape: PfaShape) -> None:
    once = canonical(config, shape.family)
    assert canonical(once, shape.family) == once


@given(configs(), shapes(), st.data())
def test_spellings_of_one_kernel_share_their_canonical_form(
    config: KernelConfig, shape: PfaShape, data: st.DataObject
) -> None:
    """The L1 sizes of m and n, which PyPTO does not read, and the order of lists and settings."""
    unread = st.integers(1, 4096)

    def respell(cube: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]) -> Any:
        (m, _), k, (n, _) = cube
        return ((m, data.draw(unread)), k, (n, data.draw(unread)))

    repeats = data.draw(st.sampled_from([(), (1,), config.unroll_list]))
    other = replace(
        config,
        tile=replace(
            config.tile,
            c1_tile_shape=respell(config.tile.c1_tile_shape),
            c2_tile_shape=respell(config.tile.c2_tile_shape),
        ),
        unroll_list=tuple(data.draw(st.permutations(config.unroll_list + repeats))),
        cube_l1_reuse_setting=tuple(data.draw(st.permutations(config.cube_l1_reuse_setting))),
        vec_nbuffer_setting=tuple(data.draw(st.permutations(config.vec_nbuffer_setting))),
        cube_nbuffer_setting=tuple(data.draw(st.permutations(config.cube_nbuffer_setting))),
    )
    assert canonical(other, shape.family) == canonical(config, shape.family)
    assert canonical(other, shape.family).digest == canonical(config, shape.family).digest


@pytest.mark.parametrize(
    "change",
    [
        {"c1_tile_shape": ((16, 16), DIM, DIM)},
        {"c1_tile_shape": (DIM, (256, 256), DIM)},
        {"v2_tile_shape": (128, 128)},
    ],
)
def test_tiles_beyond_their_tensor_are_clipped(change: dict[str, Any]) -> None:
    """12 query heads and 128 channels: the compiler gave these the same cycles as the base."""
    other = replace(BASE, tile=replace(BASE.tile, **change))
    assert canonical(other, SMALL.family) == canonical(BASE, SMALL.family)


@pytest.mark.parametrize(
    "change",
    [
        {"s2_tile": 256},
        {"g_tile": 6},
        {"c1_tile_shape": (DIM, DIM, (256, 256))},
        {"v1_tile_shape": (128, 64)},
        {"v2_tile_shape": (128, 64)},
    ],
)
def test_tiles_that_were_measured_apart_stay_apart(change: dict[str, Any]) -> None:
    other = replace(BASE, tile=replace(BASE.tile, **change))
    assert canonical(other, SMALL.family) != canonical(BASE, SMALL.family)


@pytest.mark.parametrize(
    "change",
    [
        {"unroll_list": (16, 8, 4, 2, 1)},
        {"cube_l1_reuse_setting": ((-1, 2),)},
        {"vec_nbuffer_setting": ()},
        {"cube_nbuffer_setting": ((-1, 1),)},
        {"stitch_function_max_num": 64},
        {"device_sched_mode": 1},
    ],
)
def test_options_are_part_of_the_identity(change: dict[str, Any]) -> None:
    assert canonical(replace(BASE, **change), SMALL.family) != canonical(BASE, SMALL.family)


@pytest.mark.parametrize("number", [129, 512, 1024])
def test_a_stitch_that_pypto_does_not_survive_is_capped(number: int) -> None:
    capped = replace(BASE, stitch_function_max_num=MAX_STITCHED)
    assert canonical(replace(BASE, stitch_function_max_num=number), SMALL.family) == canonical(capped, SMALL.family)


def test_options_reach_pypto_as_dictionaries() -> None:
    config = default_config(SMALL)
    assert config.pass_options == {
        "cube_l1_reuse_setting": {-1: 8},
        "vec_nbuffer_setting": {-1: 4},
        "cube_nbuffer_setting": {-1: 4},
    }
    assert config.runtime_options == {"stitch_function_max_num": 512, "device_sched_mode": 0}


@pytest.mark.parametrize(
    ("name", "g_tile", "s2_tile"),
    [
        ("pfa_fp8_b1_s1_2_s2_2048_nkv_8", 6, 128),
        ("pfa_fp8_b16_s1_1_s2_8195_nkv_2", 6, 128),
        ("pfa_fp8_b16_s1_1_s2_8k_nkv_1", 12, 1024),
        ("pfa_fp8_b16_s1_1_s2_8k_nkv_2", 6, 1024),
        ("pfa_fp8_b2_s1_1_s2_1k", 12, 128),
        ("pfa_fp8_b16_s1_1_s2_256_nkv_4", 4, 128),
    ],
)
def test_the_default_is_what_the_kernel_ships(name: str, g_tile: int, s2_tile: int) -> None:
    config = default_config(case(name))
    assert config.tile.g_tile == g_tile
    assert config.tile.s2_tile == s2_tile
    assert config.tile.c1_tile_shape == (DIM, DIM, DIM)
    assert config.tile.c2_tile_shape == (DIM, DIM, DIM)
    assert config.tile.v2_tile_shape == (128, 256)
    if s2_tile == 128:
        assert config.tile.v1_tile_shape == (128, 128)
    assert config.unroll_list == (8, 4, 2, 1)
    assert config.pass_options == default_config(SMALL).pass_options
    assert config.runtime_options == default_config(SMALL).runtime_options


@given(shapes())
def test_only_s2_8192_has_a_long_default_tile(shape: PfaShape) -> None:
    long = 1024 if shape.s2 == 8192 else 128
    assert default_config(shape).tile.s2_tile == -(-long // shape.block_size) * shape.block_size
    assert default_config(shape).tile.g_tile == shape.group


def test_every_case_has_a_default() -> None:
    assert {name: default_config(shape).tile.g_tile * shape.nkv for name, shape in CASES.items()} == {
        name: shape.nq for name, shape in CASES.items()
    }
