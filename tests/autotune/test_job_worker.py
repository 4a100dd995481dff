"""The worker of the job queue: what becomes of a job, whatever the job, its user, the machine and the database do."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import event
from stand_in import LARGE, NO_ROOM, SMALL, Special, StandIn, check_rows, cost_of, default, rows_of, stand_in_pool
from trial_tools import wait_until_gone
from worker_tools import check_all_done, job_of, shapes, submit, wait_until

from pfatune.autotune.job_worker import JobWorker
from pfatune.autotune.pulse import Pulse
from pfatune.autotune.trial import TrialPool
from pfatune.db import JobRequest, JobState, Kind, Store
from pfatune.db.errors import DatabaseLockedError, DatabaseUnreachableError
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.slow

OTHER_FAMILY = Workload(PfaShape(b=4, s2=2048, nq=16, nkv=4))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuned.db", busy_timeout=0.2) as opened:
        yield opened


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TrialPool]:
    with stand_in_pool(tmp_path / "runs", tmp_path) as made:
        yield made
        assert made.running == 0
    assert wait_until_gone(tmp_path) == {}


class Log:
    """A log that is kept: ``events`` are names and values."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.logger: Any = structlog.wrap_logger(
            structlog.ReturnLogger(), processors=[self._keep], wrapper_class=structlog.make_filtering_bound_logger(0)
        )

    def _keep(self, logger: object, level: str, event: Any) -> str:
        self.events.append(dict(event))
        return ""

    def named(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["event"] == name]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def work(store: Store, pool: TrialPool, log: Log) -> Callable[..., JobWorker]:
    """Makes a worker that is quick to look and to try again."""

    def make(
        special: Special | dict[str, Any] | None = None, backend: StandIn | None = None, **options: Any
    ) -> JobWorker:
        chosen = special if callable(special) else (lambda config: special or {})
        settings = {"lease_seconds": 30.0, "poll_seconds": 0.05, "retry_seconds": 0.1, **options}
        return JobWorker(store, backend or StandIn(chosen), pool, owner="tester", log=log.logger, **settings)

    return make


