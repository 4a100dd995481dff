"""A worker beside the service: its own process, started again when it dies, gone when the service is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from ..log import log

DRAIN_SECONDS = 120.0  # for the trials that run when the service is stopped
_FIRST_PAUSE = 1.0  # seconds before a dead worker is started again
_LONGEST_PAUSE = 60.0
_STEADY = 60.0  # seconds after which a worker counts as healthy


class WorkerBeside:
    """Runs ``pfatune worker`` until closed.

    The worker's standard input is held open: it drains when that ends, which the system sees to
    even where this process is killed.
    """

    def __init__(self, db: str, soc: str, *, verbose: bool = False) -> None:
        self._command = [sys.executable, "-m", "pfatune", "worker", "--end-with-stdin"]
        self._command += ["--verbose"] if verbose else []
        # Not as options, which others can read: a database's URL may hold a password.
        self._environ = {**os.environ, "PFATUNE_DB": db, "PFATUNE_SOC": soc}
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="worker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let the worker finish the trials that run, then end; the second Ctrl-C ends it at once."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.close()
            process.wait(DRAIN_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
            process.wait()

    def _keep(self) -> None:
        pause = _FIRST_PAUSE
        code: int | str | None
        while not self._closing.is_set():
            started = time.monotonic()
            with self._lock:
                if self._closing.is_set():
                    return
                # A session of its own: Ctrl-C reaches it through its standard input only.
                try:
                    process = subprocess.Popen(
                        self._command, env=self._environ, stdin=subprocess.PIPE, start_new_session=True
                    )
                except OSError as error:  # out of processes or memory, perhaps for a moment
                    process, code = None, error.strerror
                self._process = process
            if process is not None:
                code = process.wait()
            if self._closing.is_set():
                return
            pause = _FIRST_PAUSE if time.monotonic() - started > _STEADY else min(2 * pause, _LONGEST_PAUSE)
            log().warning("the worker ended and is started again", exit_code=code, in_seconds=pause)
            self._closing.wait(pause)
