"""The health checks of the containers, run against what they look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from deploy_files import health_command, last


@pytest.mark.parametrize(("age", "healthy"), [(None, False), (0, True), (60, True), (600, False)])
def test_a_worker_is_healthy_while_its_heart_beats(age: float | None, healthy: bool, tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    if age is not None:
        file.touch()
        os.utime(file, (time.time() - age, time.time() - age))
    program, *arguments = health_command("worker")
    path = json.loads(last("worker", "CMD"))[-1]
    assert program == "python"
    assert path in arguments[-1]
    done = subprocess.run(
        [sys.executable, *[text.replace(path, str(file)) for text in arguments]], capture_output=True, check=False
    )
    assert (done.returncode == 0) is healthy


@contextmanager
def service(status: int) -> Iterator[int]:
    """A service that answers ``/healthz`` with a status, and anything else with 404; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_the_service_is_healthy_while_it_answers(status: int, healthy: bool) -> None:
    program, *arguments = health_command("api")
    assert program == "python"
    assert "127.0.0.1:8000/healthz" in arguments[-1]
    proxy = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}  # it must not be asked
    with service(status) as port:
        command = [sys.executable, *[text.replace(":8000", f":{port}") for text in arguments]]
        done = subprocess.run(command, env={**os.environ, **proxy}, capture_output=True, check=False)
    assert (done.returncode == 0) is healthy
