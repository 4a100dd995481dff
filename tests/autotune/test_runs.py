"""Run folders: held while their owner lives, swept with their processes when it is gone."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from trial_tools import environ, marked, wait_until_gone

from pfatune.autotune import runs
from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.runs import RunFolder, stop_processes

HOLDER = """
import sys
from pathlib import Path
from pfatune.autotune.runs import RunFolder
run = RunFolder(Path(sys.argv[1]))
(run.path / "deep" / "er").mkdir(parents=True)
print(run.path, flush=True)
sys.stdin.read()
"""


def holder(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process that holds a run folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_lives_as_long_as_its_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "new" / "runs")
    (run.path / "file").write_text("x")
    assert run.path.parent == tmp_path / "new" / "runs"
    assert run.path.stat().st_mode & 0o077 == 0
    run.remove()
    assert list((tmp_path / "new" / "runs").iterdir()) == []
    run.remove()


def test_a_living_run_is_spared_and_a_dead_one_swept(tmp_path: Path) -> None:
    process, left = holder(tmp_path)
    own = RunFolder(tmp_path)
    assert left.is_dir()
    end(process)
    assert left.is_dir()
    other = RunFolder(tmp_path)
    assert not left.exists()
    assert own.path.is_dir()
    own.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_spared(tmp_path: Path) -> None:
    (tmp_path / "run-unlocked").mkdir()  # a run in the making
    (tmp_path / "run-file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock").touch()
    RunFolder(tmp_path).remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run-file", "run-unlocked"]


def test_the_processes_of_a_dead_run_are_stopped(tmp_path: Path) -> None:
    process, left = holder(tmp_path / "runs")
    env = environ(tmp_path)
    mine = subprocess.Popen(["sleep", "1000"], env={**env, runs.RUN_VARIABLE: str(left)}, start_new_session=True)
    near = subprocess.Popen(["sleep", "1000"], env={**env, runs.RUN_VARIABLE: f"{left}0"})
    end(process)
    run = RunFolder(tmp_path / "runs")
    assert mine.wait(5) < 0
    assert set(marked(tmp_path)) == {near.pid}
    stop_processes(f"{left}0")
    assert near.wait(5) < 0
    assert wait_until_gone(tmp_path) == {}
    run.remove()


def test_stopping_a_run_spares_who_asks(tmp_path: Path) -> None:
    code = f"from pfatune.autotune.runs import stop_processes; stop_processes({str(tmp_path)!r}); print('here')"
    env = {**os.environ, runs.RUN_VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"


def test_a_run_whose_folder_was_swept_in_the_making_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    swept: list[int] = []

    def sweep_first(lock: int, operation: int) -> None:
        if not swept:
            swept.append(lock)
            monkeypatch.setattr(fcntl, "flock", real)
            RunFolder(tmp_path).remove()
        real(lock, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    run = RunFolder(tmp_path)
    assert len(swept) == 1
    assert (run.path / "lock").exists()
    RunFolder(tmp_path).remove()
    assert (run.path / "lock").exists()
    run.remove()


@pytest.mark.slow
def test_many_at_once_each_hold_their_own(tmp_path: Path) -> None:
    made: list[RunFolder] = []

    def make() -> None:
        for _ in range(20):
            made.append(RunFolder(tmp_path))  # noqa: PERF401 - what was made must be seen if one fails

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.path for run in made}) == 160
    assert all((run.path / "lock").exists() for run in made)
    for run in made:
        run.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(WorkerSetupError) as caught:
            RunFolder(place)
        assert str(place) in str(caught.value)
        assert "PFATUNE_CACHE" in str(caught.value)
        assert "\n" not in str(caught.value)
