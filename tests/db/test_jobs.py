"""The contract of the queue over every database: submitting, claiming, ending."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from db_examples import SHAPE
from job_examples import claim, claimed, job_of, let_expire, request
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from pfatune.db import IdempotencyConflictError, JobState, LeaseLostError, QueueFullError, Store
from pfatune.db.errors import DatabaseFullError, ReadOnlyStoreError
from pfatune.db.jobs import MAX_PROGRESS_BYTES
from pfatune.kernel.shapes import Workload


def test_job_starts_queued(store: Store) -> None:
    asked = request(trials=7, seconds=90, priority=3)
    submitted, created = store.jobs.submit(asked)
    assert created
    assert submitted.request == asked
    assert (submitted.state, submitted.attempts, submitted.fence) == (JobState.QUEUED, 0, 0)
    assert (submitted.owner, submitted.progress, submitted.reason) == ("", {}, "")
    assert submitted.started_at is submitted.finished_at is submitted.lease_expires_at is None
    assert abs(datetime.now(UTC) - submitted.created_at) < timedelta(minutes=1)
    assert job_of(store, submitted.id) == submitted
    assert store.jobs.get(submitted.id + 1) is None


def test_same_request_is_one_job_while_it_is_open(store: Store) -> None:
    first, _ = store.jobs.submit(request())
    again, created = store.jobs.submit(request())
    assert (again, created) == (first, False)
    other, created = store.jobs.submit(request(trials=41))
    assert created
    job, lease = claimed(store)
    assert job.id == first.id
    assert store.jobs.submit(request()) == (job, False)
    store.jobs.finish(lease, JobState.DONE)
    anew, created = store.jobs.submit(request())
    assert created
    assert anew.id not in (first.id, other.id)


def test_priority_of_a_queued_job_is_raised_and_never_lowered(store: Store) -> None:
    first, _ = store.jobs.submit(request(priority=1))
    raised, created = store.jobs.submit(request(priority=5))
    assert (raised.id, raised.request.priority, created) == (first.id, 5, False)
    assert store.jobs.submit(request(priority=-5))[0].request.priority == 5
    claimed(store)
    assert store.jobs.submit(request(priority=9))[0].request.priority == 5


def test_job_that_is_being_cancelled_answers_no_request(store: Store) -> None:
    first, _ = store.jobs.submit(request())
    _, lease = claimed(store)
    store.jobs.cancel(first.id)
    second, created = store.jobs.submit(request())
    assert created
    store.jobs.release(lease)
    assert job_of(store, first.id).state is JobState.CANCELLED
    assert job_of(store, second.id).state is JobState.QUEUED


def test_idempotency_key_gives_its_job_for_ever(store: Store) -> None:
    first, created = store.jobs.submit(request(), idempotency_key="k", body_digest="body")
    assert created
    assert store.jobs.submit(request(), idempotency_key="k", body_digest="body") == (first, False)
    _, lease = claimed(store)
    store.jobs.finish(lease, JobState.FAILED, reason="x")
    again, created = store.jobs.submit(request(), idempotency_key="k", body_digest="body", max_open=0)
    assert (again.id, again.state, created) == (first.id, JobState.FAILED, False)
    with pytest.raises(IdempotencyConflictError, match=f"key 'k' belongs to job {first.id}.* use a new key"):
        store.jobs.submit(request(3), idempotency_key="k", body_digest="other")
    assert len(store.jobs.list()) == 1


def test_idempotency_key_is_kept_with_a_job_that_was_joined(store: Store) -> None:
    first, _ = store.jobs.submit(request())
    assert store.jobs.submit(request(), idempotency_key="k", body_digest="body") == (first, False)
    store.jobs.cancel(first.id)
    again, created = store.jobs.submit(request(), idempotency_key="k", body_digest="body")
    assert (again.id, created) == (first.id, False)


@pytest.mark.parametrize("key", ["", "k" * 201, "a\nb", "a\0b"])
def test_idempotency_key_must_be_readable(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="give from 1 to 200 printable"):
        store.jobs.submit(request(), idempotency_key=key)


def test_full_queue_takes_no_new_job(store: Store) -> None:
    first, _ = store.jobs.submit(request(1), max_open=2)
    store.jobs.submit(request(2), max_open=2)
    with pytest.raises(QueueFullError, match="2 jobs are open, and 2 are allowed"):
        store.jobs.submit(request(3), idempotency_key="k", max_open=2)
    assert store.jobs.submit(request(1), max_open=2) == (first, False)
    _, lease = claimed(store)
    with pytest.raises(QueueFullError):
        store.jobs.submit(request(3), max_open=2)
    store.jobs.finish(lease, JobState.DONE)
    assert store.jobs.submit(request(3), idempotency_key="k", max_open=2)[1]


def test_jobs_are_listed_and_counted(store: Store) -> None:
    assert store.jobs.counts() == dict.fromkeys(JobState, 0)
    assert store.jobs.oldest_queued_seconds() is None
    ids = [store.jobs.submit(request(b))[0].id for b in range(1, 6)]
    claimed(store)
    store.jobs.cancel(ids[1])
    assert [job.id for job in store.jobs.list()] == ids[::-1]
    assert [job.id for job in store.jobs.list(before=ids[3], limit=2)] == [ids[2], ids[1]]
    assert [job.id for job in store.jobs.list(state=JobState.QUEUED, before=ids[4])] == [ids[3], ids[2]]
    assert store.jobs.counts() == {
        JobState.QUEUED: 3,
        JobState.RUNNING: 1,
        JobState.DONE: 0,
        JobState.FAILED: 0,
        JobState.CANCELLED: 1,
    }
    oldest = store.jobs.oldest_queued_seconds()
    assert oldest is not None
    assert 0 <= oldest < 60


def test_urgent_jobs_are_claimed_first_then_old_ones(store: Store) -> None:
    priorities = [0, 5, 0, -1, 5]
    ids = [store.jobs.submit(request(b, priority=priority))[0].id for b, priority in enumerate(priorities, 1)]
    order = [claimed(store)[0].id for _ in ids]
    assert order == [ids[1], ids[4], ids[0], ids[2], ids[3]]
    assert claim(store) is None


def test_claim_gives_a_lease(store: Store) -> None:
    submitted, _ = store.jobs.submit(request())
    job, lease = claimed(store, "host:1", seconds=90)
    assert (lease.job_id, lease.owner, lease.fence) == (submitted.id, "host:1", 1)
    assert (job.state, job.attempts, job.fence, job.owner) == (JobState.RUNNING, 1, 1, "host:1")
    assert job.started_at is not None
    assert job.lease_expires_at is not None
    assert abs((job.lease_expires_at - job.started_at).total_seconds() - 90) < 1
    assert job_of(store, job.id) == job


def test_only_jobs_of_the_workers_kind_are_claimed(store: Store) -> None:
    npu, _ = store.jobs.submit(request(backend="npu"))
    other_soc, _ = store.jobs.submit(request(soc="950DT"))
    assert claim(store) is None
    assert claimed(store, backend="npu")[0].id == npu.id
    assert claimed(store, soc="950DT")[0].id == other_soc.id


def test_claim_must_make_sense(store: Store) -> None:
    with pytest.raises(ValueError, match="owner is empty"):
        claim(store, "")
    for seconds in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(ValueError, match="give seconds above 0"):
            claim(store, seconds=seconds)


def test_cancel(store: Store) -> None:
    queued, _ = store.jobs.submit(request())
    cancelled = store.jobs.cancel(queued.id)
    assert cancelled is not None
    assert (cancelled.state, cancelled.reason) == (JobState.CANCELLED, "cancelled while it waited")
    assert cancelled.finished_at is not None
    assert store.jobs.cancel(queued.id) == cancelled
    assert store.jobs.cancel(queued.id + 99) is None
    assert claim(store) is None

    store.jobs.submit(request())
    job, lease = claimed(store)
    assert store.jobs.heartbeat(lease, seconds=60) is False
    asked = store.jobs.cancel(job.id)
    assert asked is not None
    assert (asked.state, asked.cancel_requested, asked.finished_at) == (JobState.RUNNING, True, None)
    assert store.jobs.cancel(job.id) == asked
    assert store.jobs.heartbeat(lease, seconds=60) is True
    assert store.jobs.report(lease, {}) is True
    store.jobs.finish(lease, JobState.CANCELLED)
    assert job_of(store, job.id).state is JobState.CANCELLED


def test_heartbeat_prolongs_the_lease(store: Store) -> None:
    store.jobs.submit(request())
    job, lease = claimed(store, seconds=1)
    store.jobs.heartbeat(lease, seconds=600)
    prolonged = job_of(store, job.id)
    assert job.lease_expires_at is not None
    assert prolonged.lease_expires_at is not None
    assert prolonged.lease_expires_at - job.lease_expires_at > timedelta(seconds=598)
    let_expire(store, lease)
    store.jobs.heartbeat(lease, seconds=60)
    assert claim(store) is None


def test_report_and_finish_keep_progress(store: Store) -> None:
    store.jobs.submit(request())
    job, lease = claimed(store)
    store.jobs.report(lease, {"done": 1, "best": None})
    assert job_of(store, job.id).progress == {"done": 1, "best": None}
    store.jobs.finish(lease, JobState.FAILED, reason="no\0 disk\ud800")
    ended = job_of(store, job.id)
    assert (ended.state, ended.progress) == (JobState.FAILED, {"done": 1, "best": None})
    assert ended.reason == "no\N{REPLACEMENT CHARACTER} disk?"
    assert ended.finished_at is not None
    assert ended.lease_expires_at is None


@pytest.mark.parametrize(
    "progress", [{"x": float("nan")}, {"x": object()}, {"x": "y" * MAX_PROGRESS_BYTES}, {(1, 2): 3}]
)
def test_progress_is_small_json(store: Store, progress: dict[str, object]) -> None:
    store.jobs.submit(request())
    job, lease = claimed(store)
    with pytest.raises(ValueError, match="progress"):
        store.jobs.report(lease, progress)
    with pytest.raises(ValueError, match="progress"):
        store.jobs.finish(lease, JobState.DONE, progress=progress)
    assert job_of(store, job.id) == job


def test_progress_may_hold_any_text(store: Store) -> None:
    store.jobs.submit(request())
    job, lease = claimed(store)
    for progress in ({"x": "y" * (MAX_PROGRESS_BYTES - 9)}, {"x": "a\0b \ud800 'é"}):
        store.jobs.report(lease, progress)
        assert job_of(store, job.id).progress == json.loads(json.dumps(progress))


def test_job_ends_once(store: Store) -> None:
    store.jobs.submit(request())
    job, lease = claimed(store)
    with pytest.raises(ValueError, match="state is running: finish a job as done, failed or cancelled"):
        store.jobs.finish(lease, JobState.RUNNING)
    store.jobs.finish(lease, JobState.DONE, progress={"done": 2}, reason="r")
    ended = job_of(store, job.id)
    for use in (
        lambda: store.jobs.finish(lease, JobState.FAILED),
        lambda: store.jobs.heartbeat(lease, seconds=60),
        lambda: store.jobs.report(lease, {}),
        lambda: store.jobs.release(lease),
    ):
        with pytest.raises(LeaseLostError):
            use()
    assert store.jobs.cancel(job.id) == ended == job_of(store, job.id)


@pytest.mark.parametrize("state", [JobState.DONE, JobState.FAILED, JobState.CANCELLED])
def test_database_itself_keeps_finished_jobs(store: Store, state: JobState) -> None:
    store.jobs.submit(request())
    _, lease = claimed(store)
    store.jobs.finish(lease, state)
    for statement in ("UPDATE job SET state = 'queued', finished_at = NULL", "UPDATE job SET reason = 'x'"):
        with pytest.raises(IntegrityError, match="a finished job is never changed"):
            execute(store, statement)
    with pytest.raises(IntegrityError, match="a job is never deleted"):
        execute(store, "DELETE FROM job")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'lost'",
        "state = 'running'",
        "state = 'done'",
        "finished_at = created_at",
        "lease_expires_at = created_at",
    ],
)
def test_database_itself_checks_states(store: Store, change: str) -> None:
    store.jobs.submit(request())
    with pytest.raises(IntegrityError):
        execute(store, f"UPDATE job SET {change}")


def execute(store: Store, statement: str) -> None:
    with store.database.write() as connection:
        connection.execute(text(statement))


def test_released_job_is_claimed_again_without_counting(store: Store) -> None:
    store.jobs.submit(request())
    for fence in range(1, 6):
        job, lease = claimed(store, max_attempts=1)
        assert (job.attempts, job.fence) == (1, fence)
        store.jobs.report(lease, {"round": fence})
        store.jobs.release(lease, reason="shutting down")
    released = job_of(store, job.id)
    assert (released.state, released.attempts, released.reason) == (JobState.QUEUED, 0, "shutting down")
    assert released.progress == {"round": 5}
    assert released.lease_expires_at is None
    with pytest.raises(LeaseLostError):
        store.jobs.heartbeat(lease, seconds=60)


def test_counted_releases_end_in_failure(store: Store) -> None:
    store.jobs.submit(request())
    for _ in range(2):
        job, lease = claimed(store, max_attempts=2)
        store.jobs.release(lease, reason="the compiler is missing", count=True)
    assert claim(store, max_attempts=2) is None
    failed = job_of(store, job.id)
    assert failed.state is JobState.FAILED
    assert failed.reason == "given up after 2 attempts: the compiler is missing"


def test_given_up_job_does_not_hide_the_next(store: Store) -> None:
    store.jobs.submit(request(1))
    store.jobs.release(claimed(store)[1], count=True)
    second, _ = store.jobs.submit(request(2))
    assert claimed(store, max_attempts=1)[0].id == second.id


def test_released_job_waits_for_its_delay(store: Store) -> None:
    job, _ = store.jobs.submit(request())
    _, lease = claimed(store)
    store.jobs.release(lease, delay=600)
    assert claim(store) is None
    assert job_of(store, job.id).state is JobState.QUEUED
    execute(store, "UPDATE job SET not_before = created_at")
    _, lease = claimed(store)
    store.jobs.release(lease)
    claimed(store)
    for delay in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="delay is"):
            store.jobs.release(lease, delay=delay)


def test_read_only_store_shows_jobs_and_takes_none(store: Store, target: str) -> None:
    job, _ = store.jobs.submit(request())
    with Store.open(target, read_only=True) as reader:
        assert reader.jobs.get(job.id) == job
        with pytest.raises(ReadOnlyStoreError):
            reader.jobs.submit(request(3))
        with pytest.raises(ReadOnlyStoreError):
            claim(reader)


def test_request_comes_back_whole(store: Store) -> None:
    ragged = (Workload(SHAPE, (100, 1024)), Workload(SHAPE))
    asked = replace(request(), workloads=ragged, trials=None, seconds=0.5, soc="950DT", backend="npu", priority=-100)
    job, _ = store.jobs.submit(asked)
    assert job_of(store, job.id).request == asked


def test_full_disk_refuses_a_job_and_keeps_nothing_of_it(store: Store) -> None:
    if not store.database.is_sqlite:
        pytest.skip("a server's disk is not ours to fill")
    store.jobs.submit(request(1))
    event.listen(store.database._engine, "begin", limit_pages)
    accepted = [0]
    with pytest.raises(DatabaseFullError, match="free some disk space; nothing of this write was kept"):
        submit_for_ever(store, accepted)
    event.remove(store.database._engine, "begin", limit_pages)
    assert len(accepted) > 1
    with store.database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM job")).scalar_one() == len(accepted)
        assert connection.execute(text("SELECT count(*) FROM job_key")).scalar_one() == len(accepted) - 1
    store.check()


def submit_for_ever(store: Store, accepted: list[int]) -> None:
    accepted.extend(
        store.jobs.submit(request(b), idempotency_key=f"{b}" * 60, max_open=9999)[0].id for b in range(2, 1000)
    )


def limit_pages(connection):  # type: ignore[no-untyped-def]  # SQLAlchemy's to call
    # Counted from the size at the first call: later calls cannot raise it.
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    limit = connection.info.setdefault("limit", pages + 4)
    connection.exec_driver_sql(f"PRAGMA max_page_count = {limit}")
