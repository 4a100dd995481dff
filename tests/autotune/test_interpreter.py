"""Building the interpreter is ended as a whole: nothing that it has started is left to itself."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from pfatune.autotune import interpreter
from pfatune.autotune.errors import WorkerSetupError

#: A build that starts a compiler and waits for it. Its arguments are -m, the module and the library.
BUILDER = """#!/bin/sh
sleep 300 &
echo $! > "$3.new"
mv "$3.new" "$3.pid"
wait
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a library would be that is never built to its end."""
    builder = tmp_path / "builder"
    builder.write_text(BUILDER)
    builder.chmod(0o755)
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(interpreter.tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sys, "executable", str(builder))
    path = tmp_path / "cache" / "library.so"
    monkeypatch.setattr(interpreter, "library_path", lambda cache: path)
    return path


@pytest.fixture
def interrupted(library: Path) -> Iterator[None]:
    """Ctrl-C, once the compiler runs."""

    def look(number: int, frame: FrameType | None) -> None:
        if library.with_name("library.so.pid").exists():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def check_gone(library: Path) -> None:
    pid = library.with_name("library.so.pid").read_text().strip()
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list((library.parents[1] / "tmp").iterdir()) == []


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_build_that_takes_too_long(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "BUILD_TIMEOUT", 1.0)
    with pytest.raises(WorkerSetupError, match="took over 1 s: run `pfatune doctor`"):
        interpreter.ensure_interpreter(library.parent, {"PATH": "/usr/bin:/bin"})
    check_gone(library)


@pytest.mark.usefixtures("interrupted")
def test_build_that_is_interrupted(library: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interpreter.ensure_interpreter(library.parent, {"PATH": "/usr/bin:/bin"})
    check_gone(library)


def test_build_that_fails(library: Path) -> None:
    Path(sys.executable).write_text("#!/bin/sh\necho first >&2\necho the reason >&2\nexit 3\n")
    with pytest.raises(WorkerSetupError, match=r"could not be built \(the reason\): run `pfatune doctor`"):
        interpreter.ensure_interpreter(library.parent, {"PATH": "/usr/bin:/bin"})