@contextmanager
def running(worker: JobWorker) -> Iterator[None]:
    """The worker at work in a thread, drained at the end unless it has ended."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.drain()
        thread.join(60)
        assert not thread.is_alive()


Work = Callable[..., JobWorker]


def test_a_job_is_done_with_all_its_families(store: Store, work: Work, log: Log) -> None:
    job = submit(store, LARGE, OTHER_FAMILY, SMALL, trials=6)
    work().run(once=True)
    check_all_done(store, [job])
    done = job_of(store, job.id)
    progress = done.progress
    assert (progress["families"], progress["families_done"]) == (2, 2)
    assert (progress["trials"], progress["budget_trials"], progress["known"]) == (12, 12, 0)
    assert (progress["running"], progress["verifying"], progress["tracing"]) == (0, 0, 0)
    assert (progress["kinds"], progress["unit"], progress["seconds_left"]) == ({"ok": 12}, "us", 0)
    assert progress["elapsed_seconds"] > 0
    assert [Workload.from_json(shape) for shape in progress["shapes"]] == [LARGE, OTHER_FAMILY, SMALL]
    for shape in progress["shapes"]:
        workload = Workload.from_json(shape)
        (tuned,) = store.tuned(None, workload)
        assert (shape["default_cost"], shape["best_cost"]) == (cost_of(default(workload), workload), tuned.cost)
        assert tuned.measurement.study == f"job {job.id}"
    product = 1.0
    for shape in progress["shapes"]:
        product *= shape["default_cost"] / shape["best_cost"]
    assert progress["speedup"] == pytest.approx(product ** (1 / 3))
    assert [one["shapes"] for one in log.named("job claimed")] == [3]
    (told,) = log.named("job finished")
    assert (told["job"], told["state"], told["speedup"]) == (job.id, "done", round(progress["speedup"], 3))


def test_progress_is_stored_while_it_works(store: Store, work: Work) -> None:
    job = submit(store, LARGE, trials=100)
    with running(work({"seconds": 0.1})):
        wait_until(lambda: job_of(store, job.id).progress.get("trials", 0) >= 5)
        now = job_of(store, job.id)
        assert now.state is JobState.RUNNING
        assert now.progress["running"] == 1
        assert now.progress["budget_trials"] == 100
        assert now.progress["seconds_left"] > 0
        assert now.progress["last"].endswith(" ok")
        assert now.progress["shapes"][0]["default_cost"] == cost_of(default(LARGE), LARGE)


def test_seconds_are_shared_and_those_of_earlier_attempts_count(store: Store, work: Work) -> None:
    job = submit(store, LARGE, OTHER_FAMILY, trials=None, seconds=4)
    with running(work({"seconds": 0.05})):
        wait_until(lambda: job_of(store, job.id).progress.get("elapsed_seconds", 0) >= 1)
    assert job_of(store, job.id).state is JobState.QUEUED
    started = time.monotonic()
    work({"seconds": 0.05}).run(once=True)
    assert time.monotonic() - started < 3.5
    done = job_of(store, job.id)
    assert done.state is JobState.DONE
    assert done.progress["elapsed_seconds"] >= 4
    assert min(len(rows_of(store, [LARGE])), len(rows_of(store, [OTHER_FAMILY]))) > 3


def test_urgent_jobs_come_first_and_those_of_other_backends_never(store: Store, work: Work, log: Log) -> None:
    requests = [
        JobRequest((workload,), trials=1, backend="npu", priority=priority)
        for workload, priority in zip(shapes(3), (0, 5, 1), strict=True)
    ]
    first, second, third = (store.jobs.submit(request)[0].id for request in requests)
    other = store.jobs.submit(JobRequest((LARGE,), trials=1, backend="sim"))[0].id
    elsewhere = store.jobs.submit(JobRequest((LARGE,), trials=1, backend="npu", soc="950DT"))[0].id
    work().run(once=True)
    assert [one["job"] for one in log.named("job claimed")] == [second, third, first]
    assert {job_of(store, job_id).state for job_id in (other, elsewhere)} == {JobState.QUEUED}


@pytest.mark.parametrize(
    ("workload", "special", "reason"),
    [
        (LARGE, {"time": {"job": "segfault"}}, "cannot be measured (crashed: ended by signal SIGSEGV)"),
        (LARGE, {"wrong": True}, "cannot be measured (wrong_result: failed its check: 3 elements differ)"),
        (Workload(PfaShape(b=2, s2=8192, block_size=96)), {}, "the default configuration is illegal here: unroll_list"),
    ],
    ids=["crash", "wrong", "illegal"],
)
def test_a_default_that_fails_fails_the_job_at_once(
    store: Store, work: Work, log: Log, workload: Workload, special: dict[str, Any], reason: str
) -> None:
    job = submit(store, workload)
    next_one = submit(store, SMALL, trials=1)
    bad = default(workload)
    work(lambda config: special if config == bad else {}).run(once=True)
    failed = job_of(store, job.id)
    assert (failed.state, failed.attempts) == (JobState.FAILED, 1)
    assert reason in failed.reason
    check_all_done(store, [next_one])
    assert log.named("job finished")[0]["reason"] == failed.reason


@pytest.mark.parametrize("only_default", [True, False])
def test_a_machine_that_fails_is_tried_again_and_then_told(
    store: Store, work: Work, log: Log, only_default: bool
) -> None:
    job = submit(store, LARGE)
    fault = {"time": NO_ROOM}
    worker = work(lambda config: fault if (config == default(LARGE)) is only_default else {})
    with running(worker):
        wait_until(lambda: job_of(store, job.id).state.is_final)
    failed = job_of(store, job.id)
    assert (failed.state, failed.attempts) == (JobState.FAILED, 3)
    assert "No space left on device" in failed.reason
    assert failed.reason.endswith("given up after 3 attempts")
    assert len(log.named("job handed back")) == 2
    # The machine is well again, and somebody asks again.
    again = submit(store, LARGE)
    work().run(once=True)
    check_all_done(store, [again])


def test_a_fault_that_passes_costs_an_attempt_and_no_more(store: Store, work: Work, tmp_path: Path) -> None:
    job = submit(store, LARGE)
    fault = {"time": NO_ROOM}
    bad: list[int] = []

    def special(config: object) -> dict[str, Any]:
        bad.append(1)
        return fault if len(bad) <= 3 else {}  # a trial is tried three times

    with running(work(special)):
        wait_until(lambda: job_of(store, job.id).state.is_final)
    assert job_of(store, job.id).attempts == 2
    check_all_done(store, [job])


def test_an_error_that_nobody_foresaw_is_told_on_one_line(
    store: Store, work: Work, log: Log, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken(StandIn):
        def time_job(self, *args: Any, **options: Any) -> dict[str, Any]:
            raise ZeroDivisionError("never\nseen")

    job = submit(store, LARGE)
    with running(work(backend=Broken())):
        wait_until(lambda: job_of(store, job.id).state.is_final)
    failed = job_of(store, job.id)
    assert (failed.state, failed.attempts) == (JobState.FAILED, 3)
    assert failed.reason.startswith("unexpected ZeroDivisionError: never seen at test_job_worker.py:")
    assert capfd.readouterr() == ("", "")


def test_a_running_job_is_cancelled_and_keeps_what_it_has(store: Store, work: Work, log: Log) -> None:
    job = submit(store, LARGE, trials=1000)
    with running(work({"seconds": 0.05}, lease_seconds=1.5)):
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 3)
        asked = time.monotonic()
        store.jobs.cancel(job.id)
        wait_until(lambda: job_of(store, job.id).state.is_final)
        assert time.monotonic() - asked < 30
    cancelled = job_of(store, job.id)
    assert (cancelled.state, cancelled.reason) == (JobState.CANCELLED, "cancelled while it ran")
    rows = rows_of(store, [LARGE])
    assert cancelled.progress["trials"] == len(rows)
    assert cancelled.progress["running"] == 0
    (tuned,) = store.tuned(None, LARGE)
    assert tuned.cost in {row.cost for row in rows}
    check_rows(store, [LARGE])


def test_a_cancel_ends_even_a_trial_that_hangs(store: Store, work: Work) -> None:
    job = submit(store, LARGE)
    with running(work({"seconds": 1000}, lease_seconds=1.5)):
        wait_until(lambda: job_of(store, job.id).state is JobState.RUNNING)
        time.sleep(0.3)
        store.jobs.cancel(job.id)
        wait_until(lambda: job_of(store, job.id).state.is_final, 15)
    assert job_of(store, job.id).state is JobState.CANCELLED
    assert rows_of(store, [LARGE]) == []


def test_drained_it_finishes_its_trial_and_hands_the_job_back(store: Store, work: Work, log: Log) -> None:
    job = submit(store, LARGE, trials=6)
    for _ in range(3):
        before = len(rows_of(store, [LARGE]))
        with running(work({"seconds": 0.3})):
            wait_until(lambda before=before: len(rows_of(store, [LARGE])) > before)  # type: ignore[misc]
    released = job_of(store, job.id)
    assert (released.state, released.attempts, released.fence) == (JobState.QUEUED, 0, 3)
    assert {row.kind for row in rows_of(store, [LARGE])} == {Kind.OK}
    work().run(once=True)
    check_all_done(store, [job])


def test_asked_to_drain_before_it_began_it_claims_nothing(store: Store, work: Work) -> None:
    job = submit(store, LARGE)
    worker = work()
    worker.drain()
    worker.run()
    assert job_of(store, job.id).fence == 0


def test_stopped_it_waits_for_nothing(store: Store, work: Work) -> None:
    job = submit(store, LARGE, trials=6)
    worker = work({"seconds": 1000})
    with running(worker):
        wait_until(lambda: job_of(store, job.id).state is JobState.RUNNING)
        time.sleep(0.3)
        worker.drain()
        worker.stop()
        wait_until(lambda: job_of(store, job.id).state is JobState.QUEUED, 15)
    assert job_of(store, job.id).attempts == 0
    work().run(once=True)
    check_all_done(store, [job])


def test_a_lease_that_cannot_be_renewed_is_given_up(
    store: Store, work: Work, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before the job can be another's; here it is then its own again."""
    job = submit(store, LARGE, trials=60)

    def refuse(*args: Any, **options: Any) -> bool:
        raise DatabaseLockedError(name="test", seconds=0.2)

    with running(work({"seconds": 0.05}, lease_seconds=1)), monkeypatch.context() as patch:
        patch.setattr(store.jobs, "heartbeat", refuse)
        wait_until(lambda: bool(log.named("job left to others")))
        assert len(rows_of(store, [LARGE])) < 60
        patch.undo()
        wait_until(lambda: job_of(store, job.id).state.is_final)
    assert job_of(store, job.id).fence >= 2
    check_all_done(store, [job])


