"""The queue of tuning jobs: submitted once, claimed by one worker at a time, ended once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import case, false, func, select, true, update

from . import leases, submission
from .engine import Database
from .job_records import Job, JobRequest, JobState, Lease, check_span
from .job_rows import clipped, get, is_open, job_of
from .records import storable
from .tables import UtcIn, UtcNow, job

MAX_PROGRESS_BYTES = 256 * 1024
MAX_KEY = 200  # characters
_CANCELLED_WAITING = "cancelled while it waited"


class JobQueue:
    """Jobs in one database, shared by threads, processes and hosts.

    Every method is one transaction, and every time is by the database's clock. A worker holds a
    job by a lease: one that has expired may be claimed by anybody, and from then on the former
    holder can change nothing.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def submit(
        self,
        request: JobRequest,
        *,
        idempotency_key: str | None = None,
        body_digest: str = "",
        max_open: int = 1000,
    ) -> tuple[Job, bool]:
        """The job that answers a request, and whether it was created just now.

        A job that is queued or running for the same request is given again, queued with the
        higher of both priorities, unless its cancellation was asked for. ``idempotency_key``
        names the act of submitting: the same key with the same ``body_digest`` gives the same
        job for ever, in whatever state.

        Raises:
            IdempotencyConflictError: the key was used with another ``body_digest``.
            QueueFullError: ``max_open`` jobs are queued or running.
            ValueError: the key is empty, too long or not printable.
        """
        if idempotency_key is not None:
            _check_key(idempotency_key)
        with self.database.write() as connection:
            return submission.submit(connection, request, idempotency_key, body_digest, max_open)

    def get(self, job_id: int) -> Job | None:
        """The job of that id; None when there is none."""
        with self.database.read() as connection:
            return get(connection, job_id)

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; every state is named."""
        query = select(job.c.state, func.count()).group_by(job.c.state)
        with self.database.read() as connection:
            found = {JobState(state): count for state, count in connection.execute(query)}
        return dict.fromkeys(JobState, 0) | found

    def oldest_queued_seconds(self) -> float | None:
        """How long ago the oldest of the queued jobs was submitted; None when none is queued."""
        query = select(job.c.created_at, UtcNow()).where(job.c.state == JobState.QUEUED.value)
        with self.database.read() as connection:
            row = connection.execute(query.order_by(job.c.id).limit(1)).first()
        return None if row is None else max(0.0, (row[1] - row[0]).total_seconds())

    def cancel(self, job_id: int) -> Job | None:
        """Cancel a queued job at once, and ask the worker of a running one to end it.

        Returns the job as it is then, a finished one unchanged; None when there is none.
        """
        queued = job.c.state == JobState.QUEUED.value
        statement = (
            update(job)
            .where(job.c.id == job_id, is_open(), job.c.cancel_requested == false())
            .values(
                cancel_requested=true(),
                state=case((queued, JobState.CANCELLED.value), else_=job.c.state),
                finished_at=case((queued, UtcNow())),
                reason=case((queued, _CANCELLED_WAITING), else_=job.c.reason),
                updated_at=UtcNow(),
            )
        )
        with self.database.write() as connection:
            connection.execute(statement)
            return get(connection, job_id)

    def claim(
        self, owner: str, *, seconds: float, backend: str, soc: str, max_attempts: int = 3
    ) -> tuple[Job, Lease] | None:
        """Lease the next queued job of a backend and SoC for some seconds: highest priority first, then oldest.

        Running jobs whose lease has expired are put back first; those that used up
        ``max_attempts`` claims fail instead, and those that were to be cancelled are. None when
        no job waits.

        Raises:
            ValueError: ``owner`` is empty, or ``seconds`` is no time.
        """
        if not owner:
            raise ValueError("owner is empty: name the worker, for example host:pid")
        check_span("seconds", seconds, above_zero=True)
        with self.database.write() as connection:
            claimed = leases.claim(connection, storable(owner), seconds, backend, soc, max_attempts)
        return None if claimed is None else (claimed, Lease(claimed.id, claimed.owner, claimed.fence))

    def heartbeat(self, lease: Lease, *, seconds: float) -> bool:
        """Let the lease last for some seconds from now, also when it has expired and nobody took the job.

        Returns whether the worker is asked to cancel the job.

        Raises:
            LeaseLostError: the job was taken over, or has ended.
        """
        check_span("seconds", seconds, above_zero=True)
        return self._change(lease, lease_expires_at=UtcIn(seconds))

    def report(self, lease: Lease, progress: Mapping[str, Any]) -> bool:
        """Store how far the job is, and return whether the worker is asked to cancel it.

        Raises:
            LeaseLostError: the job was taken over, or has ended.
            ValueError: ``progress`` is no JSON, or longer than ``MAX_PROGRESS_BYTES``.
        """
        return self._change(lease, progress=_checked_progress(progress))

    def finish(
        self, lease: Lease, state: JobState, *, progress: Mapping[str, Any] | None = None, reason: str = ""
    ) -> None:
        """End the job, once and for good.

        Raises:
            LeaseLostError: the job was taken over, or has ended.
            ValueError: ``state`` is not final, or ``progress`` is as in ``report``.
        """
        if not state.is_final:
            raise ValueError(f"state is {state}: finish a job as done, failed or cancelled")
        values = {} if progress is None else {"progress": _checked_progress(progress)}
        self._change(
            lease,
            state=state.value,
            reason=clipped(reason),
            finished_at=UtcNow(),
            lease_expires_at=None,
            **values,
        )

    def release(self, lease: Lease, *, reason: str = "", delay: float = 0.0, count: bool = False) -> None:
        """Hand the job back, to be claimed again after ``delay`` seconds; one to be cancelled is, and ends.

        The attempt is forgotten unless ``count`` is set.

        Raises:
            LeaseLostError: the job was taken over, or has ended.
            ValueError: ``delay`` is no time.
        """
        check_span("delay", delay)
        wanted = job.c.cancel_requested == false()
        self._change(
            lease,
            state=case((wanted, JobState.QUEUED.value), else_=JobState.CANCELLED.value),
            finished_at=case((wanted, None), else_=UtcNow()),
            attempts=job.c.attempts - (0 if count else 1),
            reason=clipped(reason),
            lease_expires_at=None,
            not_before=UtcIn(delay) if delay else None,
        )

    def list(self, *, state: JobState | None = None, before: int | None = None, limit: int = 50) -> Sequence[Job]:
        """Jobs, newest first: of one state, and older than the job ``before``, where these are given."""
        query = select(job).order_by(job.c.id.desc()).limit(limit)
        if state is not None:
            query = query.where(job.c.state == state.value)
        if before is not None:
            query = query.where(job.c.id < before)
        with self.database.read() as connection:
            return [job_of(row) for row in connection.execute(query).mappings()]

    def _change(self, lease: Lease, **values: Any) -> bool:
        """Change the job if the lease still holds, and return whether its cancellation is asked for."""
        statement = update(job).where(leases.is_held(lease)).values(updated_at=UtcNow(), **values)
        with self.database.write() as connection:
            cancel: bool | None = connection.execute(statement.returning(job.c.cancel_requested)).scalar_one_or_none()
        if cancel is None:
            raise leases.lost(lease)
        return cancel


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise ValueError(f"idempotency key has {len(key)} characters: give from 1 to {MAX_KEY} printable ones")


def _checked_progress(progress: Mapping[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(dict(progress), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"progress is no JSON ({error}): give numbers, texts, lists and objects") from error
    if size > MAX_PROGRESS_BYTES:
        raise ValueError(f"progress has {size} bytes: give at most {MAX_PROGRESS_BYTES}")
    return dict(progress)
