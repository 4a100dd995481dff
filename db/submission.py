"""Which job answers a request: a known one, or a new one while there is room."""

from __future__ import annotations

from sqlalchemy import Connection, false, func, insert, select, update

from .errors import IdempotencyConflictError, QueueFullError
from .job_records import Job, JobRequest, JobState
from .job_rows import get, is_open, job_of
from .tables import UtcNow, job, job_key

#: Key of the lock under which PostgreSQL's submitters take turns.
_SUBMITTING = 0x70666A71


def submit(
    connection: Connection, request: JobRequest, idempotency_key: str | None, body_digest: str, max_open: int
) -> tuple[Job, bool]:
    """The job for a request and whether it is new, inside the caller's write transaction.

    Raises:
        IdempotencyConflictError, QueueFullError: as ``JobQueue.submit``.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_SUBMITTING)))
    if idempotency_key is not None:
        known = _known_by_key(connection, idempotency_key, body_digest)
        if known is not None:
            return known, False
    found = _join(connection, request)
    created = found is None
    if found is None:
        _require_room(connection, max_open)
        found = _insert(connection, request)
    if idempotency_key is not None:
        key = {"key": idempotency_key, "body_digest": body_digest, "job_id": found.id}
        connection.execute(insert(job_key).values(key))
    return found, created


def _known_by_key(connection: Connection, key: str, body_digest: str) -> Job | None:
    row = connection.execute(select(job_key).where(job_key.c.key == key)).first()
    if row is None:
        return None
    if row.body_digest != body_digest:
        raise IdempotencyConflictError(key=key, job_id=row.job_id)
    return get(connection, row.job_id)


def _join(connection: Connection, request: JobRequest) -> Job | None:
    """The open job of the same request, made as urgent as this one."""
    query = select(job).where(job.c.digest == request.digest, is_open(), job.c.cancel_requested == false())
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    more_urgent = (
        update(job)
        .where(job.c.id == row["id"], job.c.state == JobState.QUEUED.value, job.c.priority < request.priority)
        .values(priority=request.priority, updated_at=UtcNow())
        .returning(*job.c)
    )
    return job_of(connection.execute(more_urgent).mappings().first() or row)


def _require_room(connection: Connection, max_open: int) -> None:
    count: int = connection.execute(select(func.count()).select_from(job).where(is_open())).scalar_one()
    if count >= max_open:
        raise QueueFullError(open_jobs=count, max_open=max_open)


def _insert(connection: Connection, request: JobRequest) -> Job:
    asked = request.to_json()
    values = {
        "priority": asked.pop("priority"),
        "request": asked,
        "digest": request.digest,
        "backend": request.backend,
        "soc": request.soc,
        "state": JobState.QUEUED.value,
        "attempts": 0,
        "fence": 0,
        "owner": "",
        "progress": {},
        "reason": "",
        "cancel_requested": False,
    }
    return job_of(connection.execute(insert(job).values(values).returning(*job.c)).mappings().one())
