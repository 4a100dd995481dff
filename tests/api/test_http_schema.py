"""The API is what its description says: requests made from it never fail, and every answer is as described."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from cli_tools import WORKLOAD
from http_tools import client_of, promote, serving

from pfatune.db import Store

SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))


@pytest.mark.slow
def test_api_is_as_described(tmp_path: Path) -> None:
    with Store.open(tmp_path / "pfatune.db") as store:
        promote(store, WORKLOAD)
        _, token = store.tokens.create("tests")
    log = tmp_path / "log"
    with serving(tmp_path, "--no-worker", log=log, PFATUNE_MAX_JOBS="100000") as (_, url):
        command = [SCHEMATHESIS, "run", f"{url}/openapi.json", "--max-examples=60", "--seed=1", "--no-color"]
        command += ["--request-timeout=30", "--exclude-path=/tune/{job_id}/events"]  # that one has no end
        command += ["--header", f"Authorization: Bearer {token}"]
        # A shape whose fields do not fit each other is as described, and refused all the same; what DELETE
        # cancels is still there to be looked at.
        command += ["--exclude-checks=positive_data_acceptance,use_after_free"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Tested: 11" in done.stdout
        assert httpx2.get(f"{url}/readyz").status_code == 200
    assert "Traceback" not in log.read_text()
    with Store.open(tmp_path / "pfatune.db") as store:
        store.check()


def test_description(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store, client_of(store) as client:
        document = client.get("/openapi.json").json()
        for page in ("/docs", "/redoc"):
            assert client.get(page).status_code == 404  # these load scripts from elsewhere
    paths = {
        "/tune",
        "/tune/{job_id}",
        "/tune/{job_id}/events",
        "/config",
        "/configs",
        "/measurements",
        "/trace/{measurement}",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    assert set(document["paths"]) == paths
    assert document["components"]["schemas"]["TuneOne"]["examples"]
    assert document["components"]["schemas"]["TuneMany"]["examples"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (path, method)
            assert operation["description"], (path, method)
            for parameter in operation.get("parameters", []):
                assert parameter.get("description"), (path, method, parameter["name"])
            for status, response in operation["responses"].items():
                if status.isdigit() and int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)
    names = {parameter["name"] for parameter in document["paths"]["/config"]["get"]["parameters"]}
    assert names == {
        "b", "s2", "s1", "nq", "nkv", "qd", "block_size", "soc", "backend", "pypto", "enqueue"
    }  # fmt: skip
