"""A database that is locked, full or gone: writes say so and when to come back, reads go on, nothing is half done."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_tools import WORKLOAD
from fastapi.testclient import TestClient
from http_tools import check_problem, client_of, promote
from sqlalchemy import event

from pfatune.db import Store
from pfatune.db.job_records import JobState

BODY = {"b": 2, "s2": 1024}
READS = ("/config?b=2&s2=1024", "/configs", "/tune", "/tune/1", "/measurements", "/readyz", "/metrics")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


def check_reads(client: TestClient) -> None:
    for path in READS:
        assert client.get(path).status_code == 200, path
    assert client.get(READS[0]).json()["provenance"] == "exact"


@pytest.mark.slow
def test_locked(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path, busy_timeout=0.2) as store:
        promote(store, WORKLOAD)
        with client_of(store) as client:
            kept = client.post("/tune", json={"b": 1, "s2": 128}).json()
            with locked(path):
                for refused in (client.post("/tune", json=BODY), client.delete(kept["url"])):
                    problem = check_problem(refused, 503)
                    assert refused.headers["retry-after"] == "1"
                    assert "locked" in problem["detail"]
                check_reads(client)
                found = client.get("/config?b=3&s2=1024&enqueue=true").json()
                assert found["job"] is None
                assert "locked" in found["note"]
            assert client.get(kept["url"]).json()["state"] == "queued"
            assert [job.id for job in store.jobs.list()] == [kept["id"]]
            assert client.post("/tune", json=BODY).status_code == 202
        store.check()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot mount a small file system; test_no_pages_left stands in")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(client: TestClient) -> tuple[list[int], Any]:
    """Ask for jobs until one is refused; the ids of those acknowledged, and the refusal."""
    acknowledged = []
    for s2 in range(1, 100_000):
        answer = client.post("/tune", json={"b": 1000, "s2": 65536, "actual_seq": [s2] * 1000})
        if answer.status_code != 202:
            return acknowledged, answer
        acknowledged.append(answer.json()["id"])
    raise AssertionError("the database never filled up")


def check_full(store: Store, client: TestClient) -> list[int]:
    acknowledged, refused = fill_up(client)
    check_problem(refused, 507)
    assert int(refused.headers["retry-after"]) > 0
    assert len(acknowledged) > 3
    check_problem(client.post("/tune", json={"b": 1000, "s2": 99_999, "actual_seq": [7] * 1000}), 507)
    check_reads(client)
    jobs = store.jobs.list(limit=10_000)
    assert sorted(job.id for job in jobs) == acknowledged
    assert {job.state for job in jobs} == {JobState.QUEUED}
    return acknowledged


@pytest.mark.slow
def test_full_disk(small_disk: Path) -> None:
    with Store.open(small_disk / "a.db") as store:
        promote(store, WORKLOAD)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        with client_of(store) as client:
            acknowledged = check_full(store, client)
            ballast.unlink()
            assert client.post("/tune", json=BODY).status_code == 202
        store.check()
        assert len(store.jobs.list(limit=10_000)) == len(acknowledged) + 1


@pytest.mark.slow
def test_no_pages_left(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Store.open(path).close()
    pages = path.stat().st_size // 4096 + 60
    with Store.open(path) as store:

        def limit(connection: sqlite3.Connection, record: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {pages}")

        promote(store, WORKLOAD)
        store.database._engine.dispose()
        event.listen(store.database._engine, "connect", limit)
        with client_of(store) as client:
            check_full(store, client)
        store.check()


def test_database_that_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        promote(store, WORKLOAD)
        with client_of(store) as client:
            assert client.get("/readyz").status_code == 200
            client.post("/tune", json=BODY)
            # What stands where the file was is no database: connections made from now on fail.
            store.database._engine.dispose()
            for name in ("a.db-wal", "a.db-shm"):
                (tmp_path / name).unlink(missing_ok=True)
            path.write_bytes(b"no database" * 1000)
            for answer in (client.get("/readyz"), client.get("/tune"), client.post("/tune", json=BODY)):
                check_problem(answer, 503)
                assert int(answer.headers["retry-after"]) > 0
            assert client.get("/healthz").status_code == 200
            assert client.get("/config?b=2&s2=1024").json()["provenance"] == "exact"
            assert "pfatune_database_up 0.0" in client.get("/metrics").text
            time.sleep(0.2)  # the refresh beside fails too, and says nothing to clients
            assert client.get("/config?b=2&s2=1024").json()["provenance"] == "exact"


def test_database_that_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        promote(store, WORKLOAD)
        with client_of(store) as client:
            assert client.post("/tune", json=BODY).status_code == 202
            path.unlink()
            for answer in (client.post("/tune", json={"b": 3, "s2": 128}), client.get("/readyz"), client.get("/tune")):
                assert "start again" in check_problem(answer, 503)["detail"]
                assert answer.headers["retry-after"]
            assert client.get("/config?b=2&s2=1024").json()["provenance"] == "exact"
            assert "pfatune_database_up 0.0" in client.get("/metrics").text
            assert not path.exists()
