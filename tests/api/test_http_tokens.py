"""Who may write: everyone until a token exists, then only who shows one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from cli_tools import environ, pfatune
from fastapi.testclient import TestClient
from http_tools import check_problem, client_of, serving

from pfatune.db import Store

BODY = {"b": 2, "s2": 1024}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with client_of(store) as made:
        yield made


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_writes_need_a_token_as_soon_as_one_exists(store: Store, client: TestClient) -> None:
    job = client.post("/tune", json=BODY).json()
    _, text = store.tokens.create("ops")
    for refused in (
        client.post("/tune", json={"b": 3, "s2": 128}),
        client.delete(job["url"]),
        client.get("/config?b=3&s2=1024&enqueue=true"),
    ):
        assert "pfatune token" in check_problem(refused, 401)["detail"]
        assert refused.headers["www-authenticate"] == "Bearer"
    assert len(store.jobs.list()) == 1
    assert client.post("/tune", json={"b": 3, "s2": 128}, headers=bearer(text)).status_code == 202
    assert client.get("/config?b=4&s2=1024&enqueue=true", headers=bearer(text)).json()["job"]
    assert client.delete(job["url"], headers=bearer(text)).status_code == 200


def test_reads_need_none(store: Store, client: TestClient) -> None:
    store.tokens.create("ops")
    for path in ("/config?b=2&s2=1024", "/configs", "/tune", "/measurements", "/metrics", "/healthz", "/readyz"):
        assert client.get(path).status_code == 200


def test_wrong_tokens(store: Store, client: TestClient) -> None:
    _, text = store.tokens.create("ops")
    _, revoked = store.tokens.create("old")
    store.tokens.revoke("old")
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    for header in (
        bearer(wrong),
        bearer(revoked),
        bearer(text.upper()),
        bearer("x" * 5000),
        {"Authorization": b"Bearer \xc3\xa9"},
        {"Authorization": f"Basic {text}"},
        {"Authorization": text},
        {"Authorization": "Bearer"},
    ):
        check_problem(client.post("/tune", json=BODY, headers=header), 401)
    assert store.jobs.list() == []


def test_wrong_token_is_refused_even_where_none_is_needed(client: TestClient) -> None:
    check_problem(client.post("/tune", json=BODY, headers=bearer("pft_00000000_" + "x" * 43)), 401)


def test_where_tokens_are_needed_the_last_one_can_be_revoked(store: Store) -> None:
    with client_of(store, needs_token=True) as client:
        check_problem(client.post("/tune", json=BODY), 401)
        _, text = store.tokens.create("ops")
        assert client.post("/tune", json=BODY, headers=bearer(text)).status_code == 202
        store.tokens.revoke("ops")
        for headers in ({}, bearer(text)):
            check_problem(client.post("/tune", json={"b": 3, "s2": 128}, headers=headers), 401)
            check_problem(client.get("/config?b=3&s2=1024&enqueue=true", headers=headers), 401)
    assert len(store.jobs.list()) == 1


@pytest.mark.slow
def test_beyond_loopback_they_are_needed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "pfatune.db") as store:
        _, text = store.tokens.create("ops")
        with (
            serving(tmp_path, "--no-worker", "--host", "0.0.0.0", log=tmp_path / "log") as (_, url),
            httpx2.Client(base_url=url.replace("0.0.0.0", "127.0.0.1"), timeout=20) as client,
        ):
            assert client.post("/tune", json=BODY, headers=bearer(text)).status_code == 202
            store.tokens.revoke("ops")
            assert client.post("/tune", json={"b": 3, "s2": 128}).status_code == 401
            assert client.get("/tune").status_code == 200


@pytest.mark.slow
def test_commands(tmp_path: Path) -> None:
    created = pfatune(["token", "create", "ops"], tmp_path)
    assert created.returncode == 0, created.stderr
    text = created.stdout.strip()
    assert text.startswith("pft_")
    assert text.encode() not in (tmp_path / "pfatune.db").read_bytes()
    listed = pfatune(["token", "list"], tmp_path)
    assert "ops" in listed.stdout
    assert text not in listed.stdout
    again = pfatune(["token", "create", "ops"], tmp_path)
    assert again.returncode in (1, 2)
    assert again.stderr.count("\n") == 1
    assert "ops" in again.stderr
    with Store.open(tmp_path / "pfatune.db") as store:
        assert store.tokens.check(text) is not None
        assert pfatune(["token", "revoke", "ops"], tmp_path).returncode == 0
        assert store.tokens.check(text) is None
    unknown = pfatune(["token", "revoke", "ops"], tmp_path)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert pfatune(["token", "create", ""], tmp_path).returncode == 2


@pytest.mark.slow
def test_no_bind_beyond_loopback_without_a_token(tmp_path: Path) -> None:
    refused = pfatune(["serve", "--host", "0.0.0.0", "--port", "0", "--no-worker"], tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "pfatune token create" in refused.stderr
    by_variable = pfatune(["serve", "--no-worker"], tmp_path, environ(tmp_path / "cache", PFATUNE_HOST="::"))
    assert by_variable.returncode == 2
