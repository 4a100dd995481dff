"""Whatever is sent, the answer is one problem document that says what to do, and nothing is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, WORKLOAD
from fastapi.testclient import TestClient
from http_tools import PROBLEM, check_problem, client_of, promote
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from pfatune.api.http.guard import Guard
from pfatune.db import Store

JSON = {"Content-Type": "application/json"}
GOOD = {"b": 2, "s2": 1024}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened
        assert opened.jobs.list() == []


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with client_of(store) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 422),
        ("null", 422),
        ("[]", 422),
        ('"text"', 422),
        ("{", 400),
        ("{}{}", 400),
        ("\x00", 400),
        (b"\xff\xfe", 400),
        ("[" * 100_000, 400),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, 400),
        ('{"b": ' + "9" * 5000 + ', "s2": 1}', 400),
        ('{"b": NaN, "s2": 1}', 422),
        ('{"b": 1e400, "s2": 1}', 422),
        ('{"b": -Infinity, "s2": 1}', 422),
        ('{"b": 1, "s2": 1, "seconds": NaN}', 422),
        ('{"b": 1, "s2": 1, "seconds": Infinity}', 422),
        ('{"b": "\\ud800", "s2": 1}', 422),
        ('{"\\ud800": 1, "b": 1, "s2": 1}', 422),
        ('{"b": "\u202e١\\u0000", "s2": 1}', 422),
        ('{"b": true, "s2": 1}', 422),
        ('{"b": 1.0, "s2": 1}', 422),
        ('{"b": "1", "s2": 1}', 422),
        ('{"b": -1, "s2": 1}', 422),
        ('{"b": 1, "s2": -9223372036854775809}', 422),
        ('{"b": 1025, "s2": 1}', 422),
        ('{"b": 1}', 422),
        ('{"b": 1, "s2": 1, "trials": 0}', 422),
        ('{"b": 1, "s2": 1, "trials": 1000000}', 422),
        ('{"b": 1, "s2": 1, "seconds": 0}', 422),
        ('{"b": 1, "s2": 1, "seconds": "60"}', 422),
        ('{"b": 1, "s2": 1, "priority": 101}', 422),
        ('{"b": 1, "s2": 1, "soc": "A100"}', 422),
        ('{"b": 1, "s2": 1, "backend": "cuda"}', 422),
        ('{"b": 1, "s2": 1, "source": "import os"}', 422),
        ('{"b": 1, "s2": 1, "path": "/etc/passwd"}', 422),
        ('{"b": 1, "s2": 1, "shapes": []}', 422),
        ('{"shapes": []}', 422),
        ('{"shapes": {}}', 422),
        ('{"shapes": [1]}', 422),
        ('{"shapes": [{"b": 1, "s2": 1, "trials": 3}]}', 422),
        ('{"b": 1, "s2": 4, "actual_seq": []}', 422),
        ('{"b": 1, "s2": 4, "actual_seq": [5]}', 422),
        ('{"b": 2, "s2": 4, "actual_seq": [4]}', 422),
        ('{"b": 1, "s2": 4, "actual_seq": [[4]]}', 422),
        ('{"b": 1, "s2": 4, "nq": 5, "nkv": 2}', 422),
    ],
)
def test_bad_bodies(client: TestClient, body: str | bytes, status: int) -> None:
    check_problem(client.post("/tune", content=body, headers=JSON), status)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_bad = st.one_of(
    _json.filter(lambda value: not isinstance(value, dict)),
    st.dictionaries(st.sampled_from(["b", "s2", "nq", "shapes", "trials", "x"]), _json, max_size=4).filter(
        lambda body: not {"b", "s2"} <= body.keys() or body["b"] is None or not isinstance(body["b"], int)
    ),
)


@given(body=_bad)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_other_json(client: TestClient, body: Any) -> None:
    response = client.post("/tune", content=json.dumps(body), headers=JSON)
    if response.status_code not in (200, 202):
        check_problem(response, response.status_code)
        assert response.status_code in (400, 422)
    else:  # a list of good shapes by chance
        client.app.state.pfatune.store.jobs.cancel(response.json()["id"])  # type: ignore[attr-defined]  # FastAPI's
        raise AssertionError(body)


@given(body=st.binary(max_size=200))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(client: TestClient, body: bytes) -> None:
    response = client.post("/tune", content=body, headers=JSON)
    assert 400 <= response.status_code < 500
    assert response.headers["content-type"] == PROBLEM


def test_large_body(client: TestClient) -> None:
    body = json.dumps({"shapes": [{**GOOD, "actual_seq": [1024] * 1024}] * 300})
    check_problem(client.post("/tune", content=body, headers=JSON), 413)


def test_large_body_without_a_length(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    check_problem(client.post("/tune", content=chunks(), headers=JSON), 413)


def test_body_of_many_small_parts_is_passed_on_as_one() -> None:
    """A list of the parts would take far more memory than the body may have bytes."""
    parts = [b"x"] * 1000
    got: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not got or got[-1].get("more_body"):
            got.append(await receive())

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(), "more_body": bool(parts)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    asyncio.run(Guard(app)({"type": "http", "method": "POST", "headers": headers}, receive, send))
    assert got == [{"type": "http.request", "body": b"x" * 1000, "more_body": False}]


def test_nothing_but_json(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/octet-stream", "multipart/form-data"):
        response = client.post("/tune", content=json.dumps(GOOD), headers={"Content-Type": kind})
        assert "application/json" in check_problem(response, 415)["detail"]
    check_problem(client.post("/tune", content=json.dumps(GOOD)), 415)


def test_unknown_paths_and_methods(client: TestClient) -> None:
    check_problem(client.get("/nothing"), 404)
    check_problem(client.get("/%F0%9F%98%80%00"), 404)
    response = client.put("/tune", json=GOOD)
    assert set(response.headers["allow"].split(", ")) >= {"GET"}
    check_problem(response, 405)
    check_problem(client.post("/config"), 405)


def test_names_that_a_web_page_could_use_are_refused(store: Store) -> None:
    with client_of(store, hosts=("localhost", "127.0.0.1", "::1", "tuner.lan")) as client:
        for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]:1"):
            check_problem(client.get("/healthz", headers={"Host": host}), 400)
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "tuner.lan"):
            assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_cannot_write(client: TestClient, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    check_problem(client.post("/tune", json=GOOD, headers=headers), 403)
    check_problem(client.delete("/tune/1", headers=headers), 403)
    check_problem(client.get("/config?b=2&s2=1024&enqueue=true", headers=headers), 403)
    assert client.get("/config?b=2&s2=1024", headers=headers).status_code == 200


def test_no_other_site_may_read(client: TestClient) -> None:
    response = client.get("/config?b=2&s2=1024", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["x-content-type-options"] == "nosniff"


def test_unexpected_failure_is_a_problem_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("pfatune.db.jobs.JobQueue.list", fail)
    response = client.get("/tune")
    assert "secret" not in check_problem(response, 500)["detail"]
    monkeypatch.undo()


@pytest.mark.parametrize(
    "query", ["b=1", "environment=x", "kind=slow", "before=0", "limit=1001", "b=1&s2=0", "colour=red", "before=1e3"]
)
def test_bad_queries_of_measurements(client: TestClient, query: str) -> None:
    check_problem(client.get(f"/measurements?{query}"), 422)


def test_unknown_environment(client: TestClient) -> None:
    check_problem(client.get(f"/measurements?environment={'0' * 16}"), 404)


def test_environment_that_is_added_while_measurements_are_listed(
    store: Store, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(store, WORKLOAD)
    answers = [{}, store.environments()]
    monkeypatch.setattr(Store, "environments", lambda self: answers.pop(0))
    rows = client.get("/measurements").json()["measurements"]
    assert [row["environment"] for row in rows] == [ENVIRONMENT.digest] * 2
