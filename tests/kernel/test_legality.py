"""Legality: what is refused, why, and that refusing is consistent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import configs, shapes

from pfatune.kernel.config import KernelConfig, PfaTileShapeConfig, canonical, default_config
from pfatune.kernel.legality import Violation, violations
from pfatune.kernel.shapes import CASES, PfaFamily, PfaShape
from pfatune.kernel.soc import ASCEND_950PR, SOCS, Soc

FAMILY = PfaFamily()
LEGAL = default_config(PfaShape(b=16, s2=8192))

_any = st.integers() | st.integers(-64, 4096)
_pairs = st.tuples(_any, _any)
_cubes = st.tuples(_pairs, _pairs, _pairs)
_settings = st.lists(_pairs, max_size=4).map(tuple)
wild = st.builds(
    KernelConfig,
    tile=st.builds(PfaTileShapeConfig, _any, _any, _cubes, _pairs, _cubes, _pairs),
    unroll_list=st.lists(_any, max_size=9).map(tuple),
    cube_l1_reuse_setting=_settings,
    vec_nbuffer_setting=_settings,
    cube_nbuffer_setting=_settings,
    stitch_function_max_num=_any,
    device_sched_mode=_any,
)
families = shapes().map(lambda shape: shape.family)


def mutated(**changes: Any) -> KernelConfig:
    """The legal configuration with some fields changed, those of its tile among them."""
    tile = {name: changes.pop(name) for name in list(changes) if hasattr(LEGAL.tile, name)}
    return replace(LEGAL, tile=replace(LEGAL.tile, **tile), **changes)


def rules(found: list[Violation]) -> Counter[tuple[str, str]]:
    """What is broken, without the numbers that depend on the chip."""
    return Counter((v.field, "".join(c for c in v.message if not c.isdigit())) for v in found)


@given(shapes(), st.sampled_from(sorted(SOCS)))
def test_the_default_is_legal_for_common_heads(shape: PfaShape, soc: str) -> None:
    """Not for every shape: it has a v2 of 256 columns over a c2 of 128, a v1 of 128 rows, and,
    with pages that do not divide 1024 tokens, an s2_tile of up to 1984 unrolled eight times.
    """
    default = default_config(shape)
    assume(shape.qd <= 128 and shape.group <= 128 and default.tile.s2_tile <= 1024)
    assert violations(default, shape.family, SOCS[soc]) == []


@pytest.mark.parametrize("shape", CASES.values(), ids=list(CASES))
def test_the_default_of_each_named_case_is_legal(shape: PfaShape) -> None:
    assert violations(default_config(shape), shape.family, ASCEND_950PR) == []


@given(wild | configs(), families)
def test_the_canonical_form_is_legal_exactly_if_the_configuration_is(config: KernelConfig, family: PfaFamily) -> None:
    found = violations(config, family, ASCEND_950PR)
    try:
        shape = canonical(config, family)
    except (ArithmeticError, ValueError):
        assert found
    else:
        assert bool(violations(shape, family, ASCEND_950PR)) == bool(found)


@given(wild, families)
def test_any_numbers_are_judged_in_one_line_each(config: KernelConfig, family: PfaFamily) -> None:
    for violation in violations(config, family, ASCEND_950PR):
        assert violation.message.startswith(violation.field)
        assert violation.message.isprintable()
        assert ": " in violation.message
        assert str(violation.value) in violation.message
        assert str(violation.limit) in violation.message


@given(wild | configs(), families, st.floats(0.0, 1.0))
def test_a_smaller_chip_never_allows_more(config: KernelConfig, family: PfaFamily, share: float) -> None:
    full = ASCEND_950PR
    memories = ("l0a_bytes", "l0b_bytes", "l0c_bytes", "l1_bytes", "ub_bytes")
    smaller: Soc = replace(full, **{name: int(getattr(full, name) * share) for name in memories})
    assert rules(violations(config, family, full)) <= rules(violations(config, family, smaller))


DIM = (128, 128)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("g_tile", 0),
        ("g_tile", -3),
        ("g_tile", 5),
        ("s2_tile", 0),
        ("s2_tile", 192),
        ("s2_tile", 1 << 20),
        ("c1_tile_shape", ((0, 0), DIM, DIM)),
        ("c1_tile_shape", ((8, 8), DIM, DIM)),
        ("c1_tile_shape", (DIM, (48, 96), DIM)),
        ("c1_tile_shape", (DIM, (0, 0), DIM)),
        ("c1_tile_shape", (DIM, (-32, -32), DIM)),
        ("c1_tile_shape", (DIM, (64, 96), DIM)),
        ("c1_tile_shape", (DIM, DIM, (100, 100))),
        ("c1_tile_shape", (DIM, DIM, (1024, 1024))),
        ("c2_tile_shape", (DIM, (1024, 1024), DIM)),
        ("c2_tile_shape", (DIM, (128, 64), DIM)),
        ("v1_tile_shape", (0, 128)),
        ("v1_tile_shape", (128, 0)),
        ("v1_tile_shape", (128, 100)),
        ("v2_tile_shape", (-1, 128)),
        ("v2_tile_shape", (128, 40)),
        ("unroll_list", (8, 0)),
        ("unroll_list", (1000,)),
        ("unroll_list", (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        ("cube_l1_reuse_setting", ((-2, 1),)),
        ("cube_l1_reuse_setting", ((-1, -1),)),
        ("vec_nbuffer_setting", ((-1, 0),)),
        ("cube_nbuffer_setting", ((3, 0),)),
        ("cube_nbuffer_setting", ((-1, 1 << 20),)),
        ("stitch_function_max_num", 0),
        ("unroll_list", (16,)),
        ("device_sched_mode", 4),
        ("device_sched_mode", -1),
    ],
)
def test_one_change_breaks_one_rule_of_its_field(field: str, change: object) -> None:
    assert violations(LEGAL, FAMILY, ASCEND_950PR) == []
    found = violations(mutated(**{field: change}), FAMILY, ASCEND_950PR)
    assert {violation.field for violation in found} == {field}


@pytest.mark.parametrize(
    ("s2_tile", "v1", "v2", "field"),
    [
        (512, (60, 512), (60, 128), None),
        (512, (60, 512), (60, 512), None),
        (512, (60, 416), (60, 512), "v1_tile_shape"),
        (512, (60, 320), (60, 512), None),
    ],
)
def test_ub_holds_what_was_measured(s2_tile: int, v1: tuple[int, int], v2: tuple[int, int], field: str | None) -> None:
    """Three FP32 tiles of v1 where it is narrower than s2_tile, two elsewhere."""
    dim = (64, 64)
    tile = PfaTileShapeConfig(60, s2_tile, (dim, dim, dim), v1, (dim, DIM, (512, 512)), v2)
    found = violations(replace(LEGAL, tile=tile), PfaFamily(nq=60, qd=512), ASCEND_950PR)
    assert [violation.field for violation in found] == ([field] if field else [])


def test_a_row_too_wide_for_ub_names_its_v2() -> None:
    dim = (64, 64)
    tile = PfaTileShapeConfig(62, 128, (dim, dim, dim), (62, 64), (dim, DIM, (512, 512)), (62, 512))
    found = violations(replace(LEGAL, tile=tile), PfaFamily(nq=62, qd=512), ASCEND_950PR)
    assert [(violation.field, violation.value) for violation in found] == [("v2_tile_shape", 254208)]


def test_what_pypto_does_not_read_is_not_judged() -> None:
    """L1 of m and n, and whatever is clipped to the tensors."""
    cube = ((16, 24), DIM, (128, 130))
    config = mutated(c1_tile_shape=cube, v1_tile_shape=(4096, 1 << 20), unroll_list=())
    assert violations(config, FAMILY, ASCEND_950PR) == []


def test_an_empty_setting_is_automatic() -> None:
    config = mutated(cube_l1_reuse_setting=(), vec_nbuffer_setting=(), cube_nbuffer_setting=())
    assert violations(config, FAMILY, ASCEND_950PR) == []
