"""``pfatune serve`` with its worker and the real compiler: one command serves a machine."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli_tools import environ, pfatune
from http_tools import serving, start, url_of

from pfatune.api.cli import beside
from pfatune.api.settings import Settings
from pfatune.autotune.swimlane import MAX_TASKS
from pfatune.db import Store

CACHE = str(Settings().cache_folder)
TINY = {"b": 1, "s2": 128, "trials": 2}


def workers_of(parent: int) -> list[int]:
    """Process ids of the workers beside a service."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"\0worker\0" in command and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def eventually(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.sim
@pytest.mark.slow
def test_shape_is_tuned_and_served(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(tmp_path, log=log, PFATUNE_CACHE=CACHE) as (process, url):
        with httpx2.Client(base_url=url, timeout=60) as client:
            asked = client.get("/config", params={"b": 1, "s2": 128})
            assert asked.json()["provenance"] == "default"
            job = client.post("/tune", json=TINY).json()
            eventually(lambda: client.get(job["url"]).json()["state"] not in ("queued", "running"), 200)
            ended = client.get(job["url"]).json()
            assert (ended["state"], ended["reason"], ended["attempts"]) == ("done", "", 1)
            assert ended["progress"]["trials"] == 2
            eventually(lambda: client.get("/config?b=1&s2=128").json()["provenance"] == "exact", 10)
            found = client.get("/config?b=1&s2=128").json()
            assert found["cost"] == ended["progress"]["shapes"][0]["best_cost"]
            assert found["unit"] == "cycles"
            rows = client.get("/measurements", params={"b": 1, "s2": 128}).json()["measurements"]
            assert len(rows) == 2
            events = client.get(f"/trace/{found['measurement']}").json()["traceEvents"]
            assert 10 < len(events) < MAX_TASKS
            assert client.post("/tune", json=TINY).status_code == 202  # the first one has ended
        (worker,) = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not is_running(worker)
    assert "Traceback" not in log.read_text()
    with Store.open(tmp_path / "pfatune.db") as store:
        store.check()
    shown = pfatune(["config", "--b", "1", "--s2", "128"], tmp_path)
    assert "exact" in shown.stdout


@pytest.mark.sim
@pytest.mark.slow
def test_worker_that_dies_is_replaced_and_goes_with_the_service(tmp_path: Path) -> None:
    process = start(tmp_path, log=tmp_path / "log", PFATUNE_CACHE=CACHE)
    try:
        url = url_of(process)
        eventually(lambda: len(workers_of(process.pid)) == 1)
        (first,) = workers_of(process.pid)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: workers_of(process.pid) not in ([], [first]))
        assert httpx2.get(f"{url}/healthz", timeout=20).status_code == 200
        (second,) = workers_of(process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    eventually(lambda: not is_running(second))


def test_worker_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        tried.append(command)
        if len(tried) == 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(["cat"], **options)

    monkeypatch.setattr(beside, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(beside.subprocess, "Popen", popen)
    worker = beside.WorkerBeside("a.db", "950PR")
    try:
        eventually(lambda: len(tried) == 2, 20)
    finally:
        worker.close()
    assert len(tried) == 2


@pytest.mark.slow
def test_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = pfatune(["serve", "--no-worker", "--port", port], tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert port in done.stderr
    assert "--port" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--host", ""], "''"),
        (["--port", "70000"], "70000"),
        (["--db", "/nowhere/a.db"], "/nowhere"),
        (["--soc", "H100"], "H100"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: list[str], text: str) -> None:
    done = pfatune(["serve", "--no-worker", *arguments], tmp_path)
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert text in done.stderr


@pytest.mark.slow
def test_bad_variables(tmp_path: Path) -> None:
    for name, value in (("PFATUNE_PORT", "x"), ("PFATUNE_MAX_JOBS", "0"), ("PFATUNE_BACKEND", "gpu")):
        done = pfatune(["serve", "--no-worker"], tmp_path, environ(tmp_path / "cache", **{name: value}))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert name in done.stderr
        assert value in done.stderr


@pytest.mark.slow
def test_stops_in_order_while_watched(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker", log=tmp_path / "log") as (process, url):
        job = httpx2.post(f"{url}/tune", json={"b": 1, "s2": 128}, timeout=20).json()
        watcher = subprocess.Popen(
            ["python3", "-c", f"import urllib.request as u; u.urlopen('{url}{job['events_url']}').read()"],
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        watcher.wait(30)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ready", [False, True])
def test_stops_in_order_at_any_time(tmp_path: Path, number: signal.Signals, ready: bool) -> None:
    with serving(tmp_path, "--no-worker", log=tmp_path / "log") as (process, url):
        if ready:
            assert httpx2.get(f"{url}/healthz", timeout=20).status_code == 200
        process.send_signal(number)
        assert process.wait(30) == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.slow
def test_stops_in_order_when_asked_twice(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker", log=tmp_path / "log") as (process, url):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 20) as slow:
            slow.sendall(
                b"POST /tune HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            )
            assert httpx2.get(f"{url}/healthz", timeout=20).status_code == 200
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert process.poll() is None  # it waits for the request
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert process.wait(30) == 0
    assert (tmp_path / "log").read_text() == ""
