"""Many processes at one queue: no job twice, and none lost."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from db_examples import SIM
from job_examples import claim, claim_until_empty, claimed, let_expire, request, submit_at_once
from sqlalchemy import insert

from pfatune.db import IdempotencyConflictError, JobState, QueueFullError, Store
from pfatune.db.tables import job

SUBMITTERS = 4
ROUNDS = 20
CLAIMERS = 3
JOBS = 500


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True])
def test_many_submit_at_once_and_get_one_job(target: str, keyed: bool) -> None:
    Store.open(target).close()
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(SUBMITTERS), spawn.Queue()
    processes = [
        spawn.Process(target=submit_at_once, args=(barrier, target, answers, keyed, number, ROUNDS))
        for number in range(SUBMITTERS)
    ]
    found = run(processes, lambda: [answers.get(timeout=60) for _ in range(SUBMITTERS * ROUNDS)])
    for number in range(ROUNDS):
        mine = [(job_id, created) for one, job_id, created in found if one == number]
        assert len(mine) == SUBMITTERS
        assert len({job_id for job_id, _ in mine}) == 1
        assert sum(created for _, created in mine) == 1
    with Store.open(target) as store:
        assert store.jobs.counts()[JobState.QUEUED] == ROUNDS


@pytest.mark.slow
def test_no_job_is_claimed_twice(target: str) -> None:
    with Store.open(target) as store:
        first, _ = store.jobs.submit(request())
        fill(store, JOBS - 1)
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(CLAIMERS), spawn.Queue()
    processes = [
        spawn.Process(target=claim_until_empty, args=(barrier, target, answers, f"worker-{number}"))
        for number in range(CLAIMERS)
    ]

    def collect() -> list[tuple[int, int]]:
        done, ended = [], 0
        while ended < CLAIMERS:
            answer = answers.get(timeout=60)
            if answer is None:
                ended += 1
            else:
                done.append(answer)
        return done

    done = run(processes, collect)
    assert sorted(job_id for job_id, _ in done) == list(range(first.id, first.id + JOBS))
    assert {attempts for _, attempts in done} == {1}
    with Store.open(target) as store:
        assert store.jobs.counts()[JobState.DONE] == JOBS
        measurements = store.measurements(store.environment_id(SIM))
        assert Counter(one.cost for one in measurements) == Counter(float(job_id) for job_id, _ in done)


def run(processes: list[BaseProcess], collect: Callable[[], list[Any]]) -> list[Any]:
    for process in processes:
        process.start()
    try:
        return collect()
    finally:
        for process in processes:
            process.join(60)
            process.kill()
        assert [process.exitcode for process in processes] == [0] * len(processes)


def fill(store: Store, count: int) -> None:
    """Copy the first job, which would take long to submit so often."""
    with store.database.write() as connection:
        row = dict(connection.execute(job.select().limit(1)).mappings().one())
        del row["id"]
        connection.execute(insert(job), [row | {"digest": f"{number:016x}"} for number in range(count)])


def test_threads_share_an_expired_job_once(store: Store, target: str) -> None:
    with Store.open(target) as other, ThreadPoolExecutor(6) as pool:
        store.jobs.submit(request())
        _, lease = claimed(store)
        for _ in range(10):
            let_expire(store, lease)
            found = pool.map(lambda n: claim((store, other)[n % 2], f"worker-{n}", max_attempts=99), range(6))
            (taken,) = [one for one in found if one is not None]
            assert taken[1].fence == lease.fence + 1
            lease = taken[1]


def test_threads_use_a_key_for_different_bodies(store: Store) -> None:
    def submit(number: int) -> int | None:
        try:
            return store.jobs.submit(request(number), idempotency_key="k", body_digest=str(number))[0].id
        except IdempotencyConflictError:
            return None

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(submit, range(1, 7)))
    assert sum(answer is not None for answer in answers) == 1
    assert len(store.jobs.list()) == 1


def test_threads_do_not_overfill_the_queue(store: Store) -> None:
    def submit(number: int) -> bool:
        try:
            return store.jobs.submit(request(number), max_open=5)[1]
        except QueueFullError:
            return False

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(submit, range(1, 21))) == 5
    assert store.jobs.counts()[JobState.QUEUED] == 5


def test_threads_cancel_and_claim(store: Store) -> None:
    for number in range(1, 11):
        one, _ = store.jobs.submit(request(number))
        with ThreadPoolExecutor(2) as pool:
            claiming = pool.submit(claim, store)
            cancelling = pool.submit(store.jobs.cancel, one.id)
            taken, cancelled = claiming.result(), cancelling.result()
        assert cancelled is not None
        if taken is None:
            assert cancelled.state is JobState.CANCELLED
        else:
            assert (cancelled.state, cancelled.cancel_requested) == (JobState.RUNNING, True)
            assert store.jobs.heartbeat(taken[1], seconds=60) is True
