"""The service for tests: in this process, or as people start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli_tools import ENVIRONMENT, PFATUNE, environ, other
from fastapi.testclient import TestClient

from pfatune.api.http.app import create_app
from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload

PROBLEM = "application/problem+json"


@contextmanager
def client_of(store: Store, **options: Any) -> Iterator[TestClient]:
    """A client of an app over the store."""
    app = create_app(store, refresh_seconds=0.05, **options)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def promote(
    store: Store,
    workload: Workload,
    config: KernelConfig | None = None,
    *,
    cost: float = 1000.0,
    default_cost: float = 2000.0,
    environment: Environment = ENVIRONMENT,
) -> int:
    """Serve a configuration for a workload; the id of its measurement."""
    env = store.environment_id(environment)
    better = config or other(stitch_function_max_num=64)
    default = canonical(default_config(workload.shape), workload.shape.family)
    ids = store.add(
        env,
        [
            Measurement(workload, default, Kind.OK, default_cost),
            Measurement(workload, better, Kind.OK, cost),
        ],
    )
    family = workload.shape.family
    store.promote(env, ids[1], ids[0], store.add_verification(env, Verification(family, better, True, 0.0, ())))
    return ids[1]


def shape(b: int = 2, s2: int = 1024, **static: int) -> PfaShape:
    return PfaShape(b, s2, **static)


def check_problem(response: Any, status: int) -> dict[str, Any]:
    """The problem document of a response, after a look at its form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:pfatune:")
    assert document["title"]
    assert document["detail"]
    assert "\n" not in document["detail"]
    assert "Traceback" not in response.text
    return document


@contextmanager
def serving(
    folder: Path, *arguments: str, log: Path | None = None, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``pfatune serve`` on a free port, as a process, and its URL; stopped in the end."""
    process = start(folder, *arguments, log=log, **variables)
    try:
        yield process, url_of(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def start(folder: Path, *arguments: str, log: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    with open(log, "a") if log else open(os.devnull, "w") as errors:  # noqa: PTH123  # either of the two
        return subprocess.Popen(
            [PFATUNE, "serve", *arguments],
            cwd=folder,
            env=environ(folder / "cache", **{"PFATUNE_PORT": "0", **variables}),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )


def url_of(process: subprocess.Popen[str]) -> str:
    """Where the service says that it is."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found, line
    return found[0]
