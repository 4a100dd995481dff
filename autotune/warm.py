"""The warm server: a process that has imported torch and PyPTO, and forks one child for each trial.

    python -m pfatune.autotune.warm FD MODULE

FD is a SOCK_SEQPACKET socket to the parent, MODULE has ``JOBS``, functions by name. Messages are
JSON. The parent sends ``{"run": id, "job": {…}, "folder": …, "timeout": s, "memory": bytes}`` with
a pipe for the reply, or ``{"kill": id}``; the server answers ``{"ready": true}`` once, and for each
trial ``{"started": id, "pid": …}`` and ``{"ended": id, "status": …, "stopped": …, "peak": bytes}``.

Every child leads its own process group. When it ends, however it ends, its whole group is
killed: a compiler that was stopped leaves g++ running otherwise. What left the group is an
orphan then, and comes to this process to be killed. When the parent goes away, so does
everything here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .runs import RUN_VARIABLE, stop_processes

Job = Callable[[dict[str, Any], Path], dict[str, Any]]

MAX_MESSAGE = 200_000  # bytes of one message to or from the server
_WATCH_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the parent handles them; its end is the server's
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class _Child:
    trial: int
    pid: int
    pidfd: int
    deadline: float
    memory: int
    stopped: str = ""
    peak: int = 0


class Server:
    """Forks children on request and watches their time and memory."""

    def __init__(self, channel: socket.socket, jobs: dict[str, Job]) -> None:
        self._channel = channel
        self._jobs = jobs
        self._children: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the parent closes the channel; then nothing of this server remains."""
        self._send({"ready": True})
        try:
            while True:
                timeout = _WATCH_SECONDS if self._children else None
                for key, _ in self._selector.select(timeout):
                    if key.fileobj is self._channel:
                        if not self._receive():
                            return
                    else:
                        self._reap(self._children[key.data])
                self._watch()
        finally:
            for child in list(self._children.values()):
                _kill_group(child.pid)

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone; _receive sees it next
            self._channel.send(json.dumps(message).encode())

    def _receive(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE, 1)
        except ConnectionResetError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "kill" in message:
            for child in self._children.values():
                if child.trial == message["kill"]:
                    self._stop(child, "killed")
        else:
            self._fork(message, fds[0])
        return True

    def _fork(self, message: dict[str, Any], reply: int) -> None:
        os.set_inheritable(reply, False)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            self._channel.close()
            for child in self._children.values():
                os.close(child.pidfd)
            _run_child(self._jobs, message["job"], Path(message["folder"]), server, reply)
        os.close(reply)
        with suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        child = _Child(message["run"], pid, pidfd, time.monotonic() + message["timeout"], message["memory"])
        self._children[pid] = child
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        self._send({"started": child.trial, "pid": pid})

    def _watch(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            child.peak = max(child.peak, sum(map(_resident, _tree(child.pid))))
            if child.peak > child.memory:
                self._stop(child, "memory")
            elif now > child.deadline:
                self._stop(child, "timeout")

    def _stop(self, child: _Child, why: str) -> None:
        child.stopped = child.stopped or why
        os.kill(child.pid, signal.SIGKILL)  # it may have left its group
        _kill_group(child.pid)

    def _reap(self, child: _Child) -> None:
        _kill_group(child.pid)  # before the wait, while the group's number cannot be another's
        _, status, usage = os.wait4(child.pid, 0)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pid]
        self._kill_orphans()
        self._send(
            {
                "ended": child.trial,
                "status": os.waitstatus_to_exitcode(status),
                "stopped": child.stopped,
                "peak": max(child.peak, usage.ru_maxrss * 1024),
            }
        )

    def _kill_orphans(self) -> None:
        """Kill what ended trials left behind: children of this process that are no trials."""
        for _ in range(100):  # one that is stuck in a system call is tried again after the next trial
            orphans = [pid for pid in _children(os.getpid()) if pid not in self._children]
            if not orphans:
                return
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)


def _run_child(jobs: dict[str, Job], job: dict[str, Any], folder: Path, server: int, reply: int) -> None:
    """The child's whole life; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(status)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # keeps its orphans, so they can be told apart
        for number in _PARENTS_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            _private_folders(folder)
            answer = {"reply": jobs[job["job"]](job, folder)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": {"type": type(error).__name__, "message": str(error)[:4000]}}
        data = memoryview(json.dumps(answer).encode())
        while data:
            data = data[os.write(reply, data) :]
        status = int("error" in answer)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _private_folders(folder: Path) -> None:
    for name in ("out", "log", "home", "tmp"):
        (folder / name).mkdir()
    os.environ.update(
        TILE_FWK_OUTPUT_DIR=str(folder / "out" / "o"),
        ASCEND_PROCESS_LOG_PATH=str(folder / "log"),
        PYPTO_HOME=str(folder / "home"),
        HOME=str(folder / "home"),
        TMPDIR=str(folder / "tmp"),
    )
    os.chdir(folder)
    for stream, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, stream)
        os.close(fd)


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _tree(pid: int) -> Iterator[int]:
    """A process and everything that descends from it."""
    stack = [pid]
    while stack:
        pid = stack.pop()
        yield pid
        stack += _children(pid)


def _resident(pid: int) -> int:
    """Resident bytes of a process, as the kernel counts them: shared pages in full."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    for number in _PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    jobs = importlib.import_module(sys.argv[2]).JOBS
    gc.collect()
    gc.freeze()  # children share these pages
    try:
        Server(channel, jobs).serve()
    finally:
        stop_processes(os.environ[RUN_VARIABLE])


if __name__ == "__main__":
    main()
