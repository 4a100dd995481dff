"""Jobs as rows: what the parts of the queue have in common."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from .job_records import OPEN_STATES, Job, JobRequest, JobState
from .records import storable
from .rows import Row
from .tables import job

MAX_REASON = 4000  # characters


def job_of(row: Row) -> Job:
    return Job(
        id=row["id"],
        request=JobRequest.from_json(row["request"] | {"priority": row["priority"]}),
        state=JobState(row["state"]),
        attempts=row["attempts"],
        fence=row["fence"],
        owner=row["owner"],
        progress=row["progress"],
        reason=row["reason"],
        cancel_requested=row["cancel_requested"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        lease_expires_at=row["lease_expires_at"],
        updated_at=row["updated_at"],
    )


def get(connection: Connection, job_id: int) -> Job | None:
    row = connection.execute(select(job).where(job.c.id == job_id)).mappings().first()
    return None if row is None else job_of(row)


def is_open() -> ColumnElement[bool]:
    return job.c.state.in_([state.value for state in OPEN_STATES])


def clipped(reason: str) -> str:
    return storable(reason)[:MAX_REASON]
