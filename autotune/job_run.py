"""One job at a worker: its families tuned one after another, under its lease."""

from __future__ import annotations

import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from ..db.errors import LeaseLostError, StoreError
from ..db.job_records import Job, Lease
from ..db.store import Store
from ..kernel.shapes import Workload
from .backend import Backend
from .families import share_of_seconds
from .job_progress import JobProgress
from .lease_keeper import LeaseKeeper
from .progress import Budget, Progress, TuneResult
from .trial import TrialPool
from .tuner import Tuner

_REPORT_SECONDS = 1.0  # between two reports of progress to the database
_STORE_SECONDS = 0.5  # between two attempts at a write that the database refused


class JobRun:
    """Tunes what one job asks for. ``sign`` is called all along, as a sign of life.

    ``drain`` and ``cancel`` may be called from other threads and from signal handlers.
    """

    def __init__(
        self,
        store: Store,
        backend: Backend,
        pool: TrialPool,
        job: Job,
        lease: Lease,
        *,
        parallel: int,
        log: FilteringBoundLogger,
        tell_trials: bool,
        sign: Callable[[], None],
    ) -> None:
        self._jobs = store.jobs
        self._store = store.under(lease)
        self._backend = backend
        self._pool = pool
        self._job = job
        self._lease = lease
        self._parallel = parallel
        self._log = log
        self._tell_trials = tell_trials
        self._sign = sign
        self._keeper: LeaseKeeper | None = None
        self._tuner: Tuner | None = None
        self._draining = False
        self._cancelled = False
        self._last = ""
        self._reported = time.monotonic()
        self._is_waiting = False
        self._is_drain_told = False
        self.progress = JobProgress(job.request, backend.environment.unit, job.progress)

    def drain(self) -> None:
        """Let running trials end, and start no more."""
        self._draining = True
        if self._tuner is not None:
            self._tuner.drain()

    def cancel(self) -> None:
        """End everything at once."""
        self._cancelled = True
        if self._tuner is not None:
            self._tuner.cancel()

    def run(self, keeper: LeaseKeeper) -> bool:
        """Tune; whether the job is done, rather than stopped before its end.

        Raises:
            DefaultFailedError, WorkerSetupError, StoreError: as ``Tuner.run``.
        """
        self._keeper = keeper
        families = self.progress.families
        for done, workloads in enumerate(families):
            if self._draining or self._cancelled:
                return False
            left = share_of_seconds(self._job.request.seconds, self.progress.elapsed, len(families) - done)
            ended = self._tune(workloads, Budget(self._job.request.trials, left)).progress
            self.progress.watch(ended)  # of which a run that has nothing left to do tells nothing
            if ended.drained or ended.interrupted:
                return False
            self.progress.families_done += 1
        return True

    def report(self) -> None:
        """Store how far the job is; that this fails does not matter, as long as the job is this worker's."""
        keeper = self._keeper
        self._reported = time.monotonic()
        try:
            if self._jobs.report(self._lease, self.progress.to_json()) and keeper is not None:
                keeper.request_cancel()
        except LeaseLostError:
            if keeper is not None:
                keeper.lose()
        except StoreError as error:
            self._log.info("progress not stored", error=str(error))
        self._reported = time.monotonic()

    def _tune(self, workloads: tuple[Workload, ...], budget: Budget) -> TuneResult:
        tuner = Tuner(
            self._store,
            self._backend,
            self._pool,
            workloads,
            budget=budget,
            parallel=self._parallel,
            watch=self._watch,
            study=f"job {self._job.id}",
            warn=self._log.warning,
            wait_for_store=self._wait_for_store,
        )
        self._tuner = tuner
        # What was asked before there was a tuner to tell.
        if self._draining:
            tuner.drain()
        if self._cancelled:
            tuner.cancel()
        try:
            return tuner.run()
        finally:
            self._tuner = None

    def _watch(self, progress: Progress) -> None:
        self._sign()
        self._is_waiting = False
        self.progress.watch(progress)
        if progress.last != self._last:
            self._last = progress.last
            if self._tell_trials:
                self._log.info("trial ended", last=progress.last, trials=progress.trials)
        if self._draining and not self._is_drain_told:
            self._is_drain_told = True
            self._log.info("draining: running trials end first", running=progress.running)
        since = time.monotonic() - self._reported
        # Between two trials nothing runs for a moment, which is not what people want to know.
        if since >= _REPORT_SECONDS and (progress.running or since >= 2 * _REPORT_SECONDS):
            self.report()

    def _wait_for_store(self, error: StoreError) -> bool:
        """Keep a finished measurement until the database takes it, or the lease is gone."""
        self._sign()
        if not self._is_waiting:
            self._is_waiting = True
            self._log.warning("a result waits to be stored", error=str(error))
        time.sleep(_STORE_SECONDS)
        return not self._cancelled
