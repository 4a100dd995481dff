"""What the tests of the job queue's workers share: jobs, workers in processes of their own, and what must hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stand_in import StandIn
from trial_tools import HERE, environ

from pfatune.db import JobRequest, JobState, Kind, Store
from pfatune.db.job_records import Job
from pfatune.kernel.shapes import PfaShape, Workload


def request(*workloads: Workload, trials: int | None = 4, seconds: float | None = None) -> JobRequest:
    return JobRequest(workloads, trials=trials, seconds=seconds, backend="npu")


def submit(store: Store, *workloads: Workload, trials: int | None = 4, seconds: float | None = None) -> Job:
    job, created = store.jobs.submit(request(*workloads, trials=trials, seconds=seconds))
    assert created
    return job


def shapes(count: int) -> list[Workload]:
    """So many small workloads, each another."""
    return [Workload(PfaShape(b=1 + number % 16, s2=128 * (1 + number // 16))) for number in range(count)]


def job_of(store: Store, job_id: int) -> Job:
    job = store.jobs.get(job_id)
    assert job is not None
    return job


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


class WorkerProcess:
    """One ``worker_parent.py``; ``log`` is what it has told so far."""

    def __init__(self, database: Path, folder: Path, mark: Path, lease: float, *options: str) -> None:
        self._path = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        command = [sys.executable, str(HERE / "worker_parent.py"), str(database), str(folder), str(mark), str(lease)]
        with self._path.open("w") as out, self._path.with_suffix(".err").open("w") as err:
            self.process = subprocess.Popen([*command, *options], env=environ(mark), stdout=out, stderr=err)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Whole lines only: a kill may cut one short."""
        return [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def errors(self) -> str:
        return self._path.with_suffix(".err").read_text()

    def told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event]

    def wait_told(self, event: str, count: int = 1, seconds: float = 60.0) -> None:
        wait_until(lambda: len(self.told(event)) >= count or self.process.poll() is not None, seconds)
        assert len(self.told(event)) >= count, self.errors

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


@contextmanager
def worker_process(database: Path, folder: Path, mark: Path, lease: float, *options: str) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(database, folder, mark, lease, *options)
    try:
        yield worker
    finally:
        worker.kill()


def check_all_done(store: Store, jobs: Iterable[Job]) -> None:
    """Every job done, once, with all it asked for; nothing measured twice; the database whole."""
    env_id = store.environment_id(StandIn().environment)
    for asked in jobs:
        job = job_of(store, asked.id)
        assert (job.state, job.reason) == (JobState.DONE, ""), job
        for workload in job.request.workloads:
            rows = store.measurements(env_id, workload=workload)
            counts = Counter((row.config, row.kind) for row in rows if row.kind is not Kind.ENVIRONMENT_FAULT)
            assert set(counts.values()) == {1}, (job, counts)
            assert len({config for config, _ in counts}) == job.request.trials
            (tuned,) = store.tuned(env_id, workload)
            assert tuned.cost == min(row.cost for row in rows if row.cost is not None)
            assert len(store.tuned_history(env_id, workload)) >= 1
    store.check()
