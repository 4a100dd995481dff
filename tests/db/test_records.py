"""Records refuse what could never have been measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from db_examples import NPU, SIM, WORKLOAD, config, measured, verified

from pfatune.db import Kind, Measurement


def test_unit_of_a_cost_is_that_of_its_backend() -> None:
    assert SIM.unit == "cycles"
    assert NPU.unit == "us"


def test_backend_must_be_known() -> None:
    with pytest.raises(ValueError, match="backend is 'gpu': use one of sim, npu"):
        replace(SIM, backend="gpu")


def test_environments_differ_by_any_field() -> None:
    assert len(SIM.digest) == 16
    assert SIM.digest == replace(SIM).digest
    for name in SIM.to_json():
        if name != "backend":
            assert replace(SIM, **{name: "other"}).digest != SIM.digest


@pytest.mark.parametrize("kind", list(Kind))
def test_cost_goes_with_ok_and_only_with_ok(kind: Kind) -> None:
    right, wrong = (1.0, None) if kind is Kind.OK else (None, 1.0)
    assert Measurement(WORKLOAD, config(), kind, right).cost == right
    with pytest.raises(ValueError, match=f"kind is {kind} and cost is"):
        Measurement(WORKLOAD, config(), kind, wrong)


@pytest.mark.parametrize("cost", [0.0, -1.0, math.inf, math.nan])
def test_cost_is_finite_and_above_zero(cost: float) -> None:
    with pytest.raises(ValueError, match="cost is"):
        measured(cost)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", (1.0, math.nan)),
        ("seconds", -1),
        ("run_seconds", math.inf),
        ("peak_bytes", -1),
        ("peak_bytes", 2**63),
    ],
)
def test_numbers_that_no_clock_gives_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        replace(measured(), **{field: value})


def test_output_of_a_crashed_child_is_made_storable() -> None:
    assert replace(measured(), message="a\0b\udcff").message == "a\N{REPLACEMENT CHARACTER}b?"


@pytest.mark.parametrize("diff", [math.nan, math.inf])
def test_difference_that_is_no_number_becomes_none(diff: float) -> None:
    assert replace(verified(passed=False), max_abs_diff=diff).max_abs_diff is None
