"""Portfolios in the store: what may be served, in place of what, and that nothing of it is changed later."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from db_examples import NPU, SIM, config, measured, verified
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from pfatune.db import PortfolioTerms, PromotionError, Store, StoreError
from pfatune.db.errors import (
    NotMeasuredError,
    NotVerifiedError,
    OtherEnvironmentError,
    PortfolioError,
    UnknownEnvironmentError,
    UnknownRowError,
    VerificationMismatchError,
)
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload

FAMILY = PfaFamily()
SMALL, LARGE = Workload(PfaShape(1, 128)), Workload(PfaShape(16, 8192))
TERMS = PortfolioTerms(0.05, None, 0.03, 0.01, 0.2)

Pair = tuple[int, int]


def anchor(store: Store, env_id: int, workload: Workload, stitch: int, cost: float | None = 50.0) -> Pair:
    """The ids of a measurement and of a verification that passed."""
    (row,) = store.add(env_id, [replace(measured(cost, workload=workload), config=config(stitch))])
    return row, store.add_verification(env_id, verified(stitch=stitch))


@pytest.fixture
def pairs(store: Store, env_id: int) -> list[Pair]:
    return [anchor(store, env_id, SMALL, 64), anchor(store, env_id, LARGE, 128)]


def test_what_was_saved_is_served_with_its_evidence(store: Store, env_id: int, pairs: list[Pair]) -> None:
    assert store.portfolios.current(env_id, FAMILY) is None
    assert store.served_portfolios(env_id, 7) == (7, [])
    saved = store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    assert store.portfolios.current(env_id, FAMILY) == saved
    assert store.portfolios.list() == store.portfolios.list(env_id) == [saved]
    assert (saved.family, saved.environment, saved.terms) == (FAMILY, SIM, TERMS)
    assert [(one.measurement.id, one.verification.id) for one in saved.anchors] == pairs
    assert saved.members == ((1, 128, config(64)), (16, 8192, config(128)))
    assert saved.created_at.tzinfo is not None
    assert saved.superseded_at is None
    assert store.served_portfolios(env_id) == (saved.id, [(FAMILY, saved.members)])
    assert store.served_portfolios(env_id, saved.id) == (saved.id, [])


@pytest.mark.parametrize(
    "terms",
    [
        PortfolioTerms(None, 3, None, None, None, proven=False),
        PortfolioTerms(0.0, 1, 0.0, 0.0, 0.0),
        PortfolioTerms(0.1, 4, 0.30000000000000004, 0.1),
    ],
)
def test_terms_are_kept(store: Store, env_id: int, pairs: list[Pair], terms: PortfolioTerms) -> None:
    assert store.portfolios.save(env_id, FAMILY, pairs, terms).terms == terms


def test_a_new_one_takes_the_place_of_the_old_which_is_kept(store: Store, env_id: int, pairs: list[Pair]) -> None:
    first = store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    second = store.portfolios.save(env_id, FAMILY, pairs[:1], TERMS)
    assert second.id > first.id
    assert store.portfolios.list() == [second]
    newest, oldest = store.portfolios.list(history=True)
    assert newest == second
    assert oldest.superseded_at is not None
    assert replace(oldest, superseded_at=None) == first
    assert store.served_portfolios(env_id, first.id) == (second.id, [(FAMILY, second.members)])


def test_to_save_what_is_current_changes_nothing(store: Store, env_id: int, pairs: list[Pair]) -> None:
    first = store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    assert store.portfolios.save(env_id, FAMILY, [*reversed(pairs), pairs[0]], TERMS) == first
    assert store.portfolios.list(history=True) == [first]
    assert store.portfolios.save(env_id, FAMILY, pairs, replace(TERMS, max_configs=2)).id > first.id


def test_families_and_environments_are_kept_apart(store: Store, env_id: int, pairs: list[Pair]) -> None:
    here = store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    npu = store.environment_id(NPU)
    there = store.portfolios.save(npu, FAMILY, [anchor(store, npu, SMALL, 64)], TERMS)
    wide = PfaShape(2, 1024, nq=24)
    (row,) = store.add(env_id, [measured(workload=Workload(wide))])
    checked = store.add_verification(env_id, verified(shape=wide))
    other = store.portfolios.save(env_id, wide.family, [(row, checked)], TERMS)
    assert store.portfolios.current(env_id, FAMILY) == here
    assert store.portfolios.current(npu, FAMILY) == there
    assert store.portfolios.current(env_id, wide.family) == other
    assert store.portfolios.list() == [other, there, here]
    assert [family for family, _ in store.served_portfolios(env_id)[1]] == [FAMILY, wide.family]


def refused(store: Store, env_id: int, pairs: list[Pair]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    assert store.portfolios.list(history=True) == []
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_member_must_have_been_measured_and_verified_well(store: Store, env_id: int, pairs: list[Pair]) -> None:
    assert isinstance(refused(store, env_id, [anchor(store, env_id, SMALL, 32, cost=None)]), NotMeasuredError)
    wrong = store.add_verification(env_id, verified(passed=False, stitch=64))
    assert isinstance(refused(store, env_id, [(pairs[0][0], wrong)]), NotVerifiedError)
    error = refused(store, env_id, [(pairs[0][0], pairs[1][1])])
    assert isinstance(error, VerificationMismatchError)
    assert isinstance(error, PromotionError)


def test_members_must_be_full_shapes_of_the_family_each_once(store: Store, env_id: int, pairs: list[Pair]) -> None:
    error = refused(store, env_id, [])
    assert isinstance(error, PortfolioError)
    assert "has no member" in str(error)
    again = anchor(store, env_id, SMALL, 32)
    assert "two members are of b=1 s2=128" in str(refused(store, env_id, [*pairs, again]))
    short = anchor(store, env_id, Workload(PfaShape(2, 1024), (7, 1024)), 32)
    assert "had short requests" in str(refused(store, env_id, [short]))
    wide = PfaShape(2, 1024, nq=24)
    (row,) = store.add(env_id, [measured(workload=Workload(wide))])
    other = row, store.add_verification(env_id, verified(shape=wide))
    assert "give one of the family" in str(refused(store, env_id, [*pairs, other]))


def test_rows_of_elsewhere_are_refused(store: Store, env_id: int, pairs: list[Pair]) -> None:
    npu = store.environment_id(NPU)
    assert isinstance(refused(store, npu, pairs), OtherEnvironmentError)
    assert isinstance(refused(store, 77, pairs), UnknownEnvironmentError)
    assert isinstance(refused(store, env_id, [(7777, pairs[0][1])]), UnknownRowError)
    assert isinstance(refused(store, env_id, [(pairs[0][0], 7777)]), UnknownRowError)


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("DELETE FROM portfolio_member", "portfolio_member"),
        ("UPDATE portfolio_member SET verification_id = 1", "portfolio_member"),
        ("DELETE FROM portfolio", "portfolio"),
        ("UPDATE portfolio SET worst_regret = 0", "portfolio"),
    ],
)
def test_nothing_is_changed_later(store: Store, env_id: int, pairs: list[Pair], statement: str, table: str) -> None:
    saved = store.portfolios.save(env_id, FAMILY, pairs, TERMS)
    with pytest.raises(IntegrityError, match=f"{table} is append-only"), store.database.write() as connection:
        connection.execute(text(statement))
    assert store.portfolios.list() == [saved]


@pytest.mark.parametrize(
    "fields",
    [{"limit": None}, {"max_configs": 0}, {"limit": -0.1}, {"worst": math.nan}, {"held_out_worst": math.inf}],
)
def test_terms_that_make_no_sense_are_refused(fields: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        replace(TERMS, **fields)  # type: ignore[arg-type]  # wrong ones too


@pytest.mark.slow
def test_many_at_once_leave_one_current(store: Store, target: str, env_id: int, pairs: list[Pair]) -> None:
    terms = [replace(TERMS, worst=number / 1000) for number in range(16)]
    with Store.open(target) as other, ThreadPoolExecutor(8) as threads:
        saved = list(
            threads.map(lambda n: (store, other)[n % 2].portfolios.save(env_id, FAMILY, pairs, terms[n]), range(16))
        )
    assert {one.terms for one in saved} == set(terms)
    (current,) = store.portfolios.list()
    assert len(store.portfolios.list(history=True)) == 16
    assert current.id == max(one.id for one in saved)
