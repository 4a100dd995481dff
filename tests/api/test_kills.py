"""Service and workers killed at any instant, under load: what was acknowledged is done, once."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_tools import start, url_of

from pfatune.db import Kind, Store
from pfatune.db.job_records import JobState

WORKER = Path(__file__).parents[1] / "autotune" / "worker_parent.py"
KILLS = 50
LEASE = "1"
CLIENTS = 3


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Farm:
    """One service and two workers on the stand-in, each started again when it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "pfatune.db"
        self.port = str(free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = (folder / "log").open("w")
        self.parts = [self.service, self.worker, self.worker]
        self.running = [part() for part in self.parts]

    def service(self) -> subprocess.Popen[str]:
        started = start(
            self.folder, "--no-worker", log=self.folder / "service.log", PFATUNE_PORT=self.port, PFATUNE_BACKEND="sim"
        )
        return started

    def worker(self) -> subprocess.Popen[str]:
        # Killed more often than any job may be tried: the attempts are not what is tested here.
        command = [sys.executable, str(WORKER), str(self.database), str(self.folder / "runs"), str(self.folder), LEASE]
        return subprocess.Popen(
            [*command, "--attempts", "60"], stdout=self.log, stderr=self.log, text=True, start_new_session=True
        )

    def kill(self, index: int) -> None:
        self.running[index].kill()
        self.reap(index)
        self.running[index] = self.parts[index]()

    def wait_until_up(self, index: int) -> None:
        """Until the service answers; of a worker, until it is likely to be at work."""
        if index != 0:
            time.sleep(1)
            return
        for _ in range(500):
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{self.url}/healthz", timeout=20).status_code == 200:
                    return
            time.sleep(0.02)
        raise AssertionError("the service does not come up")

    def reap(self, index: int) -> None:
        process = self.running[index]
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    def close(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for index in range(len(self.running)):
            self.reap(index)
        self.log.close()


class Client(threading.Thread):
    """Asks for one job after another, each until it is acknowledged, under a key of its own."""

    def __init__(self, farm: Farm, number: int, stop: threading.Event) -> None:
        super().__init__()
        self.farm, self.number, self.stopping = farm, number, stop
        self.acknowledged: dict[str, int] = {}
        self.strange: list[Any] = []

    def run(self) -> None:
        for turn in itertools.count(1):
            if self.stopping.is_set():
                return
            key = f"{self.number}-{turn}"
            # No two requests are the same: a job more than keys would be one that was doubled.
            body = {"b": self.number, "s2": 128 * (turn % 1000 + 1), "trials": 2 + turn // 1000, "backend": "npu"}
            while key not in self.acknowledged:
                try:
                    answer = httpx2.post(
                        f"{self.farm.url}/tune", json=body, headers={"Idempotency-Key": key}, timeout=20
                    )
                except httpx2.TransportError:
                    time.sleep(0.02)
                    continue
                if answer.status_code in (200, 202):
                    self.acknowledged[key] = answer.json()["id"]
                elif answer.status_code != 503:
                    self.strange.append((answer.status_code, answer.text))
                    return
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills(tmp_path: Path) -> None:
    Store.open(tmp_path / "pfatune.db").close()
    farm = Farm(tmp_path)
    chance = random.Random(950)
    stop = threading.Event()
    clients = [Client(farm, number, stop) for number in range(1, CLIENTS + 1)]
    try:
        url_of(farm.running[0])
        for client in clients:
            client.start()
        killed = Counter[int]()
        for _ in range(KILLS):
            index = chance.choice([0, 0, 1, 2])
            if chance.random() < 0.8:  # else it may die while it starts
                farm.wait_until_up(index)
            time.sleep(chance.uniform(0.0, 0.6))
            farm.kill(index)
            killed[index] += 1
        assert min(killed.values()) >= 5
        time.sleep(1)
    finally:
        stop.set()
        for client in clients:
            client.join(60)
    try:
        assert [client.strange for client in clients] == [[]] * CLIENTS
        keys = {key: job for client in clients for key, job in client.acknowledged.items()}
        assert len(keys) > 50
        assert len(set(keys.values())) == len(keys)
        with Store.open(farm.database) as store:
            deadline = time.monotonic() + 240
            while counts_open(store):
                assert time.monotonic() < deadline, store.jobs.counts()
                time.sleep(0.2)
            check(store, keys)
    finally:
        farm.close()


def counts_open(store: Store) -> int:
    counts = store.jobs.counts()
    return counts.get(JobState.QUEUED, 0) + counts.get(JobState.RUNNING, 0)


def check(store: Store, keys: dict[str, int]) -> None:
    jobs = {job.id: job for job in store.jobs.list(limit=100_000)}
    assert set(jobs) == set(keys.values())  # none lost, none that nobody asked for
    for job in jobs.values():
        assert job.state is JobState.DONE, job
        assert job.finished_at is not None
        assert job.progress["trials"] >= job.request.trials  # type: ignore[operator]  # they all have one
    env_ids = list(store.environments())
    rows = [row for env_id in env_ids for row in store.measurements(env_id)]
    measured = Counter((row.config, row.workload) for row in rows if row.kind is Kind.OK)
    assert set(measured.values()) == {1}
    workloads = {workload for job in jobs.values() for workload in job.request.workloads}
    assert {row.workload for row in rows} == workloads
    for workload in workloads:
        assert len(store.tuned(None, workload)) == 1
    store.check()
