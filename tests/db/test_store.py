"""The contract of the store over every database: environments, measurements, verifications."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from db_examples import NPU, SHAPE, SIM, WORKLOAD, config, measured, verified
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from pfatune.db import Kind, Measurement, Store, Verification
from pfatune.db.errors import ReadOnlyStoreError, UnknownEnvironmentError
from pfatune.kernel.config import canonical
from pfatune.kernel.shapes import PfaShape, Workload

OTHER = Workload(PfaShape(b=4, s2=2048))
RAGGED = Workload(SHAPE, (100, 1024))


def test_environment_keeps_its_id(store: Store, target: str) -> None:
    sim, npu = store.environment_id(SIM), store.environment_id(NPU)
    assert sim != npu
    with Store.open(target) as again:
        assert again.environment_id(SIM) == sim
        assert again.environments() == {sim: SIM, npu: NPU}


def test_environment_is_added_once_by_many_at_a_time(store: Store, target: str) -> None:
    with Store.open(target) as other, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: (store, other)[number % 2].environment_id(SIM), range(32)))
    assert len(set(ids)) == 1
    assert len(store.environments()) == 1


def test_measurements_come_back_in_order_with_the_ids_that_were_returned(store: Store, env_id: int) -> None:
    given = [measured(float(cost)) for cost in range(1, 101)]
    ids = store.add(env_id, given)
    assert ids == sorted(ids)
    stored = store.measurements(env_id)
    assert [one.id for one in stored] == ids
    assert [replace(one, id=None, created_at=None) for one in stored] == given
    assert [one.id for one in store.measurements(env_id, limit=3, newest_first=True)] == ids[:-4:-1]


def test_adding_nothing_adds_nothing(store: Store) -> None:
    assert store.add(1, []) == []


def test_measurements_are_found_by_workload_family_and_configuration(store: Store, env_id: int) -> None:
    wide = Workload(PfaShape(b=2, s2=1024, nq=16))
    plain, other_shape, ragged, other_family, other_config = store.add(
        env_id,
        [
            measured(),
            measured(workload=OTHER),
            measured(workload=RAGGED),
            measured(workload=wide),
            measured(stitch=128),
        ],
    )

    def ids(**conditions: object) -> list[int | None]:
        return [one.id for one in store.measurements(env_id, **conditions)]  # type: ignore[arg-type]  # by name

    assert ids(workload=WORKLOAD) == [plain, other_config]
    assert ids(workload=RAGGED) == [ragged]
    assert ids(workload=Workload(SHAPE, (1024, 1024))) == [plain, other_config]
    assert ids(workload=Workload(SHAPE, (1024, 100))) == []
    assert ids(family=SHAPE.family) == [plain, other_shape, ragged, other_config]
    assert ids(family=wide.shape.family) == [other_family]
    assert ids(family=SHAPE.family, config_digest=config(128).digest) == [other_config]
    assert ids(workload=OTHER, config_digest=config(128).digest) == []


def test_environments_are_not_mixed(store: Store, env_id: int) -> None:
    npu = store.environment_id(NPU)
    store.add(env_id, [measured()])
    store.add_verification(env_id, verified())
    assert store.measurements(npu) == []
    assert store.verification(npu, SHAPE.family, config().digest) is None


def test_time_is_the_databases_and_in_utc(store: Store, env_id: int) -> None:
    store.add(env_id, [measured()])
    (stored,) = store.measurements(env_id)
    assert stored.created_at is not None
    assert stored.created_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - stored.created_at) < timedelta(minutes=1)


def test_batch_is_kept_whole_or_not_at_all(store: Store, env_id: int) -> None:
    impossible = measured()
    object.__setattr__(impossible, "cost", None)  # past the record's own check, to the database's
    with pytest.raises(IntegrityError, match="cost"):
        store.add(env_id, [measured(), measured(), impossible])
    assert store.measurements(env_id) == []


def test_unknown_environment_is_refused(store: Store) -> None:
    with pytest.raises(UnknownEnvironmentError, match="environment 77 is not in the store: get an id"):
        store.add(77, [measured()])
    with pytest.raises(UnknownEnvironmentError):
        store.add_verification(77, verified())


def test_newest_verification_counts(store: Store, env_id: int) -> None:
    store.add_verification(env_id, verified())
    newest = store.add_verification(env_id, verified(passed=False))
    store.add_verification(env_id, verified(stitch=128))
    found = store.verification(env_id, SHAPE.family, config().digest)
    assert found is not None
    assert (found.id, found.passed) == (newest, False)
    assert replace(found, id=None, created_at=None) == verified(passed=False)


def test_read_only_store_reads_and_never_writes(store: Store, env_id: int, target: str) -> None:
    store.add(env_id, [measured()])
    with Store.open(target, read_only=True) as reader:
        assert len(reader.measurements(env_id)) == 1
        assert reader.environment_id(SIM) == env_id
        with pytest.raises(ReadOnlyStoreError, match="opened read-only"):
            reader.add(env_id, [measured()])
        with pytest.raises(ReadOnlyStoreError):
            reader.environment_id(NPU)
        store.add(env_id, [measured()])
        assert len(reader.measurements(env_id)) == 2


@pytest.mark.slow
def test_threads_share_a_store(store: Store, env_id: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda cost: store.add(env_id, [measured(cost)])[0], range(1, 101)))
    assert sorted(ids) == [one.id for one in store.measurements(env_id)]
    assert len(set(ids)) == 100
    store.check()


positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
seconds = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@st.composite
def shapes(draw: st.DrawFn) -> PfaShape:
    nkv = draw(st.integers(1, 8))
    s2 = draw(st.integers(1, 131072))
    return PfaShape(
        b=draw(st.integers(1, 64)),
        s2=s2,
        s1=draw(st.integers(1, min(64, s2))),
        nq=nkv * draw(st.integers(1, 32)),
        nkv=nkv,
        qd=32 * draw(st.integers(1, 16)),
        block_size=32 * draw(st.integers(1, 32)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    shape = draw(shapes())
    lengths = st.lists(st.integers(shape.s1, shape.s2), min_size=shape.b, max_size=shape.b).map(tuple)
    return Workload(shape, draw(st.none() | lengths))


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    workload = draw(workloads())
    kind = draw(st.sampled_from(Kind))
    family = workload.shape.family
    setting = st.dictionaries(st.integers(-1, 2**70), st.integers(-(2**70), 2**70), max_size=3)
    some = replace(
        config(draw(st.integers(1, 2**70)), workload.shape),
        unroll_list=tuple(draw(st.lists(st.integers(1, 64), max_size=5))),
        vec_nbuffer_setting=tuple(draw(setting).items()),
    )
    return Measurement(
        workload,
        canonical(some, family),
        kind,
        draw(positive) if kind is Kind.OK else None,
        samples=tuple(draw(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4))),
        seconds=draw(seconds),
        compile_seconds=draw(seconds),
        run_seconds=draw(seconds),
        peak_bytes=draw(st.integers(0, 2**63 - 1)),
        message=draw(st.text(st.characters(), max_size=200)),
        study=draw(st.text(st.characters(), max_size=40)),
    )


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(batch=st.lists(measurements(), min_size=1, max_size=3))
def test_any_measurement_round_trips(store: Store, env_id: int, batch: list[Measurement]) -> None:
    ids = store.add(env_id, batch)
    stored = store.measurements(env_id, limit=len(batch), newest_first=True)[::-1]
    assert [one.id for one in stored] == ids
    assert [replace(one, id=None, created_at=None) for one in stored] == batch
    assert store.measurements(env_id, workload=batch[0].workload, config_digest=batch[0].config.digest)
    json.dumps([one.config.to_json() for one in stored])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=shapes(),
    passed=st.booleans(),
    diff=st.none() | st.floats(),
    message=st.text(st.characters(), max_size=40),
)
def test_any_verification_round_trips(
    store: Store, env_id: int, shape: PfaShape, passed: bool, diff: float | None, message: str
) -> None:
    given = Verification(shape.family, config(shape=shape), passed, diff, (shape,), message, 1.5)
    row = store.add_verification(env_id, given)
    found = store.verification(env_id, shape.family, given.config.digest)
    assert found is not None
    assert found.id == row
    assert replace(found, id=None, created_at=None) == given
