"""A lease that is over: the job goes on, and its former holder can change nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from db_examples import NPU, SIM, WORKLOAD, measured, verified
from job_examples import claim, claimed, job_of, let_expire, request
from sqlalchemy import event

from pfatune.db import JobState, Lease, LeaseLostError, Store

Clock = Callable[[float], None]


@pytest.fixture
def lease(store: Store) -> Lease:
    store.jobs.submit(request())
    return claimed(store, "first")[1]


@pytest.fixture
def lost(store: Store, lease: Lease) -> Lease:
    """The lease of a worker that slept too long."""
    let_expire(store, lease)
    claimed(store, "second")
    return lease


def test_expired_job_goes_to_the_next_who_asks(store: Store, lease: Lease) -> None:
    assert claim(store) is None
    let_expire(store, lease)
    job, second = claimed(store, "second")
    assert (second.job_id, second.fence) == (lease.job_id, lease.fence + 1)
    assert (job.attempts, job.owner, job.state) == (2, "second", JobState.RUNNING)
    assert job.reason == "its worker died or lost its lease once, last first"


def test_expired_job_goes_back_even_where_the_asker_cannot_take_it(store: Store, lease: Lease) -> None:
    let_expire(store, lease)
    assert claim(store, backend="npu") is None
    assert job_of(store, lease.job_id).state is JobState.QUEUED
    with pytest.raises(LeaseLostError):
        store.jobs.heartbeat(lease, seconds=60)


@pytest.mark.parametrize("owner", ["second", "first"])
def test_former_holder_is_told(store: Store, lease: Lease, owner: str) -> None:
    let_expire(store, lease)
    job, _ = claimed(store, owner)
    for use in (
        lambda: store.jobs.heartbeat(lease, seconds=60),
        lambda: store.jobs.report(lease, {"mine": True}),
        lambda: store.jobs.finish(lease, JobState.DONE),
        lambda: store.jobs.release(lease),
    ):
        with pytest.raises(LeaseLostError, match=rf"job {job.id} is no longer leased to first \(fence 1\): stop"):
            use()
    assert job_of(store, job.id) == job


def test_forged_lease_is_no_lease(store: Store, lease: Lease) -> None:
    for forged in (
        Lease(lease.job_id, "other", lease.fence),
        Lease(lease.job_id, lease.owner, lease.fence + 1),
        Lease(lease.job_id + 1, lease.owner, lease.fence),
    ):
        with pytest.raises(LeaseLostError):
            store.jobs.heartbeat(forged, seconds=60)
        with pytest.raises(LeaseLostError):
            store.under(forged).environment_id(SIM)
    assert store.environments() == {}


@pytest.mark.slow
def test_holder_may_end_a_job_late_when_nobody_took_it(store: Store, lease: Lease) -> None:
    let_expire(store, lease)
    store.under(lease).environment_id(SIM)
    assert store.jobs.report(lease, {}) is False
    store.jobs.finish(lease, JobState.DONE)
    assert job_of(store, lease.job_id).state is JobState.DONE


def test_expired_job_that_was_to_be_cancelled_is(store: Store, lease: Lease) -> None:
    store.jobs.cancel(lease.job_id)
    let_expire(store, lease)
    assert claim(store) is None
    job = job_of(store, lease.job_id)
    assert job.state is JobState.CANCELLED
    assert job.reason.startswith("cancelled; its worker died")


def test_attempts_are_bounded(store: Store) -> None:
    store.jobs.submit(request())
    for attempt in (1, 2, 3):
        job, lease = claimed(store, f"worker-{attempt}", max_attempts=3)
        assert job.attempts == attempt
        let_expire(store, lease)
    assert claim(store, max_attempts=3) is None
    failed = job_of(store, job.id)
    assert failed.state is JobState.FAILED
    assert failed.reason == "its worker died or lost its lease 3 times, last worker-3"
    with pytest.raises(LeaseLostError):
        store.jobs.finish(lease, JobState.DONE)


def test_holder_adds_rows_under_its_lease(store: Store, lease: Lease) -> None:
    mine = store.under(lease)
    env_id = mine.environment_id(SIM)
    best, default = mine.add(env_id, [measured(50.0, stitch=128), measured(100.0)])
    mine.promote(env_id, best, default, mine.add_verification(env_id, verified(stitch=128)))
    mine.traces.add(best, {})
    assert mine.jobs.report(lease, {}) is False
    assert [one.id for one in store.measurements(env_id)] == [best, default]
    mine.close()
    assert len(store.tuned(env_id, WORKLOAD)) == 1, "closing it closed the store"


def test_former_holder_reads_and_adds_nothing(store: Store, lost: Lease) -> None:
    env_id = store.environment_id(SIM)
    best, default = store.add(env_id, [measured(50.0, stitch=128), measured(100.0)])
    good = store.add_verification(env_id, verified(stitch=128))
    late = store.under(lost)
    assert len(late.measurements(env_id)) == 2
    assert late.environment_id(SIM) == env_id
    for write in (
        lambda: late.environment_id(NPU),
        lambda: late.add(env_id, [measured()]),
        lambda: late.add_verification(env_id, verified(stitch=128)),
        lambda: late.promote(env_id, best, default, good),
        lambda: late.traces.add(best, {}),
        lambda: late.tokens.create("x"),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert list(store.environments()) == [env_id]
    assert len(store.measurements(env_id)) == 2
    newest = store.verification(env_id, verified().family, verified(stitch=128).config.digest)
    assert newest is not None
    assert newest.id == good
    assert store.tuned(None, WORKLOAD) == []
    assert store.traces.has([best]) == set()
    assert not store.tokens.any()


def test_holder_of_a_finished_job_adds_nothing(store: Store, lease: Lease) -> None:
    store.jobs.finish(lease, JobState.DONE)
    with pytest.raises(LeaseLostError):
        store.under(lease).environment_id(SIM)


def test_job_is_not_taken_in_the_midst_of_a_write(store: Store, lease: Lease) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer at a time")
    let_expire(store, lease)
    with store.under(lease).database.write():
        assert claim(store) is None
        assert job_of(store, lease.job_id).state is JobState.RUNNING
    assert claimed(store)[1].job_id == lease.job_id


def test_many_threads_use_one_lease(store: Store, lease: Lease) -> None:
    env_id = store.environment_id(SIM)
    mine = store.under(lease)
    stop = threading.Event()

    def beat() -> int:
        beats = 0
        while not stop.is_set():
            mine.jobs.heartbeat(lease, seconds=60)
            mine.jobs.report(lease, {"beats": beats})
            beats += 1
        return beats

    with ThreadPoolExecutor(4) as pool:
        beating = [pool.submit(beat) for _ in range(2)]
        adding = [pool.submit(mine.add, env_id, [measured()]) for _ in range(30)]
        added = [one.result()[0] for one in adding]
        stop.set()
        assert all(one.result() > 0 for one in beating)
    assert len(set(added)) == 30


@pytest.fixture
def clock(store: Store) -> Clock:
    """Set the clock of SQLite this many seconds ahead of the host's."""
    if not store.database.is_sqlite:
        pytest.skip("a server's clock is not ours to set")
    ahead = [0.0]

    def strftime(wanted: str, now: str, span: str = "+0 seconds") -> str:
        assert (wanted, now) == ("%Y-%m-%d %H:%M:%f000", "now")
        moment = datetime(2026, 1, 1) + timedelta(seconds=ahead[0] + float(span.split()[0]))
        return moment.strftime("%Y-%m-%d %H:%M:%S.%f")

    def install(driver, record):  # type: ignore[no-untyped-def]  # SQLAlchemy's to call
        driver.create_function("strftime", -1, strftime)

    event.listen(store.database._engine, "connect", install)
    store.database._engine.dispose()

    def move(seconds: float) -> None:
        ahead[0] += seconds

    return move


def test_time_is_the_databases(store: Store, clock: Clock) -> None:
    job, _ = store.jobs.submit(request())
    assert job.created_at.isoformat() == "2026-01-01T00:00:00+00:00"
    clock(100)
    assert store.jobs.oldest_queued_seconds() == 100
    job, lease = claimed(store, seconds=60)
    assert job.lease_expires_at is not None
    assert job.lease_expires_at.isoformat() == "2026-01-01T00:02:40+00:00"
    clock(59.5)
    assert claim(store) is None
    store.jobs.heartbeat(lease, seconds=0.25)
    clock(0.25)
    _, lease = claimed(store)
    store.jobs.release(lease, delay=10)
    clock(9.5)
    assert claim(store) is None
    clock(0.5)
    _, lease = claimed(store)
    store.jobs.finish(lease, JobState.DONE)
    finished = job_of(store, job.id).finished_at
    assert finished is not None
    assert finished.isoformat() == "2026-01-01T00:02:49.750000+00:00"
