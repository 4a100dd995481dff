"""Where trials write: a folder of one run, deleted with it, even if the run was killed.

The processes of a run carry its folder in their environment, so that those which left their
group and lost their parents are still found.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .errors import WorkerSetupError

RUN_VARIABLE = "PFATUNE_RUN"
_PREFIX = "run-"
_STOP_SECONDS = 5.0  # a process in an uninterruptible call may outlive SIGKILL


class RunFolder:
    """A fresh folder under ``parent``, held by a lock; folders of runs that died are deleted.

    Raises:
        WorkerSetupError: ``parent`` cannot be written.
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            parent = parent.resolve()  # trials run elsewhere
            _sweep(parent)
            while not self._make(parent):
                pass
        except OSError as error:
            raise WorkerSetupError(
                f"cannot write in {parent}: {error.strerror}; set PFATUNE_CACHE to a writable folder"
            ) from None

    def _make(self, parent: Path) -> bool:
        """Make and lock the folder, unless another run's sweep took it before it was locked."""
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = self.path / "lock"
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if lock.exists():
            return True
        os.close(self._lock)
        return False

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the mark by which ``stop_processes`` knows this run's processes."""
        return {**base, RUN_VARIABLE: str(self.path)}

    def stop_processes(self) -> None:
        """Kill every process of this run."""
        stop_processes(self.path)

    def remove(self) -> None:
        """Kill what still runs here, and delete the folder and everything in it."""
        self.stop_processes()
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def stop_processes(run: str | Path) -> None:
    """Kill every process started in the environment of the run, except this one, and see them gone."""
    mark = b"\0" + os.fsencode(f"{RUN_VARIABLE}={run}") + b"\0"
    deadline = time.monotonic() + _STOP_SECONDS
    while (found := _marked(mark)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: bytes) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # gone, or another user's
                if mark in b"\0" + Path(entry.path, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def _sweep(parent: Path) -> None:
    """Stop and delete the runs whose owner is gone: its lock is free."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made or deleted by another run
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stop_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)
