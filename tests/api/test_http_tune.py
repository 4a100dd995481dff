"""``/tune``: jobs are created once, told as they are, and cancelled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli_tools import WORKLOAD
from fastapi.testclient import TestClient
from http_tools import check_problem, client_of, serving, shape

from pfatune.api.http import jobs
from pfatune.api.http.metrics import Metrics
from pfatune.api.http.state import State
from pfatune.api.serving import ServedView
from pfatune.db import Store, StoreError
from pfatune.db.errors import DatabaseDamagedError, DatabaseLockedError, DatabaseMovedError
from pfatune.db.job_records import Job, JobRequest, JobState
from pfatune.kernel.shapes import Workload

BODY = {"b": 2, "s2": 1024}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with client_of(store) as made:
        yield made


def test_new_job(store: Store, client: TestClient) -> None:
    response = client.post("/tune", json=BODY)
    assert response.status_code == 202
    job = response.json()
    assert response.headers["location"] == job["url"] == f"/tune/{job['id']}"
    assert job["state"] == "queued"
    assert (job["trials"], job["seconds"], job["priority"], job["soc"]) == (40, None, 0, "950PR")
    assert job["workloads"] == [{"shape": shape(2, 1024).to_json(), "actual_seq": None}]
    stored = store.jobs.get(job["id"])
    assert stored is not None
    assert stored.request.workloads == (Workload(shape(2, 1024)),)
    assert client.get(job["url"]).json() == job


def test_list_of_shapes(store: Store, client: TestClient) -> None:
    body = {
        "shapes": [{"b": 2, "s2": 1024}, {"b": 3, "s2": 4096, "actual_seq": [4096, 77, 1000]}, {"b": 2, "s2": 1024}],
        "seconds": 60.5,
        "priority": 7,
        "soc": "950DT",
    }
    job = client.post("/tune", json=body).json()
    assert [w["actual_seq"] for w in job["workloads"]] == [None, [4096, 77, 1000]]
    assert (job["trials"], job["seconds"], job["priority"], job["soc"]) == (None, 60.5, 7, "950DT")
    stored = store.jobs.get(job["id"])
    assert stored is not None
    assert stored.request.workloads[1].actual_seq == (4096, 77, 1000)


def test_same_open_request_is_the_same_job(store: Store, client: TestClient) -> None:
    first = client.post("/tune", json=BODY)
    again = client.post("/tune", json={**BODY, "nq": 12, "trials": 40, "priority": 5})
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["priority"] == 5
    assert client.post("/tune", json={**BODY, "trials": 41}).status_code == 202
    store.jobs.cancel(first.json()["id"])
    assert client.post("/tune", json=BODY).json()["id"] > first.json()["id"]


def test_same_request_from_many_at_once(client: TestClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/tune", json=BODY), range(24)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 23 + [202]


def test_idempotency_key(store: Store, client: TestClient) -> None:
    key = {"Idempotency-Key": "night-1"}
    first = client.post("/tune", json=BODY, headers=key).json()
    store.jobs.cancel(first["id"])
    again = client.post("/tune", json={**BODY, "nkv": 1}, headers=key)
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, first["id"], "cancelled")
    problem = check_problem(client.post("/tune", json={**BODY, "trials": 3}, headers=key), 409)
    assert "night-1" in problem["detail"]
    assert client.post("/tune", json=BODY, headers={"Idempotency-Key": "night-2"}).status_code == 202


@pytest.mark.parametrize("key", ["", " ", "x" * 201, "a b"])
def test_bad_idempotency_key(store: Store, client: TestClient, key: str) -> None:
    problem = check_problem(client.post("/tune", json=BODY, headers={"Idempotency-Key": key}), 422)
    assert problem["errors"][0]["field"] == "idempotency-key"
    assert store.jobs.list() == []


def test_queue_is_bounded(store: Store) -> None:
    with client_of(store, max_jobs=2) as client:
        for b in (1, 2):
            assert client.post("/tune", json={"b": b, "s2": 128}).status_code == 202
        response = client.post("/tune", json={"b": 3, "s2": 128})
        check_problem(response, 429)
        assert int(response.headers["retry-after"]) > 0
        assert client.post("/tune", json={"b": 2, "s2": 128}).status_code == 200
    assert len(store.jobs.list()) == 2


def test_list_of_shapes_is_bounded(store: Store, client: TestClient) -> None:
    body = {"shapes": [{"b": 1, "s2": s2} for s2 in range(1, 258)]}
    problem = check_problem(client.post("/tune", json=body), 422)
    assert problem["errors"][0]["field"] == "shapes"
    assert "256" in problem["detail"]
    assert store.jobs.list() == []


def test_wrong_shape_of_a_list_is_named(store: Store, client: TestClient) -> None:
    body = {"shapes": [{"b": 1, "s2": 128}, {"b": 1, "s2": 128, "actual_seq": [1, 2]}]}
    problem = check_problem(client.post("/tune", json=body), 422)
    assert problem["errors"][0]["field"] == "shapes.1.actual_seq"
    assert store.jobs.list() == []


def test_pages(client: TestClient) -> None:
    ids = [client.post("/tune", json={"b": b, "s2": 128}).json()["id"] for b in range(1, 8)]
    url: str | None = "/tune?limit=3"
    seen: list[int] = []
    pages = 0
    while url:
        page = client.get(url).json()
        seen += [job["id"] for job in page["jobs"]]
        url = page["next"]
        pages += 1
    assert (seen, pages) == (ids[::-1], 3)
    client.delete(f"/tune/{ids[0]}")
    assert [job["id"] for job in client.get("/tune?state=cancelled").json()["jobs"]] == [ids[0]]
    following = client.get("/tune?state=queued&limit=2").json()["next"]
    assert [job["id"] for job in client.get(following).json()["jobs"]] == [ids[4], ids[3]]


def test_cancel(store: Store, client: TestClient) -> None:
    queued = client.post("/tune", json=BODY).json()
    assert client.delete(queued["url"]).json()["state"] == "cancelled"
    running = client.post("/tune", json=BODY).json()
    claimed = store.jobs.claim("worker", seconds=30, backend="sim", soc="950PR")
    assert claimed is not None
    asked = client.delete(running["url"]).json()
    assert (asked["state"], asked["cancel_requested"]) == ("running", True)
    store.jobs.finish(claimed[1], JobState.CANCELLED, reason="asked for")
    ended = client.delete(running["url"]).json()
    assert (ended["state"], ended["reason"]) == ("cancelled", "asked for")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_unknown_job(client: TestClient, method: str) -> None:
    check_problem(getattr(client, method)("/tune/99"), 404)
    check_problem(getattr(client, method)("/tune/0"), 422)
    check_problem(getattr(client, method)(f"/tune/{2**63}"), 422)
    check_problem(getattr(client, method)("/tune/x"), 422)
    check_problem(client.get("/tune/99/events"), 404)


def test_progress_is_told(store: Store, client: TestClient) -> None:
    job = client.post("/tune", json=BODY).json()
    claimed = store.jobs.claim("worker", seconds=30, backend="sim", soc="950PR")
    assert claimed is not None
    store.jobs.report(
        claimed[1],
        {
            "trials": 7,
            "budget_trials": 40,
            "kinds": {"ok": 5, "rejected": 2},
            "unit": "cycles",
            "shapes": [{"shape": shape().to_json(), "actual_seq": None, "default_cost": 200.0, "best_cost": 100.0}],
            "speedup": 2.0,
            "seconds_left": 33.0,
            "later": "fields are no matter",
        },
    )
    told = client.get(job["url"]).json()
    assert (told["state"], told["attempts"]) == ("running", 1)
    progress = told["progress"]
    assert (progress["trials"], progress["seconds_left"], progress["speedup"]) == (7, 33, 2)
    assert progress["failures"] == {"rejected": 2}
    assert progress["shapes"][0]["best_cost"] == 100


@pytest.mark.slow
def test_events(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--no-worker") as (_, url),
        Store.open(tmp_path / "pfatune.db") as store,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        job = client.post("/tune", json=BODY).json()
        seen: list[tuple[str, dict[str, Any]]] = []
        first = threading.Event()

        def listen() -> None:
            with httpx2.Client(base_url=url, timeout=30) as own, own.stream("GET", job["events_url"]) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                name = ""
                for line in stream.iter_lines():
                    if line.startswith("event:"):
                        name = line.removeprefix("event:").strip()
                    elif line.startswith("data:"):
                        seen.append((name, json.loads(line.removeprefix("data:"))))
                        first.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert first.wait(20)
        claimed = store.jobs.claim("worker", seconds=60, backend="sim", soc="950PR")
        assert claimed is not None
        store.jobs.report(claimed[1], {"trials": 3})
        while seen[-1][1]["progress"]["trials"] != 3:
            assert listener.is_alive()
        store.jobs.finish(claimed[1], JobState.DONE, progress={"trials": 4})
        listener.join(20)
        assert not listener.is_alive()
    assert [name for name, _ in seen[:-1]] == ["progress"] * (len(seen) - 1)
    assert seen[-1][0] == "end"
    assert seen[-1][1]["state"] == "done"
    assert seen[-1][1]["progress"]["trials"] == 4


def test_events_go_on_over_trouble_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_POLL", 0.01)
    with Store.open(tmp_path / "a.db") as store:
        job, _ = store.jobs.submit(JobRequest((WORKLOAD,), trials=1))
        store.jobs.cancel(job.id)
        trouble: list[StoreError] = [
            DatabaseMovedError(name="a.db"),
            DatabaseDamagedError(name="a.db", detail="x"),
            DatabaseLockedError(name="a.db", seconds=1),
        ]
        find = store.jobs.get

        def get(job_id: int) -> Job | None:
            if trouble:
                raise trouble.pop()
            return find(job_id)

        monkeypatch.setattr(store.jobs, "get", get)

        async def watched() -> list[str | None]:
            state = State(store, ServedView(), Metrics())
            return [event.event async for event in jobs.events(job, state)]

        assert asyncio.run(watched()) == ["progress", "end"]
        assert not trouble
