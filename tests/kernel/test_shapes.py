"""Shapes and workloads: what is legal, what is refused and how, and the six named cases."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from strategies import shapes, workloads

from pfatune.kernel.shapes import CASES, MAX_S2, PfaFamily, PfaShape, ShapeError, Workload, case


@given(shapes())
def test_plain_data_reads_back(shape: PfaShape) -> None:
    assert PfaShape.from_json(json.loads(json.dumps(shape.to_json()))) == shape


@given(workloads())
def test_a_workload_reads_back(workload: Workload) -> None:
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


@given(shapes())
def test_the_block_table_covers_s2_and_no_block_more(shape: PfaShape) -> None:
    assert (shape.blocks_per_query - 1) * shape.block_size < shape.s2 <= shape.blocks_per_query * shape.block_size


@given(shapes())
def test_the_family_leaves_out_batch_and_length(shape: PfaShape) -> None:
    assert shape.family == PfaShape(**{**shape.to_json(), "b": 1, "s2": MAX_S2}).family
    assert shape.family.group == shape.group == shape.nq // shape.nkv


def test_fields_left_out_take_the_defaults_of_the_kernel() -> None:
    shape = PfaShape.from_json({"b": 16, "s2": 8192})
    assert shape.to_json() == {"b": 16, "s2": 8192, "s1": 1, "nq": 12, "nkv": 1, "qd": 128, "block_size": 128}
    assert shape.family == PfaFamily()


def test_a_shape_prints_all_its_fields() -> None:
    assert str(PfaShape(b=16, s2=8195, nkv=2)) == "b=16 s1=1 s2=8195 nq=12 nkv=2 qd=128 block_size=128"


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("b", 0, "0"),
        ("b", -3, "-3"),
        ("b", True, "True"),
        ("b", 2.0, "2.0"),
        ("b", "2", "'2'"),
        ("b", None, "None"),
        ("b", 1025, "1025"),
        ("s1", 0, "0"),
        ("s1", 65, "65"),
        ("s2", 0, "0"),
        ("s2", MAX_S2 + 1, "131073"),
        ("nq", 13, "13"),
        ("nq", 257, "257"),
        ("nkv", 0, "0"),
        ("qd", 100, "100"),
        ("qd", 544, "544"),
        ("block_size", 100, "100"),
        ("block_size", 2048, "2048"),
    ],
)
def test_a_refusal_names_the_field_and_shows_the_value(field: str, value: Any, shown: str) -> None:
    fields: dict[str, Any] = {"b": 2, "s2": 1024, "nkv": 2, field: value}
    with pytest.raises(ShapeError) as refusal:
        PfaShape(**fields)
    assert refusal.value.field == field
    assert f"{field} is {shown}" in str(refusal.value)


def test_more_query_tokens_than_cached_ones_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"s1 is 4, more than s2 3") as refusal:
        PfaShape(b=1, s1=4, s2=3)
    assert refusal.value.field == "s1"


@pytest.mark.parametrize(
    ("data", "field", "message"),
    [
        ({"b": 1}, "s2", "s2 is missing"),
        ({"s2": 128}, "b", "b is missing"),
        ({"b": 1, "s2": 128, "heads": 12}, "heads", "'heads' is no field of a shape: use b, s2"),
    ],
)
def test_data_that_is_no_shape_is_refused(data: dict[str, int], field: str, message: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        PfaShape.from_json(data)
    assert refusal.value.field == field
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((1024,), "actual_seq has 1 lengths for b=2"),
        ((1024, 1024, 1024), "actual_seq has 3 lengths for b=2"),
        ((1024, 1025), "actual_seq holds 1025: give lengths from s1 (2) to s2 (1024)"),
        ((1024, 1), "actual_seq holds 1: give lengths from s1 (2)"),
        ((1024, -5), "actual_seq holds -5"),
        ((1024, 2.5), "actual_seq holds 2.5"),
        ((1024, True), "actual_seq holds True"),
    ],
)
def test_lengths_that_do_not_fit_the_shape_are_refused(lengths: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        Workload(PfaShape(b=2, s1=2, s2=1024), lengths)
    assert refusal.value.field == "actual_seq"
    assert message in str(refusal.value)


def test_full_lengths_written_out_are_the_full_workload() -> None:
    shape = PfaShape(b=2, s2=1024)
    assert Workload(shape, (1024, 1024)) == Workload(shape)
    assert Workload(shape).lengths == (1024, 1024)
    assert Workload(shape, (1, 1024)).lengths == (1, 1024)


@pytest.mark.parametrize(
    ("name", "b", "s1", "s2", "nq", "nkv"),
    [
        ("pfa_fp8_b1_s1_2_s2_2048_nkv_8", 1, 2, 2048, 48, 8),
        ("pfa_fp8_b16_s1_1_s2_8195_nkv_2", 16, 1, 8195, 12, 2),
        ("pfa_fp8_b16_s1_1_s2_8k_nkv_1", 16, 1, 8192, 12, 1),
        ("pfa_fp8_b16_s1_1_s2_8k_nkv_2", 16, 1, 8192, 12, 2),
        ("pfa_fp8_b2_s1_1_s2_1k", 2, 1, 1024, 12, 1),
        ("pfa_fp8_b16_s1_1_s2_256_nkv_4", 16, 1, 256, 16, 4),
    ],
)
def test_the_cases_are_those_of_the_kernels_own_test(name: str, b: int, s1: int, s2: int, nq: int, nkv: int) -> None:
    assert case(name) == PfaShape(b=b, s1=s1, s2=s2, nq=nq, nkv=nkv, qd=128, block_size=128)


def test_there_are_six_cases() -> None:
    assert len(CASES) == 6


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ShapeError, match="case 'pfa_fp8_b3' is unknown") as refusal:
        case("pfa_fp8_b3")
    assert refusal.value.field == "case"
    for name in CASES:
        assert name in str(refusal.value)


def test_shapes_and_configurations_need_neither_torch_nor_pypto() -> None:
    program = (
        "import sys, pfatune.kernel.shapes, pfatune.kernel.config;"
        "print(*sorted({'torch', 'pypto', 'numpy'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == ""
