"""Expected costs of a traffic: only of what was measured, weighted by steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune.traffic import Batching, Traffic, traffic_of
from pfatune.autotune.traffic_files import Request
from pfatune.autotune.traffic_picture import draw
from pfatune.autotune.traffic_report import Evidence, evidence_of, report
from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.ladder import Answer, Entry
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload

FAMILY = PfaFamily()
# One request after another: buckets (1, 128), (1, 192), (1, 256) of 60, 30 and 10 steps.
TRAFFIC = traffic_of([Request(0, 60, 61), Request(10**12, 140, 31), Request(10**13, 200, 11)], FAMILY, Batching())
SHAPES = [load.shape for load in TRAFFIC.loads]
DEFAULT = canonical(default_config(SHAPES[0]), FAMILY)


def changed(stitch: int) -> KernelConfig:
    return KernelConfig.from_json({**DEFAULT.to_json(), "stitch_function_max_num": stitch})


A, B = changed(64), changed(32)


def served(config: KernelConfig, shape: PfaShape) -> Answer:
    return Answer(config, "exact", shape, Entry(config, 1, 1, 1, ""))


def evidence(known: dict[KernelConfig, dict[PfaShape, float]], tuned: dict[PfaShape, KernelConfig]) -> Evidence:
    answers = {s: served(tuned[s], s) if s in tuned else Answer(DEFAULT, "default") for s in SHAPES}
    return Evidence(known, known[DEFAULT], answers)


def test_the_example_has_the_steps_it_says() -> None:
    assert [(load.shape.b, load.shape.s2, load.steps) for load in TRAFFIC.loads] == [
        (1, 128, 60),
        (1, 192, 30),
        (1, 256, 10),
    ]


def test_costs_are_weighted_by_steps() -> None:
    known = {
        DEFAULT: dict(zip(SHAPES, (100.0, 200.0, 300.0), strict=True)),
        A: dict(zip(SHAPES, (50.0, 104.0, 200.0), strict=True)),
        B: dict(zip(SHAPES, (80.0, 100.0, 100.0), strict=True)),
    }
    found = report(TRAFFIC, evidence(known, dict(zip(SHAPES, (A, B, B), strict=True))))
    assert found.coverage == pytest.approx(1)
    assert found.default == pytest.approx(0.6 * 100 + 0.3 * 200 + 0.1 * 300)
    assert found.tuned == pytest.approx(0.6 * 50 + 0.3 * 100 + 0.1 * 100)
    assert found.portfolio == pytest.approx(found.tuned)
    assert found.tuned_configs == 2
    assert found.chosen is not None
    assert set(found.chosen.configs) == {A, B}
    one = report(TRAFFIC, evidence(known, dict(zip(SHAPES, (A, B, B), strict=True))), limit=1.0)
    assert one.portfolio == pytest.approx(0.6 * 50 + 0.3 * 104 + 0.1 * 200)
    assert one.chosen is not None
    assert one.chosen.configs == (A,)


def test_buckets_that_are_not_measured_are_left_out_and_not_guessed() -> None:
    known = {DEFAULT: dict(zip(SHAPES[:2], (100.0, 200.0), strict=True)), A: {SHAPES[0]: 50.0, SHAPES[2]: 9.0}}
    found = report(TRAFFIC, evidence(known, {SHAPES[0]: A, SHAPES[1]: A, SHAPES[2]: A}))
    assert [row.is_covered for row in found.rows] == [True, False, False]
    assert found.coverage == pytest.approx(0.6)
    assert (found.default, found.tuned, found.portfolio) == (100, 50, 50)


def test_a_bucket_that_gets_the_default_for_want_of_better_is_not_tuned() -> None:
    known = {DEFAULT: dict(zip(SHAPES, (100.0, 200.0, 300.0), strict=True))}
    found = report(TRAFFIC, evidence(known, {}))
    assert (found.coverage, found.default, found.tuned, found.portfolio, found.chosen) == (0, None, None, None, None)
    assert found.tuned_configs == 0


_costs = st.lists(st.floats(1, 1e6), min_size=3, max_size=3)


@given(_costs, _costs, _costs)
def test_the_portfolio_lies_within_its_limit_of_the_fastest(
    default: list[float], one: list[float], other: list[float]
) -> None:
    known = {c: dict(zip(SHAPES, costs, strict=True)) for c, costs in ((DEFAULT, default), (A, one), (B, other))}
    tuned = {shape: min(known, key=lambda config: known[config][shape]) for shape in SHAPES}
    found = report(TRAFFIC, evidence(known, tuned))
    assert found.default is not None
    assert found.tuned is not None
    assert found.portfolio is not None
    assert found.tuned <= found.default * (1 + 1e-9)
    assert found.tuned * (1 - 1e-9) <= found.portfolio <= found.tuned * 1.05 * (1 + 1e-9)
    assert found.chosen is not None
    assert len(found.chosen.configs) <= found.tuned_configs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuned.db") as opened:
        yield opened


def test_evidence_is_what_the_store_has_verified(store: Store) -> None:
    env = store.environment_id(Environment("sim", "950PR", "0.2.0", "2.13.0", "k" * 16, "m" * 16))
    workload, near = Workload(SHAPES[0]), Workload(SHAPES[1])
    rows = [
        Measurement(workload, DEFAULT, Kind.OK, 100.0),
        Measurement(near, DEFAULT, Kind.OK, 200.0),
        Measurement(workload, A, Kind.OK, 60.0),
        Measurement(workload, A, Kind.OK, 50.0),
        Measurement(workload, B, Kind.OK, 10.0),
        Measurement(Workload(PfaShape(9, 9)), A, Kind.OK, 1.0),
        Measurement(workload, A, Kind.ENVIRONMENT_FAULT, None),
    ]
    ids = store.add(env, rows)
    verdict = store.add_verification(env, Verification(FAMILY, A, True, 0.0, (SHAPES[0],)))
    store.add_verification(env, Verification(FAMILY, B, False, 1.0, (SHAPES[0],)))
    store.promote(env, ids[3], ids[0], verdict)
    found = evidence_of(store, env, TRAFFIC)
    assert found.known == {A: {SHAPES[0]: 50.0}}
    assert found.defaults == {SHAPES[0]: 100.0, SHAPES[1]: 200.0}
    assert [found.served[shape].provenance for shape in SHAPES] == ["exact", "nearest", "nearest"]
    told = report(TRAFFIC, found)
    assert (told.default, told.tuned, told.portfolio) == (100, 50, 50)
    assert told.coverage == pytest.approx(0.6)


@pytest.mark.slow
@pytest.mark.parametrize("traffic", [TRAFFIC, traffic_of([Request(0, 5000, 9)] * 3, FAMILY, Batching())])
def test_a_traffic_is_drawn(traffic: Traffic, tmp_path: Path) -> None:
    draw(traffic, tmp_path / "t.png", title="Steps of $x$_1")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
