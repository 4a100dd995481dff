"""``GET /config`` and ``GET /configs``: every legal shape gets an answer, and where it comes from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, WORKLOAD, default, other
from fastapi.testclient import TestClient
from http_tools import check_problem, client_of, promote, shape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pfatune.db import Store
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.legality import violations
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaShape, Workload
from pfatune.kernel.snapshot import load
from pfatune.kernel.soc import ASCEND_950PR

NPU = replace(ENVIRONMENT, backend="npu", torch_npu="2.13.0", cann="9.1", driver="25.5", model_digest="")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with client_of(store) as made:
        yield made


def served(client: TestClient, query: str) -> dict[str, Any]:
    response = client.get(f"/config?{query}")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def test_exact(store: Store) -> None:
    measurement = promote(store, WORKLOAD)
    with client_of(store) as client:
        found = served(client, "b=2&s2=1024")
    assert found["provenance"] == "exact"
    assert KernelConfig.from_json(found["config"]) == other(stitch_function_max_num=64)
    assert found["config_digest"] == other(stitch_function_max_num=64).digest
    assert found["shape"] == found["measured_shape"] == WORKLOAD.shape.to_json()
    assert (found["unit"], found["cost"], found["default_cost"], found["speedup"]) == ("cycles", 1000, 2000, 2)
    assert found["measurement"] == measurement
    assert found["environment"] == {**ENVIRONMENT.to_json(), "digest": ENVIRONMENT.digest}
    assert found["verified_at"]
    assert found["note"] == ""


@pytest.mark.parametrize(
    ("query", "provenance"),
    [
        ("b=2&s2=1000", "bucket"),
        ("b=2&s2=1025", "nearest"),
        ("b=4&s2=2048", "nearest"),
        ("b=8&s2=2048", "default"),
        ("b=2&s2=1024&nkv=2", "default"),
    ],
)
def test_ladder(store: Store, query: str, provenance: str) -> None:
    promote(store, WORKLOAD)
    with client_of(store) as client:
        found = served(client, query)
    assert found["provenance"] == provenance
    assert found["note"]
    if provenance == "default":
        assert found["cost"] is found["measured_shape"] is found["environment"] is None
    else:
        assert found["measured_shape"] == WORKLOAD.shape.to_json()
        assert found["config"] == other(stitch_function_max_num=64).to_json()


def test_defaults_of_the_kernel_fill_what_is_left_out(client: TestClient) -> None:
    written = "b=2&s2=1024&s1=1&nq=12&nkv=1&qd=128&block_size=128"
    assert served(client, "b=2&s2=1024") == served(client, written)
    assert served(client, "s2=1024&b=2&enqueue=false") == served(client, written)


@given(
    b=st.integers(1, MAX_BATCH),
    s2=st.integers(1, MAX_S2),
    nkv=st.sampled_from([1, 2, 4]),
    qd=st.sampled_from([64, 128]),
    extra=st.sampled_from(["", "&soc=950DT", "&backend=npu", "&pypto=0.3.0", "&soc=950PR&backend=sim"]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_legal_shape_gets_a_legal_configuration(
    client: TestClient, b: int, s2: int, nkv: int, qd: int, extra: str
) -> None:
    found = served(client, f"b={b}&s2={s2}&nkv={nkv}&qd={qd}{extra}")
    asked = PfaShape(b, s2, nkv=nkv, qd=qd)
    config = KernelConfig.from_json(found["config"])
    assert config == canonical(default_config(asked), asked.family)
    assert violations(config, asked.family, ASCEND_950PR) == []


def test_filters_choose_the_environment(store: Store) -> None:
    newer = replace(ENVIRONMENT, pypto="0.3.0")
    other_kernel = replace(ENVIRONMENT, kernel_digest="f" * 16)
    promote(store, WORKLOAD, other(stitch_function_max_num=16), environment=ENVIRONMENT)
    promote(store, WORKLOAD, other(stitch_function_max_num=32), environment=NPU)
    promote(store, WORKLOAD, other(stitch_function_max_num=64), environment=newer)
    promote(store, WORKLOAD, other(stitch_function_max_num=8), environment=other_kernel)
    with client_of(store) as client:

        def stitch(query: str) -> int:
            return int(served(client, f"b=2&s2=1024{query}")["config"]["stitch_function_max_num"])

        assert stitch("") == 32  # hardware before the cost model
        assert served(client, "b=2&s2=1024")["unit"] == "us"
        assert stitch("&backend=sim") == 64  # the newer one
        assert stitch("&backend=sim&pypto=0.2.0") == 16
        assert served(client, "b=2&s2=1024&soc=950DT")["provenance"] == "default"
        assert served(client, "b=2&s2=1024&pypto=9")["provenance"] == "default"


def test_better_rung_wins_over_better_environment(store: Store) -> None:
    promote(store, Workload(shape(2, 2048)), environment=NPU)
    promote(store, WORKLOAD, environment=ENVIRONMENT)
    with client_of(store) as client:
        assert served(client, "b=2&s2=1024")["environment"]["backend"] == "sim"


def test_lengths_that_differ_do_not_pass_for_the_full_shape(store: Store) -> None:
    promote(store, Workload(WORKLOAD.shape, (1024, 5)))
    with client_of(store) as client:
        assert served(client, "b=2&s2=1024")["provenance"] == "nearest"


def test_what_is_promoted_is_served_soon(store: Store, client: TestClient) -> None:
    assert served(client, "b=2&s2=1024")["provenance"] == "default"
    promote(store, WORKLOAD)
    deadline = time.monotonic() + 10
    while served(client, "b=2&s2=1024")["provenance"] != "exact":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    promote(store, WORKLOAD, other(stitch_function_max_num=16), cost=500.0)
    while served(client, "b=2&s2=1024")["cost"] != 500:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_enqueue(store: Store, client: TestClient) -> None:
    assert served(client, "b=2&s2=1024")["job"] is None
    assert store.jobs.list() == []
    job = served(client, "b=2&s2=1024&enqueue=true")["job"]
    assert job == {"id": job["id"], "url": f"/tune/{job['id']}", "state": "queued"}
    assert client.get(job["url"]).json()["workloads"] == [{"shape": WORKLOAD.shape.to_json(), "actual_seq": None}]
    assert served(client, "b=2&s2=1024&enqueue=true")["job"] == job
    promote(store, Workload(shape(3, 1024)))
    with client_of(store) as fresh:
        assert served(fresh, "b=3&s2=1024&enqueue=1")["job"] is None


def test_full_queue_still_answers(store: Store) -> None:
    with client_of(store, max_jobs=1) as client:
        assert served(client, "b=2&s2=1024&enqueue=true")["job"]
        found = served(client, "b=3&s2=1024&enqueue=true")
    assert found["job"] is None
    assert "no job was enqueued" in found["note"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("s2=1024", "b"),
        ("b=2", "s2"),
        ("b=0&s2=1024", "b"),
        ("b=-1&s2=1024", "b"),
        ("b=2&s2=131073", "s2"),
        ("b=2&s2=1024&qd=100", "qd"),
        ("b=1.5&s2=1024", "b"),
        ("b=NaN&s2=1024", "b"),
        ("b=%E2%82%AC&s2=1", "b"),
        ("b=2&s2=1024&soc=310P", "soc"),
        ("b=2&s2=1024&backend=gpu", "backend"),
        ("b=2&s2=1024&colour=red", "colour"),
        ("b=2&b=3&s2=1024", "b"),
        ("b=2&s2=1024&enqueue=maybe", "enqueue"),
        ("b=2&s2=1024&pypto=", "pypto"),
        (f"b={'9' * 5000}&s2=1024", "b"),
        ("&".join(["b=2"] * 60), "query"),
    ],
)
def test_bad_queries_name_the_field(client: TestClient, query: str, field: str) -> None:
    problem = check_problem(client.get(f"/config?{query}"), 422)
    assert field in [error["field"] for error in problem["errors"]]


@pytest.mark.parametrize("query", ["b=1&s2=2&nq=7&nkv=2", "b=1&s2=2&s1=3"])
def test_fields_that_do_not_fit_each_other(client: TestClient, query: str) -> None:
    check_problem(client.get(f"/config?{query}"), 422)


def test_snapshot(store: Store) -> None:
    promote(store, WORKLOAD)
    promote(store, Workload(shape(4, 2048)), cost=1500.0)
    promote(store, WORKLOAD, environment=replace(ENVIRONMENT, soc="950DT"))
    with client_of(store) as client:
        response = client.get("/configs")
        found = load(response.content)
        assert {s for s, _ in found.ladder} == {WORKLOAD.shape, shape(4, 2048)}
        assert found.ladder.lookup(shape(4, 2048)).entry.cost == 1500.0  # type: ignore[union-attr]  # is there
        tag = response.headers["etag"]
        assert tag == f'"{found.checksum}"'  # what an engine that has a copy from an earlier run asks with
        same = client.get("/configs", headers={"If-None-Match": f'"x", W/{tag}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        other_chip = client.get("/configs?soc=950DT", headers={"If-None-Match": tag})
        assert other_chip.status_code == 200
        plain = client.get("/configs", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == response.content
        promote(store, Workload(shape(8, 2048)))
        deadline = time.monotonic() + 10
        while client.get("/configs", headers={"If-None-Match": tag}).status_code == 304:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("accepted", "gzipped"),
    [
        ("gzip", True),
        ("br;q=1, GZIP ; q=0.5", True),
        ("identity", False),
        ("gzip;q=0", False),
        ("deflate, gzip; q=0.000", False),
        ("not-gzip, x;gzip", False),
    ],
)
def test_snapshot_is_packed_for_who_takes_it(client: TestClient, accepted: str, gzipped: bool) -> None:
    response = client.get("/configs", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in response.headers) is gzipped
    assert load(response.content)


def test_snapshot_of_nothing(client: TestClient) -> None:
    found = load(client.get("/configs").content)
    assert len(found.ladder) == 0
    assert found.environment["soc"] == "950PR"


def test_default_that_is_illegal_is_said(client: TestClient) -> None:
    found = served(client, "b=1&s2=8192&nq=256&qd=512")
    assert found["provenance"] == "default"
    assert "illegal" in found["note"]
    assert default()  # of the usual shape it is not
    assert "illegal" not in served(client, "b=2&s2=1024")["note"]
