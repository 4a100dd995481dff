"""Filling in what a portfolio needs, over real processes: nothing twice, nothing wrong, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import LARGE, NO_ROOM, SMALL, StandIn, cost_of, default, rows_of, stand_in_pool

from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.family_costs import FamilyCosts, Filler, Filling
from pfatune.autotune.portfolio import choose
from pfatune.autotune.trial import TrialPool
from pfatune.db import Kind, Measurement, PortfolioTerms, Store, Verification
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.slow

MIDDLE = Workload(PfaShape(b=4, s2=2048))
FAMILY = SMALL.shape.family
#: The configuration that is tuned for each; measured elsewhere it costs a ninth more than the one tuned there.
OWN = {
    workload: replace(default(SMALL), stitch_function_max_num=number)
    for number, workload in enumerate((SMALL, MIDDLE, LARGE), 1)
}
TUNED = tuple(OWN)
#: Measured everywhere, never verified; a nineteenth more than what is tuned there.
UNCHECKED = replace(default(SMALL), stitch_function_max_num=9)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TrialPool]:
    with stand_in_pool(tmp_path / "runs", tmp_path) as made:
        yield made
        assert made.running == 0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Three shapes, each with a configuration of its own tuned, and one that is good everywhere but not verified."""
    with Store.open(tmp_path / "tuned.db") as opened:
        env = opened.environment_id(StandIn().environment)
        for workload, config in OWN.items():
            rows = {
                default(workload): 2 * cost_of(config, workload),
                config: 0.9 * cost_of(config, workload),
                UNCHECKED: 0.95 * cost_of(UNCHECKED, workload),
            }
            ids = opened.add(env, [Measurement(workload, one, Kind.OK, cost) for one, cost in rows.items()])
            checked = opened.add_verification(env, Verification(FAMILY, config, True, 0.0, ()))
            opened.promote(env, ids[1], ids[0], checked)
        yield opened


def known(store: Store) -> FamilyCosts:
    return FamilyCosts(store, store.environment_id(StandIn().environment), FAMILY)


def failing(config: KernelConfig, **special: Any) -> StandIn:
    return StandIn(lambda other: special if other == config else {})


def test_each_tuned_configuration_is_measured_at_every_tuned_shape_once(store: Store, pool: TrialPool) -> None:
    family = known(store)
    assert family.tuned == OWN
    assert family.unmeasured == {
        config: tuple(other for other in TUNED if other != workload) for workload, config in OWN.items()
    }
    seen: list[Filling] = []
    backend = StandIn()
    Filler(family, backend, pool, parallel=2, watch=seen.append).measure()
    assert sorted(backend.timed, key=lambda config: config.digest) == sorted(OWN.values(), key=lambda c: c.digest)
    assert (seen[0], seen[-1].done) == (Filling("time", 0, 3), 3)
    for again in (family, known(store)):
        assert again.unmeasured == {}
        backend = StandIn()
        Filler(again, backend, pool).measure()
        assert backend.timed == []
        costs = again.costs()
        assert costs.sizes == ((2, 1024), (4, 2048), (16, 8192))
        assert set(costs.configs) == set(OWN.values())
        assert costs.cost(OWN[SMALL], (16, 8192)) == cost_of(OWN[SMALL], LARGE)
        assert costs.cost(OWN[LARGE], (16, 8192)) == 0.9 * cost_of(OWN[LARGE], LARGE)


def test_short_requests_are_none_of_a_portfolio(store: Store) -> None:
    env = store.environment_id(StandIn().environment)
    ragged = Workload(PfaShape(3, 512), (512, 7, 7))
    (row,) = store.add(env, [Measurement(ragged, OWN[SMALL], Kind.OK, 1.0)])
    (default_row,) = store.add(env, [Measurement(ragged, default(ragged), Kind.OK, 2.0)])
    store.promote(env, row, default_row, store.add_verification(env, Verification(FAMILY, OWN[SMALL], True, 0.0, ())))
    assert known(store).tuned == OWN
    assert (3, 512) not in known(store).costs().sizes


def test_what_is_chosen_is_verified_and_can_be_served(store: Store, pool: TrialPool) -> None:
    family = known(store)
    backend = StandIn()
    filler = Filler(family, backend, pool)
    filler.measure()
    filler.verify(0.06, None)
    assert backend.verified == [UNCHECKED]
    found = choose(family.costs(), 0.06)
    assert found.configs == (UNCHECKED,)
    assert found.worst == pytest.approx(0.95 / 0.9 - 1)
    terms = PortfolioTerms(0.06, None, found.worst)
    saved = store.portfolios.save(family.env_id, FAMILY, family.evidence(found.anchors), terms)
    assert set(saved.members) == set(found.anchors)
    assert saved.members == tuple((w.shape.b, w.shape.s2, UNCHECKED) for w in TUNED)
    filler.verify(0.0, None)
    assert backend.verified == [UNCHECKED]  # what is tuned was verified when it was promoted


def test_wrong_numbers_are_never_chosen_and_what_was_measured_of_them_is_void(store: Store, pool: TrialPool) -> None:
    family = known(store)
    backend = failing(UNCHECKED, wrong=True)
    filler = Filler(family, backend, pool)
    filler.measure()
    filler.verify(0.06, None)
    assert backend.verified == [UNCHECKED]
    for again in (family, known(store)):
        assert UNCHECKED not in again.costs(unverified=True).configs
        assert set(choose(again.costs(), 0.06).configs) == set(OWN.values())
    rows = [row for row in rows_of(store, TUNED) if row.config == UNCHECKED]
    assert [row.kind for row in rows] == [Kind.OK] * 3 + [Kind.WRONG_RESULT] * 3
    assert "3 elements differ" in rows[-1].message


def test_a_run_that_was_stopped_goes_on(store: Store, pool: TrialPool) -> None:
    def stop(filling: Filling) -> None:
        if filling.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Filler(known(store), StandIn(), pool, watch=stop).measure()
    assert pool.running == 0
    after = known(store).unmeasured
    assert len(after) == 2
    backend = StandIn()
    Filler(known(store), backend, pool).measure()
    assert backend.timed == list(after)
    good = [(row.config, row.workload) for row in rows_of(store, TUNED) if row.kind is Kind.OK]
    assert len(good) == len(set(good))
    store.check()


def test_a_configuration_that_fails_elsewhere_is_no_error(store: Store, pool: TrialPool) -> None:
    Filler(known(store), failing(OWN[SMALL], time={"job": "segfault"}), pool).measure()
    assert known(store).unmeasured == {}
    costs = known(store).costs()
    assert [costs.cost(OWN[SMALL], size) is None for size in costs.sizes] == [False, True, True]
    assert choose(costs, 0.12).worst == pytest.approx(1 / 0.9 - 1)


def test_a_fault_of_the_machine_is_tried_again(store: Store, pool: TrialPool, tmp_path: Path) -> None:
    once = {**NO_ROOM, "once": str(tmp_path / "once")}
    Filler(known(store), failing(OWN[MIDDLE], time=once), pool).measure()
    assert (tmp_path / "once").exists()
    assert known(store).unmeasured == {}


def test_a_machine_that_runs_nothing_is_told_and_other_results_are_kept(store: Store, pool: TrialPool) -> None:
    backend = failing(OWN[MIDDLE], time=NO_ROOM)
    with pytest.raises(WorkerSetupError, match=r"a trial could not be run \(.*space.*\): run `pfatune doctor`"):
        Filler(known(store), backend, pool, parallel=3).measure()
    assert backend.timed.count(OWN[MIDDLE]) == 3
    assert list(known(store).unmeasured) == [OWN[MIDDLE]]
