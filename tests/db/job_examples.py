"""Requests to put into queues, and what the tests do to queues from other processes."""

from __future__ import annotations

from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from db_examples import SIM, measured
from sqlalchemy import update

from pfatune.db import Job, JobRequest, JobState, Lease, Store
from pfatune.db.tables import UtcIn, job
from pfatune.kernel.shapes import PfaShape, Workload


def request(b: int = 2, **changes: Any) -> JobRequest:
    return JobRequest((Workload(PfaShape(b=b, s2=1024)),), **changes)


def claim(store: Store, owner: str = "worker", **changes: Any) -> tuple[Job, Lease] | None:
    return store.jobs.claim(owner, **{"seconds": 60, "backend": "sim", "soc": "950PR", **changes})


def claimed(store: Store, owner: str = "worker", **changes: Any) -> tuple[Job, Lease]:
    found = claim(store, owner, **changes)
    assert found is not None
    return found


def job_of(store: Store, job_id: int) -> Job:
    found = store.jobs.get(job_id)
    assert found is not None
    return found


def let_expire(store: Store, lease: Lease) -> None:
    """As if the lease had been given long ago."""
    with store.database.write() as connection:
        connection.execute(update(job).where(job.c.id == lease.job_id).values(lease_expires_at=UtcIn(-1)))


def submit_at_once(barrier: Barrier, target: str, answers: Queue[Any], keyed: bool, mine: int, rounds: int) -> None:
    """Submit once a round, together with the other processes: the same request, or another with the same key."""
    with Store.open(target, busy_timeout=60) as store:
        for number in range(rounds):
            barrier.wait(60)
            if keyed:
                found, created = store.jobs.submit(request(1 + number + mine * rounds), idempotency_key=str(number))
            else:
                found, created = store.jobs.submit(request(1 + number))
            answers.put((number, found.id, created))


def claim_until_empty(barrier: Barrier, target: str, answers: Queue[Any], owner: str) -> None:
    """Claim and finish jobs, adding a measurement for each under its lease."""
    with Store.open(target, busy_timeout=60) as store:
        env_id = store.environment_id(SIM)
        barrier.wait(60)
        while (found := claim(store, owner)) is not None:
            one, lease = found
            store.under(lease).add(env_id, [measured(float(one.id))])
            store.jobs.finish(lease, JobState.DONE)
            answers.put((one.id, one.attempts))
        answers.put(None)
