"""The worker of the job queue: claims a job, tunes it, ends it, and takes the next.

Nothing that finished is lost and nothing is measured twice, whatever ends a worker: measurements
are stored as they come, a job whose worker is gone is claimed again when its lease has run out,
and what writes for a job is refused unless the lease is still this worker's.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
from structlog.typing import FilteringBoundLogger

from ..db.errors import (
    DatabaseDamagedError,
    DatabaseFailedError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseUnreachableError,
    LeaseLostError,
    OpenError,
    StoreError,
)
from ..db.job_records import Job, JobState, Lease
from ..db.store import Store
from .backend import Backend
from .errors import DefaultFailedError, WorkerSetupError
from .job_run import JobRun
from .lease_keeper import LeaseKeeper
from .pulse import Pulse
from .trial import TrialPool

#: Errors that say something of the database and nothing of the job.
_DATABASE_ERRORS = (
    DatabaseLockedError,
    DatabaseFullError,
    DatabaseUnreachableError,
    DatabaseFailedError,
    DatabaseDamagedError,
    OpenError,
)
_SLICE = 0.1  # seconds between looks at whether to end; an event's lock is no place for a signal handler
_FIRST_PAUSE = 0.5  # seconds after trouble, doubled each time
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class _Ending:
    """What becomes of a job; ``state`` None: back to the queue, ``counted`` as an attempt, after ``delay`` seconds."""

    state: JobState | None
    reason: str = ""
    counted: bool = False
    delay: float = 0.0
    trouble: bool = False  # of this machine or the database


class JobWorker:
    """Works on the jobs of one backend and SoC until it is drained.

    Args:
        store: the queue, and where measurements go.
        backend: what measures.
        pool: its trials; this worker's alone.
        owner: who this worker is, for people; leases are told apart without it.
        lease_seconds: how long a job stays this worker's without a sign of life.
        poll_seconds: between looks at an empty queue.
        parallel: trials at once.
        max_attempts: claims of a job, after which it fails.
        retry_seconds: before a job that failed on this machine is tried again, times its attempts.
        beat: called every second or so, from another thread, while the worker is healthy.
        log: where jobs claimed and ended are told.
        tell_trials: tell the end of each trial as well.
    """

    def __init__(
        self,
        store: Store,
        backend: Backend,
        pool: TrialPool,
        *,
        owner: str,
        lease_seconds: float = 30.0,
        poll_seconds: float = 1.0,
        parallel: int = 1,
        max_attempts: int = 3,
        retry_seconds: float = 30.0,
        beat: Callable[[], None] = lambda: None,
        log: FilteringBoundLogger | None = None,
        tell_trials: bool = False,
    ) -> None:
        self._store = store
        self._backend = backend
        self._pool = pool
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._parallel = parallel
        self._max_attempts = max_attempts
        self._retry_seconds = retry_seconds
        self._log: FilteringBoundLogger = log if log is not None else structlog.get_logger()
        self._tell_trials = tell_trials
        self._pulse = Pulse(beat)
        self._run: JobRun | None = None
        self._draining = False
        self._stopping = False
        self._pause_seconds = 0.0

    def drain(self) -> None:
        """Let running trials end and be stored, hand the job back, and return from ``run``.

        May be called from a signal handler or another thread, also before ``run``.
        """
        self._draining = True
        if self._run is not None:
            self._run.drain()

    def stop(self) -> None:
        """The same, but end running trials at once."""
        self._stopping = self._draining = True
        if self._run is not None:
            self._run.cancel()

    def run(self, *, once: bool = False) -> None:
        """Work on one job after another until drained; with ``once`` until no job can be claimed."""
        with self._pulse:
            while not self._draining:
                self._pulse.sign()
                try:
                    claimed = self._claim()
                except StoreError as error:
                    self._pause_after_trouble("no job can be claimed", str(error))
                    continue
                except Exception as error:
                    self._pause_after_trouble("no job can be claimed", _told(error))
                    continue
                if claimed is not None:
                    self._work(*claimed)
                elif once:
                    return
                else:
                    self._pause_seconds = 0.0
                    self._pause(self._poll_seconds)

    def _claim(self) -> tuple[Job, Lease] | None:
        return self._store.jobs.claim(
            self._owner,
            seconds=self._lease_seconds,
            backend=self._backend.name,
            soc=self._backend.soc.name,
            max_attempts=self._max_attempts,
        )

    def _work(self, job: Job, lease: Lease) -> None:
        started = time.monotonic()
        log = self._log.bind(job=job.id)
        log.info("job claimed", shapes=len(job.request.workloads), attempt=job.attempts)
        run = JobRun(
            self._store,
            self._backend,
            self._pool,
            job,
            lease,
            parallel=self._parallel,
            log=log,
            tell_trials=self._tell_trials,
            sign=self._pulse.sign,
        )
        self._run = run
        if self._draining:  # asked between the claim and here
            run.drain()
        if self._stopping:
            run.cancel()
        with LeaseKeeper(self._store.jobs, lease, seconds=self._lease_seconds, cancel=run.cancel) as keeper:
            ending = self._tune(job, run, keeper)
            is_ended = not keeper.lost and self._end(lease, run, keeper, ending, log)
        self._run = None
        seconds = round(time.monotonic() - started, 1)
        if not is_ended:
            log.warning("job left to others", reason=ending.reason or "the lease ran out", seconds=seconds)
        elif ending.state is None:
            log.info("job handed back", reason=ending.reason, seconds=seconds, again_in=ending.delay)
        else:
            speedup = run.progress.speedup
            log.info(
                "job finished",
                shapes=len(job.request.workloads),
                state=str(ending.state),
                seconds=seconds,
                speedup=None if speedup is None else round(speedup, 3),
                **({"reason": ending.reason} if ending.reason else {}),
            )
        if ending.trouble:
            self._pause_after_trouble("pausing", ending.reason)
        else:
            self._pause_seconds = 0.0

    def _tune(self, job: Job, run: JobRun, keeper: LeaseKeeper) -> _Ending:
        """Do the work; whatever becomes of it, the worker goes on."""
        try:
            if run.run(keeper):
                return _Ending(JobState.DONE)
        except DefaultFailedError as error:
            return self._failed_attempt(job, str(error)) if error.by_machine else _Ending(JobState.FAILED, str(error))
        except LeaseLostError as error:
            keeper.lose()
            return _Ending(None, str(error))
        except Exception as error:
            if keeper.cancel_requested:
                return _Ending(JobState.CANCELLED, "cancelled while it ran")
            if isinstance(error, _DATABASE_ERRORS):
                return _Ending(None, str(error), trouble=True)
            known = isinstance(error, WorkerSetupError | StoreError)
            return self._failed_attempt(job, str(error) if known else _told(error))
        if keeper.lost:
            return _Ending(None, "the lease ran out or was taken over")
        if keeper.cancel_requested:
            return _Ending(JobState.CANCELLED, "cancelled while it ran")
        if not self._draining:  # a KeyboardInterrupt, where no signal handler of ours came first
            self.stop()
        return _Ending(None, f"its worker {self._owner} was stopped")

    def _failed_attempt(self, job: Job, reason: str) -> _Ending:
        if job.attempts >= self._max_attempts:
            return _Ending(JobState.FAILED, f"{reason}; given up after {job.attempts} attempts", trouble=True)
        return _Ending(None, reason, counted=True, delay=self._retry_seconds * job.attempts, trouble=True)

    def _end(self, lease: Lease, run: JobRun, keeper: LeaseKeeper, ending: _Ending, log: FilteringBoundLogger) -> bool:
        """Write what became of the job, for as long as it is this worker's; whether that was done."""
        jobs = self._store.jobs
        attempt = 0
        while True:
            try:
                if ending.state is not None:
                    jobs.finish(lease, ending.state, progress=run.progress.to_json(), reason=ending.reason)
                else:
                    run.report()
                    jobs.release(lease, reason=ending.reason, delay=ending.delay, count=ending.counted)
                return True
            except LeaseLostError:
                # Where the answer to an earlier attempt was lost, that one may well have done it.
                return attempt > 0 and _is_ended_as(self._store, lease, ending)
            except Exception as error:
                attempt += 1
                if attempt == 1:
                    log.warning("the job's end waits to be stored", error=_told(error))
                if keeper.lost or self._stopping:
                    return False
                self._pulse.sign()
                time.sleep(_FIRST_PAUSE)

    def _pause_after_trouble(self, event: str, reason: str) -> None:
        """Wait longer each time: what is broken for one job is likely to be broken for the next."""
        self._pause_seconds = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause_seconds))
        self._log.warning(event, reason=reason, seconds=self._pause_seconds)
        self._pause(self._pause_seconds)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._draining and (left := deadline - time.monotonic()) > 0:
            self._pulse.sign()
            time.sleep(min(_SLICE, left))


def _is_ended_as(store: Store, lease: Lease, ending: _Ending) -> bool:
    try:
        job = store.jobs.get(lease.job_id)
    except StoreError:
        return False
    return job is not None and job.fence == lease.fence and job.state is (ending.state or JobState.QUEUED)


def _told(error: Exception) -> str:
    """An error that nobody foresaw on one line, with the place it comes from."""
    if isinstance(error, StoreError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}: {' '.join(str(error).split())}{place}"
