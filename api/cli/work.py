"""``pfatune worker``: do the jobs of the queue, one after another."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import stat
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernel.soc import soc
from ..errors import InputError
from ..log import be_verbose, log
from . import embedded, options
from .tune import Parallel

if TYPE_CHECKING:
    from ...autotune.job_worker import JobWorker

EXAMPLES = """
[bold]Examples[/]

  pfatune worker
    do what is asked of the service, on this machine's database

  pfatune worker --db postgresql://tuner@db.example/pfatune --parallel 8
    one of many workers, each on a machine of its own

  pfatune worker --once
    do what waits, then end

  pfatune worker --heartbeat-file /tmp/alive
    for a health check: there once the worker is ready, and kept fresh

[bold]Stopping[/]

  Ctrl-C or SIGTERM lets running trials end, and hands the job back to the
  queue; a second one ends them at once. Nothing that was measured is lost,
  not even by kill -9: the job is another worker's once the lease runs out.

[bold]Exit codes[/]

  0 stopped, or with --once nothing left to do
  1 could not be done
  2 bad input
"""

_PANEL = "Worker"
_MIN_LEASE, _MAX_LEASE = 1.0, 3600.0  # seconds
_MAX_NAME = 100  # characters


def _lease(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _MIN_LEASE <= value <= _MAX_LEASE:
        raise InputError(f"--lease is {text!r}: give seconds from {_MIN_LEASE:.0f} to {_MAX_LEASE:.0f}")
    return value


Lease = Annotated[
    float | None,
    typer.Option(
        "--lease",
        parser=_lease,
        metavar="SECONDS",
        help="How long a job waits for a worker that gives no sign of life. Default: PFATUNE_LEASE_SECONDS, else 30.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="End when no job waits.", rich_help_panel=_PANEL)]
HeartbeatFile = Annotated[
    str | None,
    typer.Option(
        "--heartbeat-file",
        metavar="PATH",
        help="A file to touch every second or so while the worker is ready and healthy, busy or not.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="What the worker is called in jobs and logs. Default: host, process and a random number.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
EndWithStdin = Annotated[
    bool, typer.Option("--end-with-stdin", help="Stop as on SIGTERM when standard input ends.", hidden=True)
]


def worker(
    once: Once = False,
    parallel: Parallel = None,
    lease: Lease = None,
    heartbeat_file: HeartbeatFile = None,
    name: Name = None,
    timeout: options.Timeout = None,
    memory_gib: options.MemoryGib = None,
    db: options.Db = None,
    soc_name: options.SocName = None,
    verbose: options.Verbose = False,
    end_with_stdin: EndWithStdin = False,
) -> int:
    """Work on the jobs that were asked for over HTTP, until stopped.

    Any number of workers may share a database; each job is done by one of
    them at a time. Costs are cycles of PyPTO's cost model: nothing runs on
    hardware.
    """
    from ..settings import load_settings

    settings = load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)
    owner = _owner(name)
    from ...db.store import Store
    from ...db.target import Target

    Target.parse(settings.db).check(read_only=False)
    beat = _Heartbeat(heartbeat_file)
    be_verbose()
    life = _Life()
    try:
        if end_with_stdin:
            life.end_with_stdin()
        embedded.check(chip, settings.cache_folder)
        with (
            Store.open(settings.db) as store,
            embedded.worker(
                chip,
                settings.cache_folder,
                timeout=timeout or settings.trial_timeout,
                memory_gib=memory_gib or settings.trial_memory_gib,
                console=None,
            ) as (backend, pool),
        ):
            from ...autotune.job_worker import JobWorker

            made = JobWorker(
                store,
                backend,
                pool,
                owner=owner,
                lease_seconds=lease or settings.lease_seconds,
                parallel=parallel or settings.parallel,
                beat=beat.touch,
                log=log(),
                tell_trials=verbose,
            )
            life.attach(made)
            log().info("worker waits for jobs", name=owner, database=store.database.name, soc=chip.name)
            made.run(once=once)
    except KeyboardInterrupt:  # during the set-up, when there is nothing to hand back
        pass
    log().info("worker ended", name=owner)
    return 0


def _owner(name: str | None) -> str:
    if name is None:
        return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"
    if not 1 <= len(name) <= _MAX_NAME or not name.isprintable() or name.isspace():
        raise InputError(f"--name is {name!r}: give 1 to {_MAX_NAME} printable characters")
    return name


class _Heartbeat:
    """A file whose time of change tells that the worker is well; there is none before the first ``touch``.

    Raises:
        InputError: the file cannot be made, or would take the place of something else.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        try:
            if self._path.is_dir():
                raise InputError(f"--heartbeat-file {path!r} is a folder: give a file in it")
            if os.path.lexists(self._path) and not _is_empty_file(self._path):
                raise InputError(f"--heartbeat-file {path!r} is something else already: give a file of its own")
            self.touch()
            self._path.unlink()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"--heartbeat-file {path!r} cannot be written ({reason}): give a file in a folder that can be"
            ) from None

    def touch(self) -> None:
        """Make the file this moment's."""
        if self._path is not None:
            self._path.touch()


def _is_empty_file(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


class _Life:
    """What ends the worker: signals, and the end of standard input."""

    def __init__(self) -> None:
        self._worker: JobWorker | None = None
        self._stdin_ended = False
        self._signals = 0

    def attach(self, worker: JobWorker) -> None:
        """From here on signals drain the worker, and the second one stops it; before, they interrupt its set-up."""
        self._worker = worker
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._handle)
        if self._stdin_ended:
            worker.drain()

    def end_with_stdin(self) -> None:
        """Watch standard input, whose other end a parent holds open for as long as it lives."""
        threading.Thread(target=self._watch_stdin, name="stdin", daemon=True).start()

    def _watch_stdin(self) -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # closed from the start
            pass
        self._stdin_ended = True
        if self._worker is not None:
            self._worker.drain()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # No word to the log here: what was interrupted may hold its lock.
        self._signals += 1
        if self._worker is not None:
            if self._signals == 1:
                self._worker.drain()
            else:
                self._worker.stop()
