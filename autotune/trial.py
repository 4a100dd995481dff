"""Trials: one child process each, started by a warm server, and what became of them.

A trial can crash, hang, print garbage, eat memory or leave processes behind; the parent sees a
``TrialResult`` in every case and goes on.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..db.records import Kind
from .classify import Ending, classify, read_log
from .errors import WorkerSetupError
from .runs import RunFolder
from .warm import MAX_MESSAGE

GIB = 1 << 30
DEFAULT_TIMEOUT = 300.0  # seconds of one trial
DEFAULT_MEMORY = 8 * GIB  # bytes of one trial and what it starts
_MAX_REPLY = 64 << 20  # bytes
_START_TIMEOUT = 120.0  # seconds until the server has imported torch and PyPTO
_GRACE = 60.0  # seconds past a trial's time limit after which the server itself must hang


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What became of a trial: a reply, or a kind of failure with its message.

    ``seconds`` is wall time from start to end, ``peak_bytes`` the most memory resident at once.
    """

    trial: int
    job: Mapping[str, Any]
    seconds: float
    peak_bytes: int = 0
    reply: Mapping[str, Any] | None = None
    kind: Kind = Kind.OK
    message: str = ""


@dataclass(slots=True)
class _Running:
    job: Mapping[str, Any]
    folder: Path
    pipe: int
    started: float
    timeout: float
    pid: int = 0
    data: bytearray = field(default_factory=bytearray)


