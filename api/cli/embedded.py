"""The embedded worker as commands use it: ready, or with a plain reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...kernel.soc import Soc
from ..log import log

if TYPE_CHECKING:
    from rich.console import Console

    from ...autotune.sim import SimBackend
    from ...autotune.trial import TrialPool, TrialResult

GIB = 1 << 30


def check(chip: Soc, cache: Path) -> None:
    """What can be checked at once: the tools are there and the cache can be written.

    Raises:
        WorkerSetupError: they are not.
    """
    from ...autotune import platform, toolchain

    toolchain.require_tools()
    platform.prepare(chip, cache)


@contextmanager
def worker(
    chip: Soc, cache: Path, *, timeout: float, memory_gib: float, console: Console | None
) -> Iterator[tuple[SimBackend, TrialPool]]:
    """The worker and its pool of trials; ``console`` is told what is waited for, None keeps silent.

    Raises:
        WorkerSetupError: it cannot be set up.
    """
    from ...autotune.interpreter import library_path
    from ...autotune.sim import SimBackend

    what = "starting the worker"
    if not library_path(cache).is_file():
        what = "building PyPTO's interpreter, once: 30 to 90 s"
        if console is not None and not console.is_terminal:
            console.print(what)
    log().info("worker", soc=chip.name, cache=str(cache))
    waiting = console.status(what) if console is not None and console.is_terminal else nullcontext()
    with waiting:
        backend = SimBackend(chip, cache)
        pool = backend.pool(timeout=timeout, memory=round(memory_gib * GIB))
    log().info("worker ready", environment=backend.environment.digest, server=pool.server_pid)
    with pool:
        yield backend, pool


def run_job(pool: TrialPool, job: dict[str, Any], *, timeout: float | None = None) -> TrialResult:
    """One trial, waited for."""
    trial = pool.submit(job, timeout=timeout)
    while True:
        for result in pool.wait():
            if result.trial == trial:
                return result