def test_the_claim_loop_outlives_every_error(
    store: Store, work: Work, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = store.jobs.claim
    errors: list[Exception] = [
        DatabaseUnreachableError(name="test", detail="gone"),
        DatabaseLockedError(name="test", seconds=0.2),
        RuntimeError("odd"),
    ]

    def sometimes(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return claim(*args, **options)

    monkeypatch.setattr(store.jobs, "claim", sometimes)
    job = submit(store, LARGE, trials=1)
    work().run(once=True)
    check_all_done(store, [job])
    told = log.named("no job can be claimed")
    assert [one["seconds"] for one in told] == [0.5, 1.0, 2.0]
    assert "unexpected RuntimeError: odd" in told[2]["reason"]


_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""


def test_a_database_that_stays_locked_costs_nothing_but_time(
    store: Store, work: Work, log: Log, tmp_path: Path
) -> None:
    """Another process keeps the lock for forty times as long as anyone waits for it."""
    job = submit(store, LARGE, trials=12)
    with running(work({"seconds": 0.1})):
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 3)
        command = [sys.executable, "-c", _LOCK, str(tmp_path / "tuned.db"), "8"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as locker:
            assert locker.stdout is not None
            assert locker.stdout.readline() == "locked\n"
            held = len(rows_of(store, [LARGE]))
            time.sleep(4)
            assert len(rows_of(store, [LARGE])) == held
        wait_until(lambda: job_of(store, job.id).state.is_final)
    done = job_of(store, job.id)
    assert (done.attempts, done.fence) == (1, 1)  # it never let go of the job
    assert len(log.named("a result waits to be stored")) == 1
    check_all_done(store, [job])


def test_a_job_whose_database_stays_locked_past_its_lease_is_done_by_the_next(
    store: Store, work: Work, log: Log, tmp_path: Path
) -> None:
    job = submit(store, LARGE, trials=12)
    with running(work({"seconds": 0.1}, lease_seconds=1, max_attempts=10)):
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 3)
        command = [sys.executable, "-c", _LOCK, str(tmp_path / "tuned.db"), "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as locker:
            assert locker.stdout is not None
            locker.stdout.readline()
        wait_until(lambda: job_of(store, job.id).state.is_final)
    assert log.named("job left to others")
    check_all_done(store, [job])


class Disk:
    """Room for the database's pages, taken away and given back."""

    def __init__(self, store: Store) -> None:
        self.is_full = False
        event.listen(store.database._engine, "begin", self._limit)

    def _limit(self, connection: Any) -> None:
        # SQLite sets it no lower than what is there. Every write takes a new page then, or is refused.
        pages = 1 if self.is_full else 2**30
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_keeps_a_result_waiting_and_nothing_half(
    store: Store, work: Work, log: Log, tmp_path: Path
) -> None:
    disk = Disk(store)
    job = submit(store, LARGE, trials=25)
    with running(work({"seconds": 0.02})):
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 3)
        disk.is_full = True
        wait_until(lambda: bool(log.named("a result waits to be stored")))
        assert "no space is left" in log.named("a result waits to be stored")[0]["error"]
        held = rows_of(store, [LARGE])
        time.sleep(1)
        assert rows_of(store, [LARGE]) == held
        with sqlite3.connect(tmp_path / "tuned.db") as other:
            assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        other.close()
        disk.is_full = False
        wait_until(lambda: job_of(store, job.id).state.is_final)
    assert job_of(store, job.id).fence == 1
    check_all_done(store, [job])


def test_a_worker_that_is_stopped_while_the_disk_is_full_leaves_the_job_whole(
    store: Store, work: Work, log: Log
) -> None:
    disk = Disk(store)
    job = submit(store, LARGE, trials=25)
    worker = work({"seconds": 0.02})
    with running(worker):
        wait_until(lambda: len(rows_of(store, [LARGE])) >= 3)
        disk.is_full = True
        wait_until(lambda: bool(log.named("a result waits to be stored")))
        worker.stop()
    disk.is_full = False
    check_rows(store, [LARGE])
    if job_of(store, job.id).state is JobState.RUNNING:  # there was no room to hand it back: its lease runs out
        store.jobs.release(_lease_of(store, job.id))
    work().run(once=True)
    check_all_done(store, [job])


def _lease_of(store: Store, job_id: int) -> Any:
    from pfatune.db import Lease

    job = job_of(store, job_id)
    return Lease(job.id, job.owner, job.fence)


def test_it_beats_busy_idle_and_in_trouble(store: Store, work: Work, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[float] = []
    submit(store, LARGE, trials=20)
    with running(work({"seconds": 0.1}, beat=lambda: beats.append(time.monotonic()))):
        wait_until(lambda: bool(log.named("job finished")))
        time.sleep(1.5)

        def refuse(*args: Any, **options: Any) -> Any:
            raise DatabaseUnreachableError(name="test", detail="gone")

        monkeypatch.setattr(store.jobs, "claim", refuse)
        wait_until(lambda: len(log.named("no job can be claimed")) >= 3)
    assert max(later - earlier for earlier, later in pairwise(beats)) < 5
    assert len(beats) >= 5


def test_a_main_loop_that_hangs_is_no_sign_of_life() -> None:
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        raise OSError("the disk is full")  # of no concern to the worker

    with Pulse(beat, every=0.01, silence=0.2) as pulse:
        wait_until(lambda: len(beats) > 3)
        time.sleep(0.4)
        silent = len(beats)
        time.sleep(0.2)
        assert len(beats) == silent
        pulse.sign()
        wait_until(lambda: len(beats) > silent)
