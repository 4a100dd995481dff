"""Workers as processes that share a queue, and are stopped, killed and paused: nothing is lost or done twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in import LARGE, SMALL, StandIn, check_rows, rows_of
from trial_tools import marked, wait_until_gone
from worker_tools import WorkerProcess, check_all_done, job_of, shapes, submit, wait_until, worker_process

from pfatune.db import JobState, Kind, Store

pytestmark = pytest.mark.slow

QUICK = '{"seconds": 0.05}'
SLOW = '{"seconds": 1.0}'


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "tuned.db"


@pytest.fixture
def store(database: Path, tmp_path: Path) -> Iterator[Store]:
    with Store.open(database) as opened:
        yield opened
    assert wait_until_gone(tmp_path) == {}  # nothing of any worker is left


def test_two_workers_do_five_hundred_jobs_once_each(store: Store, database: Path, tmp_path: Path) -> None:
    jobs = [submit(store, workload, trials=1) for workload in shapes(500)]
    workers = [WorkerProcess(database, tmp_path / "runs", tmp_path, 30, "--once") for _ in range(2)]
    for worker in workers:
        assert worker.process.wait(120) == 0
        assert worker.errors == ""
    done = [[line["job"] for line in worker.told("job finished")] for worker in workers]
    assert sorted(done[0] + done[1]) == [job.id for job in jobs]
    assert min(map(len, done)) > 50  # both had their share
    check_all_done(store, jobs)
    for job in jobs:
        assert (job_of(store, job.id).attempts, job_of(store, job.id).fence) == (1, 1)


def test_workers_killed_at_any_moment_lose_nothing_and_repeat_nothing(
    store: Store, database: Path, tmp_path: Path
) -> None:
    kills = 26
    rng = random.Random(20260704)
    jobs = [submit(store, workload, trials=4) for workload in shapes(60)]

    def start() -> WorkerProcess:
        return WorkerProcess(database, tmp_path / "runs", tmp_path, 1, "--attempts", "100", "--special", QUICK)

    workers = [start(), start()]
    finished: list[int] = []  # as far as those that did it lived to tell
    hit = 0
    for _ in range(kills):
        victim = rng.randrange(2)
        workers[victim].wait_told("ready")
        time.sleep(rng.uniform(0, 0.8))
        hit += workers[victim].log[-1]["event"] == "job claimed"
        workers[victim].kill()
        finished += [line["job"] for line in workers[victim].told("job finished")]
        workers[victim] = start()
        if store.jobs.counts()[JobState.QUEUED] < 5:  # some must be left to be killed at
            jobs += [submit(store, workload, trials=4) for workload in shapes(len(jobs) + 20)[len(jobs) :]]
    assert hit >= kills / 2  # they were killed at work
    wait_until(lambda: store.jobs.counts()[JobState.DONE] == len(jobs), 120)
    for worker in workers:
        worker.process.terminate()
        assert worker.process.wait(20) == 0
        assert worker.errors == ""
        finished += [line["job"] for line in worker.told("job finished")]
    assert len(set(finished)) == len(finished) >= len(jobs) - kills
    check_all_done(store, jobs)
    assert max(job_of(store, job.id).fence for job in jobs) > 1  # some were taken over


def test_a_worker_that_slept_through_its_lease_adds_nothing_and_goes_on(
    store: Store, database: Path, tmp_path: Path
) -> None:
    first = submit(store, LARGE, trials=6)
    with worker_process(database, tmp_path / "a", tmp_path, 1, "--special", SLOW) as sleeper:
        sleeper.wait_told("job claimed")
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 1)
        time.sleep(0.6)  # the next trial runs, and ends while its worker sleeps
        sleeper.process.send_signal(signal.SIGSTOP)
        with worker_process(database, tmp_path / "b", tmp_path, 1, "--special", QUICK) as other:
            other.wait_told("job finished")
            assert other.told("job claimed")[0]["job"] == first.id
            rows = rows_of(store, [LARGE])
            sleeper.process.send_signal(signal.SIGCONT)
            sleeper.wait_told("job left to others")
            assert rows_of(store, [LARGE]) == rows
            other.process.terminate()
            assert other.process.wait(20) == 0
        second = submit(store, SMALL, trials=1)
        sleeper.wait_told("job finished")
        assert [line["job"] for line in sleeper.told("job finished")] == [second.id]
        sleeper.process.terminate()
        assert sleeper.process.wait(20) == 0
        assert sleeper.errors == ""
    assert job_of(store, first.id).fence == 2
    check_all_done(store, [first, second])


def test_a_job_that_outlasts_its_lease_stays_with_its_worker(store: Store, database: Path, tmp_path: Path) -> None:
    job = submit(store, LARGE, trials=8)
    slow = ("--special", SLOW)
    with (
        worker_process(database, tmp_path / "a", tmp_path, 2.5, *slow) as one,
        worker_process(database, tmp_path / "b", tmp_path, 2.5, *slow) as two,
    ):
        wait_until(lambda: job_of(store, job.id).state is JobState.DONE)
        for worker in (one, two):
            worker.process.terminate()
            assert worker.process.wait(20) == 0
    assert (job_of(store, job.id).attempts, job_of(store, job.id).fence) == (1, 1)
    check_all_done(store, [job])


def test_sigterm_lets_trials_end_and_the_next_worker_goes_on(store: Store, database: Path, tmp_path: Path) -> None:
    job = submit(store, LARGE, SMALL, trials=8)
    with worker_process(database, tmp_path / "a", tmp_path, 30, "--special", SLOW, "--parallel", "2") as worker:
        worker.wait_told("ready")
        # Only the server is left where no trial runs.
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 2 and len(marked(tmp_path)) == 4)
        worker.process.terminate()
        before = len(rows_of(store, [LARGE]))
        assert worker.process.wait(20) == 0
        assert worker.errors == ""
        assert worker.told("draining: running trials end first")
        assert worker.told("job handed back")
    rows = rows_of(store, [LARGE])
    assert len(rows) >= before
    assert {row.kind for row in rows} == {Kind.OK}  # nothing was cut off
    released = job_of(store, job.id)
    assert (released.state, released.attempts, released.cancel_requested) == (JobState.QUEUED, 0, False)
    with worker_process(database, tmp_path / "b", tmp_path, 30, "--once") as worker:
        assert worker.process.wait(60) == 0
    check_all_done(store, [job])
    check_rows(store, [LARGE, SMALL])


def test_a_second_sigterm_waits_for_no_trial(store: Store, database: Path, tmp_path: Path) -> None:
    job = submit(store, LARGE, trials=8)
    hang = '{"seconds": 1000}'
    with worker_process(database, tmp_path / "a", tmp_path, 30, "--special", hang) as worker:
        worker.wait_told("job claimed")
        wait_until(lambda: len(marked(tmp_path)) == 3)
        worker.process.terminate()
        time.sleep(1)
        assert worker.process.poll() is None  # it waits for the trial
        worker.process.terminate()
        assert worker.process.wait(15) == 0
        assert worker.errors == ""
    released = job_of(store, job.id)
    assert (released.state, released.attempts) == (JobState.QUEUED, 0)
    assert [row for row in rows_of(store, [LARGE]) if row.kind is Kind.OK] == []
    with worker_process(database, tmp_path / "b", tmp_path, 30, "--once") as worker:
        assert worker.process.wait(60) == 0
    check_all_done(store, [job])


def test_a_worker_that_died_too_often_fails_the_job(store: Store, database: Path, tmp_path: Path) -> None:
    job = submit(store, LARGE)
    hang = '{"seconds": 1000}'
    for _ in range(2):
        with worker_process(database, tmp_path / "a", tmp_path, 0.5, "--special", hang, "--attempts", "2") as worker:
            worker.wait_told("job claimed")
    time.sleep(0.6)
    with worker_process(database, tmp_path / "a", tmp_path, 1, "--once", "--attempts", "2") as worker:
        assert worker.process.wait(20) == 0
    failed = job_of(store, job.id)
    assert failed.state is JobState.FAILED
    assert "2 times" in failed.reason
    assert store.measurements(store.environment_id(StandIn().environment)) == []
