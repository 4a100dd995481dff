"""What may become the configuration that is served, and what is kept of those before it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from db_examples import NPU, SHAPE, SIM, WORKLOAD, config, measured, verified

from pfatune.db import PromotionError, Store, StoreError
from pfatune.db.errors import (
    DefaultMismatchError,
    NotMeasuredError,
    NotVerifiedError,
    OtherEnvironmentError,
    SlowerThanDefaultError,
    UnknownEnvironmentError,
    UnknownRowError,
    VerificationMismatchError,
)
from pfatune.kernel.shapes import PfaShape, Workload


def add(store: Store, env_id: int, cost: float | None, *, stitch: int = 512, workload: Workload = WORKLOAD) -> int:
    return store.add(env_id, [measured(cost, stitch=stitch, workload=workload)])[0]


@pytest.fixture
def default_id(store: Store, env_id: int) -> int:
    return add(store, env_id, 100.0)


@pytest.fixture
def verification_id(store: Store, env_id: int) -> int:
    """Of the configuration with stitch 128, which the tests promote."""
    return store.add_verification(env_id, verified(stitch=128))


def test_promoted_measurement_is_served_with_its_evidence(
    store: Store, env_id: int, default_id: int, verification_id: int
) -> None:
    best = add(store, env_id, 50.0, stitch=128)
    promoted = store.promote(env_id, best, default_id, verification_id)
    assert store.tuned(env_id, WORKLOAD) == [promoted]
    assert promoted.workload == WORKLOAD
    assert promoted.environment == SIM
    assert (promoted.measurement.id, promoted.default.id, promoted.verification.id) == (
        best,
        default_id,
        verification_id,
    )
    assert promoted.measurement.config == config(128)
    assert (promoted.cost, promoted.default_cost, promoted.speedup) == (50.0, 100.0, 2.0)
    assert promoted.created_at.tzinfo is not None
    assert promoted.superseded_at is None


def test_nothing_is_served_before_a_promotion(store: Store, env_id: int, default_id: int) -> None:
    assert store.tuned(env_id, WORKLOAD) == []
    assert store.tuned_history(None, WORKLOAD) == []


def test_default_itself_may_be_promoted(store: Store, env_id: int, default_id: int) -> None:
    checked = store.add_verification(env_id, verified())
    assert store.promote(env_id, default_id, default_id, checked).speedup == 1.0


def test_better_row_supersedes_and_history_is_kept(
    store: Store, env_id: int, default_id: int, verification_id: int
) -> None:
    first = store.promote(env_id, add(store, env_id, 60.0, stitch=128), default_id, verification_id)
    second = store.promote(env_id, add(store, env_id, 50.0, stitch=128), default_id, verification_id)
    assert store.tuned(env_id, WORKLOAD) == [second]
    newest, oldest = store.tuned_history(env_id, WORKLOAD)
    assert newest == second
    assert oldest.superseded_at is not None
    assert oldest.superseded_at >= first.created_at
    assert replace(oldest, superseded_at=None) == first


def test_promoting_what_is_current_changes_nothing(
    store: Store, env_id: int, default_id: int, verification_id: int
) -> None:
    best = add(store, env_id, 50.0, stitch=128)
    promoted = store.promote(env_id, best, default_id, verification_id)
    assert store.promote(env_id, best, default_id, verification_id) == promoted
    assert store.tuned_history(env_id, WORKLOAD) == [promoted]


def test_earlier_measurement_may_be_promoted_again(
    store: Store, env_id: int, default_id: int, verification_id: int
) -> None:
    first, second = (add(store, env_id, cost, stitch=128) for cost in (50.0, 60.0))
    for best in (first, second, first):
        store.promote(env_id, best, default_id, verification_id)
    assert [row.measurement.id for row in store.tuned_history(env_id, WORKLOAD)] == [first, second, first]
    assert [row.measurement.id for row in store.tuned(env_id, WORKLOAD)] == [first]


def test_workloads_are_tuned_apart(store: Store, env_id: int, default_id: int, verification_id: int) -> None:
    ragged = Workload(SHAPE, (100, 1024))
    full = store.promote(env_id, add(store, env_id, 50.0, stitch=128), default_id, verification_id)
    ragged_default = add(store, env_id, 90.0, workload=ragged)
    ragged_best = add(store, env_id, 45.0, workload=ragged, stitch=128)
    part = store.promote(env_id, ragged_best, ragged_default, verification_id)
    assert store.tuned(env_id, WORKLOAD) == [full]
    assert store.tuned(env_id, ragged) == [part]
    assert part.workload == ragged


def test_any_environment_answers_newest_first(store: Store, env_id: int, default_id: int, verification_id: int) -> None:
    npu = store.environment_id(NPU)
    here = store.promote(env_id, add(store, env_id, 50.0, stitch=128), default_id, verification_id)
    there = store.promote(npu, add(store, npu, 8.0), add(store, npu, 9.0), store.add_verification(npu, verified()))
    assert store.tuned(None, WORKLOAD) == [there, here]
    assert store.tuned(env_id, WORKLOAD) == [here]
    assert store.tuned(npu, WORKLOAD) == [there]
    assert store.tuned_history(None, WORKLOAD) == [there, here]


def refused(store: Store, env_id: int, *ids: int) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.promote(env_id, *ids)
    assert store.tuned_history(None, WORKLOAD) == []
    assert "\n" not in str(caught.value)
    return caught.value


def test_slower_than_the_default_is_refused(store: Store, env_id: int, default_id: int, verification_id: int) -> None:
    error = refused(store, env_id, add(store, env_id, 100.5, stitch=128), default_id, verification_id)
    assert isinstance(error, SlowerThanDefaultError)
    assert isinstance(error, PromotionError)
    assert "costs 100.5 cycles, more than the default's 100 cycles" in str(error)


def test_failed_measurements_are_refused(store: Store, env_id: int, default_id: int, verification_id: int) -> None:
    failed, best = add(store, env_id, None, stitch=128), add(store, env_id, 50.0, stitch=128)
    error = refused(store, env_id, failed, default_id, verification_id)
    assert isinstance(error, NotMeasuredError)
    assert f"measurement {failed} is of kind rejected" in str(error)
    failed_default = add(store, env_id, None)
    assert isinstance(refused(store, env_id, best, failed_default, verification_id), NotMeasuredError)


def test_failed_verification_is_refused(store: Store, env_id: int, default_id: int) -> None:
    failed = store.add_verification(env_id, verified(passed=False, stitch=128))
    error = refused(store, env_id, add(store, env_id, 50.0, stitch=128), default_id, failed)
    assert isinstance(error, NotVerifiedError)


def test_verification_of_something_else_is_refused(store: Store, env_id: int, default_id: int) -> None:
    best = add(store, env_id, 50.0, stitch=128)
    other_config = store.add_verification(env_id, verified(stitch=64))
    assert isinstance(refused(store, env_id, best, default_id, other_config), VerificationMismatchError)
    wide = PfaShape(b=2, s2=1024, block_size=256)
    other_family = store.add_verification(env_id, replace(verified(stitch=128), family=wide.family, shapes=(wide,)))
    assert isinstance(refused(store, env_id, best, default_id, other_family), VerificationMismatchError)


def test_default_of_another_workload_is_refused(store: Store, env_id: int, verification_id: int) -> None:
    best = add(store, env_id, 50.0, stitch=128)
    for other in (Workload(PfaShape(b=4, s2=1024)), Workload(SHAPE, (100, 1024))):
        error = refused(store, env_id, best, add(store, env_id, 100.0, workload=other), verification_id)
        assert isinstance(error, DefaultMismatchError)


def test_rows_of_another_environment_are_refused(
    store: Store, env_id: int, default_id: int, verification_id: int
) -> None:
    npu = store.environment_id(NPU)
    best = add(store, env_id, 50.0, stitch=128)
    strangers = (
        add(store, npu, 5.0, stitch=128),
        add(store, npu, 9.0),
        store.add_verification(npu, verified(stitch=128)),
    )
    right = (best, default_id, verification_id)
    for place, stranger in enumerate(strangers):
        ids = [*right[:place], stranger, *right[place + 1 :]]
        assert isinstance(refused(store, env_id, *ids), OtherEnvironmentError)
    assert isinstance(refused(store, npu, *right), OtherEnvironmentError)


def test_unknown_ids_are_refused(store: Store, env_id: int, default_id: int, verification_id: int) -> None:
    best = add(store, env_id, 50.0, stitch=128)
    assert isinstance(refused(store, 77, best, default_id, verification_id), UnknownEnvironmentError)
    for ids in ((7777, default_id, verification_id), (best, 7777, verification_id), (best, default_id, 7777)):
        assert isinstance(refused(store, env_id, *ids), UnknownRowError)


@pytest.mark.slow
def test_promotions_at_the_same_time_leave_one_current(
    store: Store, target: str, env_id: int, default_id: int, verification_id: int
) -> None:
    ids = [add(store, env_id, 50.0 + number, stitch=128) for number in range(24)]
    with Store.open(target) as other, ThreadPoolExecutor(8) as pool:
        promoted = list(
            pool.map(lambda best: (store, other)[best % 2].promote(env_id, best, default_id, verification_id), ids)
        )
    assert sorted(row.measurement.id or 0 for row in promoted) == ids
    assert len(store.tuned(env_id, WORKLOAD)) == 1
    assert len(store.tuned_history(env_id, WORKLOAD)) == 24