class TrialPool:
    """Runs trials, several at once, through one warm server.

    ``environ`` is the server's whole environment, ``jobs`` the module whose ``JOBS`` it runs.
    A server that dies is replaced at the next ``submit``; what it was running comes back as
    environment faults.

    Raises:
        WorkerSetupError: the server cannot start; the message is its last line.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        jobs: str,
        *,
        folder: Path,
        timeout: float = DEFAULT_TIMEOUT,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        self._jobs = jobs
        self._runs = RunFolder(folder)
        # PyPTO reads where to log when it is loaded, in the server; each process has a file of its own.
        self._log = self._runs.path / "log"
        self._environ = {**self._runs.environ(environ), "ASCEND_PROCESS_LOG_PATH": str(self._log)}
        self._timeout = timeout
        self._memory = memory
        self._next = 0
        self._running: dict[int, _Running] = {}
        self._lost: list[TrialResult] = []
        self._selector = selectors.DefaultSelector()
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        try:
            self._start_server()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> int:
        """Trials that have not come back yet."""
        return len(self._running)

    @property
    def server_pid(self) -> int | None:
        """Process number of the warm server."""
        return self._server.pid if self._server else None

    def submit(self, job: Mapping[str, Any], *, timeout: float | None = None) -> int:
        """Start a trial; returns its number, which its result will carry.

        Raises:
            ValueError: the job is too long for one message.
            WorkerSetupError: the server ended and cannot start again.
        """
        trial = self._next + 1
        folder = self._runs.path / str(trial)
        timeout = self._timeout if timeout is None else timeout
        message = {
            "run": trial,
            "job": dict(job),
            "folder": str(folder),
            "timeout": timeout,
            "memory": self._memory,
        }
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE:
            raise ValueError(f"the job takes {len(data)} bytes, more than {MAX_MESSAGE}: give fewer workloads at once")
        if self._server is None or self._server.poll() is not None:
            self._lose_server()
            self._start_server()
        self._next = trial
        folder.mkdir()
        read, write = os.pipe()
        self._running[trial] = _Running(job, folder, read, time.monotonic(), timeout)
        os.set_blocking(read, False)
        self._selector.register(read, selectors.EVENT_READ, trial)
        try:
            if self._channel is not None:
                socket.send_fds(self._channel, [data], [write])
        except OSError:
            self._lose_server()
        finally:
            os.close(write)
        return trial

    def kill(self, trial: int) -> None:
        """Stop a trial; it comes back as an environment fault."""
        if self._channel is not None and trial in self._running:
            with suppress(OSError):
                self._channel.send(json.dumps({"kill": trial}).encode())

    def wait(self, timeout: float | None = None) -> list[TrialResult]:
        """The trials that ended, at least one unless ``timeout`` seconds pass or none is running."""
        deadline = None if timeout is None else time.monotonic() + timeout
        done = self._take_lost()
        while self._running and not done:
            overdue = min(running.started + running.timeout for running in self._running.values()) + _GRACE
            until = overdue if deadline is None else min(deadline, overdue)
            events = self._selector.select(max(0.0, until - time.monotonic()))
            for key, _ in events:
                if key.data is None:
                    done += self._receive()
                else:
                    self._read(key.data)
            if not events and time.monotonic() >= overdue:
                self._lose_server()
            done += self._take_lost()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return done

    def close(self) -> None:
        """Stop every trial and the server, and delete their folders."""
        if self._channel is not None:
            self._channel.close()  # the server kills its children and ends
            self._channel = None
        if self._server is not None:
            try:
                self._server.wait(10)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server = None
        for running in self._running.values():
            os.close(running.pipe)
        self._running.clear()
        self._selector.close()
        self._runs.remove()

    def _start_server(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = self._runs.path / "server.log"
        ready = b""
        try:
            with theirs, log.open("wb") as output:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", "pfatune.autotune.warm", str(theirs.fileno()), self._jobs],
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    cwd=self._runs.path,
                )
            ours.settimeout(_START_TIMEOUT)
            with suppress(TimeoutError):
                ready = ours.recv(MAX_MESSAGE)
        except OSError as error:
            raise WorkerSetupError(f"the trial server does not start ({error}): run `pfatune doctor`") from None
        finally:
            if not ready:
                ours.close()
                self._lose_server()
        if not ready:
            lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise WorkerSetupError(f"the trial server does not start ({lines[-1][:300]}): run `pfatune doctor`")
        ours.settimeout(None)
        self._channel = ours
        self._selector.register(ours, selectors.EVENT_READ)

    def _receive(self) -> list[TrialResult]:
        assert self._channel is not None
        try:
            data = self._channel.recv(MAX_MESSAGE)
        except ConnectionResetError:
            data = b""
        if not data:
            self._lose_server()
            return []
        message = json.loads(data)
        if "started" in message and message["started"] in self._running:
            self._running[message["started"]].pid = message["pid"]
        if "ended" not in message or message["ended"] not in self._running:
            return []
        return [self._finish(message)]

    def _read(self, trial: int) -> bool:
        """Take a piece of a trial's reply; whether there was one."""
        running = self._running.get(trial)
        if running is None:  # it ended in this very round of events
            return False
        try:
            chunk = os.read(running.pipe, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            with suppress(KeyError):
                self._selector.unregister(running.pipe)
        elif len(running.data) <= _MAX_REPLY:
            running.data += chunk
        return bool(chunk)

    def _finish(self, message: Mapping[str, Any]) -> TrialResult:
        trial = message["ended"]
        running = self._forget(trial)
        seconds = time.monotonic() - running.started
        reply, error = _parse_reply(running.data)
        logs = sorted(self._log.rglob(f"*-{running.pid}_*"))
        kind, text = Kind.OK, ""
        if message["stopped"] == "killed":
            kind, text, reply = Kind.ENVIRONMENT_FAULT, "cancelled", None
        elif reply is None or message["stopped"] or message["status"]:
            ending = Ending(message["status"], message["stopped"], error, replied=bool(running.data))
            kind, text = classify(ending, read_log(running.folder, logs))
            reply = None
        for path in logs:
            path.unlink(missing_ok=True)
        shutil.rmtree(running.folder, ignore_errors=True)
        return TrialResult(trial, running.job, seconds, message["peak"], reply, kind, text)

    def _forget(self, trial: int) -> _Running:
        while self._read(trial):
            pass
        running = self._running.pop(trial)
        with suppress(KeyError):
            self._selector.unregister(running.pipe)
        os.close(running.pipe)
        return running

    def _lose_server(self) -> None:
        """The server is gone: what ran comes back as environment faults, the next submit starts another."""
        if self._channel is not None:
            self._selector.unregister(self._channel)
            self._channel.close()
            self._channel = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
            self._runs.stop_processes()
        for trial in list(self._running):
            running = self._forget(trial)
            shutil.rmtree(running.folder, ignore_errors=True)
            self._lost.append(
                TrialResult(
                    trial,
                    running.job,
                    time.monotonic() - running.started,
                    kind=Kind.ENVIRONMENT_FAULT,
                    message="the trial server ended",
                )
            )

    def _take_lost(self) -> list[TrialResult]:
        lost, self._lost = self._lost, []
        return lost


def first_line(message: str) -> str:
    """What a result's message says in short."""
    return message.splitlines()[0] if message else "no message"


def _parse_reply(data: bytes | bytearray) -> tuple[Mapping[str, Any] | None, tuple[str, str] | None]:
    """The reply, or the type and text of the exception that came instead; neither if it is garbage."""
    try:
        answer = json.loads(bytes(data))
        if "error" in answer:
            return None, (str(answer["error"]["type"]), str(answer["error"]["message"]))
        reply = answer["reply"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None, None
    return (reply, None) if isinstance(reply, dict) else (None, None)
