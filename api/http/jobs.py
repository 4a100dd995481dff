"""``/tune``: asking for shapes to be tuned, and watching that."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from ...db.errors import StoreError
from ...db.job_records import Job, JobRequest, JobState
from ...db.records import Kind
from ...db.store import Store
from .auth import Writer
from .models import (
    DEFAULT_TRIALS,
    JobOut,
    JobPage,
    JobStateName,
    ProgressOut,
    TuneRequest,
    WorkloadOut,
)
from .problems import ProblemError, describe, not_found, too_many
from .state import StateDep, StoreDep

router = APIRouter(tags=["jobs"])

MAX_ID = 2**63 - 1
MAX_STREAMS = 200
_POLL = 0.5  # seconds between looks at a job that is watched
_RETRY_MS = 2000  # after which a browser connects again
_FINISHED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)

JobId = Annotated[int, Path(ge=1, le=MAX_ID, description="The job's id.", examples=[1])]


def job_document(job: Job) -> JobOut:
    """A job as the service tells it."""
    request = job.request
    progress = ProgressOut.model_validate(job.progress or {})
    progress.failures = {kind: count for kind, count in progress.kinds.items() if kind != Kind.OK}
    return JobOut(
        id=job.id,
        url=f"/tune/{job.id}",
        events_url=f"/tune/{job.id}/events",
        state=job.state.value,
        reason=job.reason,
        priority=request.priority,
        workloads=[WorkloadOut.model_validate(workload.to_json()) for workload in request.workloads],
        trials=request.trials,
        seconds=request.seconds,
        soc=request.soc,
        backend=request.backend,
        attempts=job.attempts,
        cancel_requested=job.cancel_requested,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        progress=progress,
    )


@router.post(
    "/tune",
    status_code=202,
    dependencies=[Writer],
    response_model=JobOut,
    responses={
        200: {"model": JobOut, "description": "The same was asked for before: the job of that."},
        202: {"description": "A new job."},
        **describe(400, 401, 403, 409, 413, 415, 422, 429, 503, 507),
    },
)
def tune(
    body: TuneRequest,
    response: Response,
    state: StateDep,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            pattern=r"^[\x21-\x7e]+$",
            description="A request sent again under the same key is answered with the same job, whatever became of it.",
        ),
    ] = None,
) -> JobOut:
    """Ask for a shape, or several, to be tuned.

    An open job for the very same request is not repeated: it is the answer.
    """
    trials = DEFAULT_TRIALS if body.trials is None and body.seconds is None else body.trials
    request = JobRequest(
        body.workloads(),
        trials=trials,
        seconds=body.seconds,
        priority=body.priority,
        soc=body.soc or state.soc,
        backend=body.backend or state.backend,
    )
    # Of what is meant, not of its spelling: defaults that are written out change nothing.
    digest = hashlib.sha256(json.dumps(request.to_json(), sort_keys=True).encode()).hexdigest()
    job, created = state.store.jobs.submit(
        request, idempotency_key=idempotency_key, body_digest=digest, max_open=state.max_jobs
    )
    response.status_code = 202 if created else 200
    document = job_document(job)
    response.headers["Location"] = document.url
    return document


@router.get("/tune", response_model=JobPage, responses=describe(422, 503))
def jobs(
    store: StoreDep,
    state: Annotated[JobStateName | None, Query(description="Only jobs in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Jobs on a page.")] = 50,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Only jobs with a smaller id.")] = None,
) -> JobPage:
    """The jobs, newest first."""
    found = store.jobs.list(state=JobState(state) if state else None, before=before, limit=limit + 1)
    following = None
    if len(found) > limit:
        found = found[:limit]
        following = f"/tune?limit={limit}&before={found[-1].id}" + (f"&state={state}" if state else "")
    return JobPage(jobs=[job_document(job) for job in found], next=following)


@router.get("/tune/{job_id}", response_model=JobOut, responses=describe(404, 422, 503))
def job(job_id: JobId, store: StoreDep) -> JobOut:
    """A job: its state, how far it is, the best so far, failures by kind, an estimate of the time left."""
    return job_document(_find(store, job_id))


@router.delete(
    "/tune/{job_id}", response_model=JobOut, dependencies=[Writer], responses=describe(401, 403, 404, 422, 503, 507)
)
def cancel(job_id: JobId, store: StoreDep) -> JobOut:
    """Cancel a job. What it has measured stays; a job that has ended stays as it is."""
    cancelled = store.jobs.cancel(job_id)
    if cancelled is None:
        raise _no_job(job_id)
    return job_document(cancelled)


def _existing(job_id: JobId, store: StoreDep) -> Job:
    """Checked before a stream begins: afterwards there is no status to tell an error with."""
    return _find(store, job_id)


async def _stream(state: StateDep) -> AsyncIterator[None]:
    """A place among the streams that may be open at once."""
    if state.metrics.streams >= MAX_STREAMS:
        raise too_many(f"{MAX_STREAMS} streams of events are open: poll the job's own URL instead", 30)
    state.metrics.streams += 1
    try:
        yield
    finally:
        state.metrics.streams -= 1


@router.get(
    "/tune/{job_id}/events",
    response_class=EventSourceResponse,
    dependencies=[Depends(_stream)],
    responses={
        200: {
            "description": "Server-sent events: `progress` with the job whenever it changes, `end` when it has ended.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **describe(404, 422, 429, 503),
    },
)
async def events(job: Annotated[Job, Depends(_existing)], state: StateDep) -> AsyncIterator[ServerSentEvent]:
    """Watch a job as server-sent events until it has ended."""
    shown: JobOut | None = None
    while not state.stopping.is_set():
        document = job_document(job)
        if job.state in _FINISHED:
            yield ServerSentEvent(event="end", data=document)
            return
        if document != shown:
            yield ServerSentEvent(event="progress", data=document, retry=_RETRY_MS)
            shown = document
        await asyncio.sleep(_POLL)
        # A database that is locked or away for a moment only makes the next look a late one.
        with suppress(StoreError):
            job = await run_in_threadpool(_find, state.store, job.id)


def _find(store: Store, job_id: int) -> Job:
    found = store.jobs.get(job_id)
    if found is None:
        raise _no_job(job_id)
    return found


def _no_job(job_id: int) -> ProblemError:
    return not_found(f"job {job_id}", "GET /tune lists the jobs")
