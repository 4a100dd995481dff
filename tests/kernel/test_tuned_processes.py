"""What an engine imports, in engines that fork and in those that may not write."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import engine_child
import pytest
from engine_child import SHAPE
from ladder_tools import small_ladder
from served_files import snapshot_of, tune


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "database"), [("fork", False), ("fork_closed", False), ("fork_while_reading", True), ("read_only", True)]
)
def test_in_a_process_of_its_own(folder: Path, what: str, database: bool) -> None:
    path = folder / "source"
    if database:
        tune(path, [SHAPE])
    else:
        path.write_bytes(snapshot_of(small_ladder(100)))
    command = [sys.executable, str(Path(engine_child.__file__)), what, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
