"""What the tests of trials share: the server's environment, and who of a trial still runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

HERE = Path(__file__).parent
MARK = "PFATUNE_TEST_MARK"
MIB = 1 << 20


def environ(mark: Path | str) -> dict[str, str]:
    """An environment for a server that can import ``fault_jobs``; ``mark`` names its processes."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": path, MARK: str(mark)}


def marked(mark: Path | str) -> dict[int, str]:
    """Command lines of the living processes that were started in ``environ(mark)``."""
    wanted = f"{MARK}={mark}\0".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def wait_until_gone(mark: Path | str, seconds: float = 5.0) -> dict[int, str]:
    """Who still runs after ``seconds`` at most."""
    deadline = time.monotonic() + seconds
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def wait_for(path: Path, seconds: float = 20.0) -> None:
    """Until ``path`` exists."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)
