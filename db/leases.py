"""Who may work on which job: the next one to claim, leases that hold, and those that are over."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Select, Update, or_, select, update

from .errors import LeaseLostError
from .job_records import Job, JobState, Lease
from .job_rows import clipped, job_of
from .tables import UtcIn, UtcNow, job


def is_held(lease: Lease) -> ColumnElement[bool]:
    held: ColumnElement[bool] = (
        (job.c.id == lease.job_id)
        & (job.c.fence == lease.fence)
        & (job.c.owner == lease.owner)
        & (job.c.state == JobState.RUNNING.value)
    )
    return held


def lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(job_id=lease.job_id, owner=lease.owner, fence=lease.fence)


def require_lease(connection: Connection, lease: Lease) -> None:
    """Make sure that a lease holds until the caller's write transaction ends.

    Raises:
        LeaseLostError: the job was taken over, or has ended.
    """
    # The lock keeps PostgreSQL's claimers from the job until what is written under it is there.
    query = select(job.c.id).where(is_held(lease)).with_for_update(read=True)
    if connection.execute(query).first() is None:
        raise lost(lease)


def claim(connection: Connection, owner: str, seconds: float, backend: str, soc: str, max_attempts: int) -> Job | None:
    """The next job, running under a new lease, inside the caller's write transaction; None when none waits."""
    _take_back_expired(connection, max_attempts)
    while True:
        row = connection.execute(_next_queued(backend, soc)).first()
        if row is None:
            return None
        if row.attempts < max_attempts:
            break
        _end(connection, row.id, JobState.FAILED, f"given up after {row.attempts} attempts: {row.reason}")
    values = {
        "state": JobState.RUNNING.value,
        "owner": owner,
        "fence": job.c.fence + 1,
        "attempts": job.c.attempts + 1,
        "lease_expires_at": UtcIn(seconds),
        "started_at": UtcNow(),
    }
    return job_of(connection.execute(_update_of(row.id).values(values).returning(*job.c)).mappings().one())


def _take_back_expired(connection: Connection, max_attempts: int) -> None:
    # A job that is locked is being worked on, or taken back by another claimer.
    query = (
        select(job.c.id, job.c.attempts, job.c.owner, job.c.cancel_requested)
        .where(job.c.state == JobState.RUNNING.value, job.c.lease_expires_at <= UtcNow())
        .with_for_update(skip_locked=True, key_share=True)
    )
    for row in connection.execute(query).all():
        times = "once" if row.attempts == 1 else f"{row.attempts} times"
        died = f"its worker died or lost its lease {times}, last {row.owner}"
        if row.cancel_requested:
            _end(connection, row.id, JobState.CANCELLED, f"cancelled; {died}")
        elif row.attempts >= max_attempts:
            _end(connection, row.id, JobState.FAILED, died)
        else:
            values = {"state": JobState.QUEUED.value, "lease_expires_at": None, "reason": clipped(died)}
            connection.execute(_update_of(row.id).values(values))


def _next_queued(backend: str, soc: str) -> Select[tuple[int, int, str]]:
    return (
        select(job.c.id, job.c.attempts, job.c.reason)
        .where(
            job.c.state == JobState.QUEUED.value,
            job.c.backend == backend,
            job.c.soc == soc,
            or_(job.c.not_before.is_(None), job.c.not_before <= UtcNow()),
        )
        .order_by(job.c.priority.desc(), job.c.id)
        .limit(1)
        .with_for_update(skip_locked=True, key_share=True)
    )


def _end(connection: Connection, job_id: int, state: JobState, reason: str) -> None:
    values = {"state": state.value, "reason": clipped(reason), "finished_at": UtcNow(), "lease_expires_at": None}
    connection.execute(_update_of(job_id).values(values))


def _update_of(job_id: int) -> Update:
    return update(job).where(job.c.id == job_id).values(updated_at=UtcNow())
