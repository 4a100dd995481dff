"""A landscape is written and read whole, and what is none is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pfatune.autotune import landscape
from pfatune.autotune.landscape import Landscape, LandscapeError
from pfatune.db.records import Environment, Kind, Measurement
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload

WORKLOADS = (Workload(PfaShape(b=1, s2=256)), Workload(PfaShape(b=8, s2=1024)))
FAMILY = WORKLOADS[0].shape.family
ENVIRONMENT = Environment("sim", "950PR", "0.2.0", "2.13.0", "k", "m")
FIRST = canonical(default_config(WORKLOADS[0].shape), FAMILY)
SECOND = replace(FIRST, stitch_function_max_num=16)
ROWS = [
    Measurement(WORKLOADS[0], FIRST, Kind.OK, 100.0, seconds=11.0, compile_seconds=9.0, run_seconds=1.0),
    Measurement(WORKLOADS[1], FIRST, Kind.OK, 300.0, seconds=14.0, compile_seconds=9.0, run_seconds=4.0),
    Measurement(WORKLOADS[0], SECOND, Kind.REJECTED, None, seconds=2.0, message="no"),
    Measurement(WORKLOADS[1], SECOND, Kind.REJECTED, None, seconds=2.0, message="no"),
]
RECORDED = Landscape.of(ENVIRONMENT, WORKLOADS, ROWS)


def test_measurements_become_points_in_their_order() -> None:
    first, second = RECORDED.points
    assert (first.costs, first.seconds, first.compile_seconds) == ((100.0, 300.0), 25.0, 9.0)
    assert (second.kind, second.costs, second.seconds, second.message) == (Kind.REJECTED, (), 4.0, "no")


def test_a_trial_on_fewer_workloads_takes_less() -> None:
    first, second = RECORDED.points
    assert first.seconds_for([0]) == 21.0
    assert first.seconds_for([0, 1]) == 25.0
    assert second.seconds_for([0]) == 4.0


def test_what_was_not_timed_on_every_workload_is_left_out() -> None:
    assert Landscape.of(ENVIRONMENT, WORKLOADS, ROWS[:1] + ROWS[2:]).points == RECORDED.points[1:]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_written_and_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    landscape.write(RECORDED, path)
    assert landscape.read(path) == RECORDED
    before = path.read_bytes()
    landscape.write(landscape.read(path), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "else"}, '"format" is not'),
        ({"version": 2}, "version 2"),
        ({"workloads": []}, "0 families"),
        ({"points": [{}]}, "KeyError"),
        ({"environment": {}}, "Environment"),
    ],
)
def test_what_is_no_landscape_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(LandscapeError, match=said):
        Landscape.from_json(RECORDED.to_json() | change)


@pytest.mark.parametrize("costs", [[100.0], [100.0, 0.0], [100.0, float("inf")]])
def test_costs_that_cannot_be_are_refused(costs: list[float]) -> None:
    data = json.loads(json.dumps(RECORDED.to_json()))
    data["points"][0]["costs"] = costs
    with pytest.raises(LandscapeError, match="costs"):
        Landscape.from_json(data)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"{", b"[]"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("a.json", "a.json.gz"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(LandscapeError):
            landscape.read(path)


def test_the_committed_landscapes_hold_what_they_should() -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "landscapes"
    for name, nkv, least in (("nkv1", 1, 300), ("nkv2", 2, 100), ("nkv1-grid", 1, 100)):
        path = folder / f"{name}.json.gz"
        recorded = landscape.read(path)
        assert recorded.family == PfaShape(b=1, s2=256, nkv=nkv).family
        assert len({point.config for point in recorded.points}) == len(recorded.points) >= least
        sizes = [(w.shape.b, w.shape.s2) for w in recorded.workloads]
        assert len(sizes) >= 8
        assert {b for b, _ in sizes} >= {1, 32}
        assert {s2 for _, s2 in sizes} >= {256, 16384}
        assert any(s2 % 128 for _, s2 in sizes)
        assert all(canonical(point.config, recorded.family) == point.config for point in recorded.points)
