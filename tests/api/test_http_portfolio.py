"""Portfolios over HTTP: what ``GET /config`` and ``GET /configs`` say, and how soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, WORKLOAD, other
from fastapi.testclient import TestClient
from http_tools import client_of, promote, shape

from pfatune.db import Environment, Kind, Measurement, PortfolioTerms, Store, Verification
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.shapes import Workload
from pfatune.kernel.snapshot import load

FAR = "b=512&s2=100000"
FIRST, SECOND = other(stitch_function_max_num=16), other(stitch_function_max_num=8)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "a.db") as opened:
        promote(opened, WORKLOAD)
        yield opened


def choose(store: Store, config: KernelConfig, environment: Environment = ENVIRONMENT) -> None:
    """Serve one configuration, measured at b=2 s2=1024, as the family's portfolio."""
    env = store.environment_id(environment)
    (row,) = store.add(env, [Measurement(WORKLOAD, config, Kind.OK, 1000.0)])
    checked = store.add_verification(env, Verification(WORKLOAD.shape.family, config, True, 0.0, ()))
    store.portfolios.save(env, WORKLOAD.shape.family, [(row, checked)], PortfolioTerms(0.05, None, 0.0))


def served(client: TestClient, query: str) -> dict[str, Any]:
    response = client.get(f"/config?{query}")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def test_a_shape_with_nothing_tuned_near_gets_the_portfolio(store: Store) -> None:
    choose(store, FIRST)
    with client_of(store) as client:
        found = served(client, FAR)
        assert found["provenance"] == "portfolio"
        assert KernelConfig.from_json(found["config"]) == FIRST
        assert found["environment"]["digest"] == ENVIRONMENT.digest
        assert found["measured_shape"] is found["cost"] is found["unit"] is found["speedup"] is None
        assert found["note"]
        assert [served(client, f"b=2&s2={s2}")["provenance"] for s2 in (1024, 1000, 2000)] == [
            "exact",
            "bucket",
            "nearest",
        ]
        assert served(client, f"{FAR}&nkv=2")["provenance"] == "default"
        assert served(client, f"{FAR}&soc=950DT")["provenance"] == "default"


def test_a_new_portfolio_is_served_soon_though_nothing_else_is_new(store: Store) -> None:
    with client_of(store) as client:
        assert served(client, FAR)["provenance"] == "default"
        before = client.get("/configs")
        for config in (FIRST, SECOND):
            choose(store, config)
            deadline = time.monotonic() + 10
            while served(client, FAR)["config_digest"] != config.digest:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        after = client.get("/configs", headers={"If-None-Match": before.headers["etag"]})
        assert after.status_code == 200
        ladder = load(after.content).ladder
        assert list(ladder.portfolios()) == [(WORKLOAD.shape.family, ((2, 1024, SECOND),))]
        assert ladder.lookup(shape(512, 100000)).config == SECOND
        assert client.get("/configs", headers={"If-None-Match": after.headers["etag"]}).status_code == 304


def test_hardware_before_the_model_but_any_tuned_shape_before_a_portfolio(store: Store) -> None:
    npu = replace(ENVIRONMENT, backend="npu", torch_npu="2.13.0", cann="9.1", driver="25.5", model_digest="")
    promote(store, Workload(shape(64, 64)), environment=npu)
    choose(store, FIRST)
    choose(store, SECOND, npu)
    with client_of(store) as client:
        assert served(client, FAR)["config_digest"] == SECOND.digest
        assert served(client, f"{FAR}&backend=sim")["config_digest"] == FIRST.digest
        assert served(client, "b=2&s2=1024")["provenance"] == "exact"
        assert served(client, "b=2&s2=1024")["environment"]["backend"] == "sim"
