"""The command line over the real compiler: tune, stop, go on, and what the other commands then say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import PFATUNE

from pfatune.api.settings import Settings
from pfatune.db import Measurement, Store
from pfatune.db.errors import StoreError
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.sim

TINY = ["--b", "1", "--s2", "128"]  # some seconds a trial
WORKLOAD = Workload(PfaShape(1, 128))


def environ(mark: str = "") -> dict[str, str]:
    """The real cache, which holds the interpreter; ``mark`` is inherited by every process of a run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PFATUNE_")}
    return {**kept, "PFATUNE_CACHE": str(Settings().cache_folder), "PFATUNE_TEST_MARK": mark}


def pfatune(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PFATUNE, *arguments], cwd=folder, env=environ(), capture_output=True, text=True, timeout=280, check=False
    )


def rows(path: Path) -> list[Measurement]:
    """What is stored so far; nothing if the database is still being made."""
    try:
        with Store.open(path, read_only=True) as store:
            return [row for key in store.environments() for row in store.measurements(key, workload=WORKLOAD)]
    except StoreError:
        return []


def marked(mark: str) -> list[int]:
    """Processes alive that inherited the mark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def gone(mark: str, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, str]]:
    """A run of many trials that has stored two measurements and is busy with the next."""
    mark = uuid.uuid4().hex
    path = tmp_path / "run.db"
    command = [PFATUNE, "tune", *TINY, "--trials", "500", "--parallel", "2", "--db", str(path)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environ(mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while len(rows(path)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process, path, mark
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGINT, False, 130), (signal.SIGTERM, False, 143)],
)
def test_a_signal_stops_the_run_and_keeps_everything(
    number: signal.Signals, to_group: bool, code: int, running: tuple[subprocess.Popen[str], Path, str]
) -> None:
    process, path, mark = running
    before = {row.id for row in rows(path)}
    if to_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, "")
    assert "everything measured is kept" in out
    assert before <= {row.id for row in rows(path)}
    assert gone(mark)


def test_a_killed_run_leaves_no_process_and_a_rerun_loses_nothing(
    running: tuple[subprocess.Popen[str], Path, str], tmp_path: Path
) -> None:
    process, path, mark = running
    process.kill()
    process.wait()
    kept = rows(path)
    assert len(kept) >= 2
    assert gone(mark)
    total = len(kept) + 1
    again = ["tune", *TINY, "--trials", str(total), "--db", str(path), "--json"]
    done = pfatune(again, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["trials"]["known"], result["trials"]["total"]) == (len(kept), total)
    after = rows(path)
    assert [row.id for row in after[: len(kept)]] == [row.id for row in kept]
    assert len({row.config for row in after}) == len(after) == total


def test_tune_then_everything_else_agrees(tmp_path: Path) -> None:
    where = [*TINY, "--db", str(tmp_path / "a.db")]
    code = (
        "import sys; from pfatune.api.cli.main import run; n = run(sys.argv[1:]); sys.exit(n or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "tune", *where, "--trials", "2"],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "2 measured: 2 ok; 100% ended ok" in done.stdout
    assert "nothing ran on hardware" in done.stdout

    done = pfatune(["tune", *where, "--trials", "2", "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [document["event"] for document in documents] == ["result"]  # nothing was left to measure
    assert documents[0]["trials"] == {"total": 2, "known": 2, "kinds": {"ok": 2}, "ok_share": 1.0}
    (tuned,) = documents[0]["results"]
    assert tuned["verified"] is True

    config = json.loads(pfatune(["config", *where, "--json"], tmp_path).stdout)
    assert config["provenance"] == "exact"
    for name in ("config", "config_digest", "cost", "default_cost", "speedup", "verified", "max_abs_diff"):
        assert config[name] == tuned[name], name

    history = json.loads(pfatune(["history", *where, "--json"], tmp_path).stdout)
    assert history["total"] == 2
    assert history["default_cost"] == tuned["default_cost"]
    assert tuned["config_digest"] in {row["config_digest"] for row in history["measurements"]}

    explained = json.loads(
        pfatune(["explain", *where, "--digest", tuned["config_digest"][:8], "--json"], tmp_path).stdout
    )
    assert (explained["legal"], explained["measurement"]["cost"]) == (True, tuned["cost"])

    done = pfatune(["verify", *where, "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    verdict = json.loads(done.stdout)
    assert (verdict["passed"], verdict["config_digest"]) == (True, tuned["config_digest"])
    assert verdict["stored"] == str(tmp_path / "a.db")

    done = pfatune(["trace", *where, "--default", "--out", "lanes", "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["lanes"][0]["cost"] == tuned["default_cost"]
    assert json.loads((tmp_path / "lanes.json").read_text())["traceEvents"]
    assert (tmp_path / "lanes.png").read_bytes().startswith(b"\x89PNG")


def test_doctor_finds_that_the_worker_can_run(tmp_path: Path) -> None:
    done = pfatune(["doctor", "--json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["worker_ok"] is True
