"""Trials that crash, hang, lie, overeat and leave litter: each is told apart, and nothing of it remains."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import LOG_LINES
from trial_tools import HERE, MIB, environ, marked, wait_for, wait_until_gone

from pfatune.autotune import trial
from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.runs import RunFolder
from pfatune.autotune.trial import TrialPool, TrialResult
from pfatune.db.records import Kind

pytestmark = pytest.mark.slow

MEMORY = 200 * MIB


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TrialPool]:
    with TrialPool(environ(tmp_path), "fault_jobs", folder=tmp_path / "runs", timeout=20, memory=MEMORY) as made:
        yield made
    assert wait_until_gone(tmp_path) == {}
    assert list((tmp_path / "runs").iterdir()) == []


def finish(pool: TrialPool, job: dict[str, Any], timeout: float | None = None) -> TrialResult:
    number = pool.submit(job, timeout=timeout)
    (result,) = pool.wait(30)
    assert (result.trial, result.job, pool.running) == (number, job, 0)
    return result


def assert_clean(pool: TrialPool, mark: Path) -> None:
    """Only the server runs, no folder of a trial remains, and the next trial is well."""
    assert set(marked(mark)) == {pool.server_pid}
    (run,) = (mark / "runs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["lock", "server.log"]
    result = finish(pool, {"job": "ok", "value": "next"})
    assert result.kind is Kind.OK
    assert result.reply is not None
    assert result.reply["value"] == "next"


def test_a_reply_comes_back(pool: TrialPool, tmp_path: Path) -> None:
    result = finish(pool, {"job": "ok", "value": [1, "ü\0\ud800", None], "seconds": 0.3})
    assert (result.kind, result.message) == (Kind.OK, "")
    assert result.reply is not None
    assert result.reply["value"] == [1, "ü\0\ud800", None]
    assert 0.3 <= result.seconds < 20
    assert MIB < result.peak_bytes < MEMORY
    assert_clean(pool, tmp_path)


RUN_PASS = "FFFFFF! Run pass failed"
FAULTS: dict[str, tuple[dict[str, Any], Kind, str]] = {
    "value error": ({"job": "fail", "error": "ValueError", "text": "n is odd"}, Kind.REJECTED, "n is odd"),
    "dtype": (
        {"job": "fail", "error": "ValueError", "text": "Input torch.dtype is not supported"},
        Kind.ENVIRONMENT_FAULT,
        "dtype",
    ),
    "memory error": ({"job": "fail", "error": "MemoryError", "text": ""}, Kind.OUT_OF_MEMORY, "MemoryError"),
    "disk full": (
        {"job": "fail", "error": "OSError", "text": "[Errno 28] No space left on device"},
        Kind.ENVIRONMENT_FAULT,
        "No space",
    ),
    "ub": (
        {"job": "fail", "error": "RuntimeError", "text": RUN_PASS, "log": "ub"},
        Kind.DOES_NOT_FIT,
        "exceeds MEM_UB size 253952",
    ),
    "l0a": (
        {"job": "fail", "error": "RuntimeError", "text": RUN_PASS, "log": "l0a"},
        Kind.DOES_NOT_FIT,
        "Buffer[L0A] is Full",
    ),
    "spill": (
        {"job": "fail", "error": "RuntimeError", "text": RUN_PASS, "log": "spill"},
        Kind.DOES_NOT_FIT,
        "Spill all buffer failed",
    ),
    "compiler fault": (
        {"job": "fail", "error": "RuntimeError", "text": RUN_PASS, "log": "core"},
        Kind.CRASHED,
        "different OpCoreType",
    ),
    "illegal": ({"job": "fail", "error": "RuntimeError", "text": "ErrCode: FC4000! bad"}, Kind.REJECTED, "FC4000"),
    "simulator": ({"job": "fail", "error": "RuntimeError", "text": "F91001! cores"}, Kind.ENVIRONMENT_FAULT, "F91001"),
    "segfault": ({"job": "segfault"}, Kind.CRASHED, "SIGSEGV"),
    "abort": ({"job": "abort"}, Kind.CRASHED, "SIGABRT"),
    "killed from outside": ({"job": "suicide"}, Kind.ENVIRONMENT_FAULT, "killed from outside"),
    "exit 3": ({"job": "leave", "code": 3}, Kind.CRASHED, "code 3 and no reply"),
    "exit 0": ({"job": "leave", "code": 0}, Kind.CRASHED, "code 0 and no reply"),
    "garbage": ({"job": "raw_reply", "data": b"\xff\0garbage\x1b".hex()}, Kind.CRASHED, "not the protocol's JSON"),
    "half a reply": ({"job": "raw_reply", "data": b'{"reply": {"val'.hex()}, Kind.CRASHED, "not the protocol's JSON"),
    "nested": ({"job": "raw_reply", "data": (b"[" * 50_000).hex()}, Kind.CRASHED, "not the protocol's JSON"),
    "no object": ({"job": "raw_reply", "data": b'{"reply": 7}'.hex()}, Kind.CRASHED, "not the protocol's JSON"),
    "other json": ({"job": "raw_reply", "data": b'"error"'.hex()}, Kind.CRASHED, "not the protocol's JSON"),
    "good reply, bad end": ({"job": "raw_reply", "data": b'{"reply": {}}'.hex(), "code": 3}, Kind.CRASHED, ""),
    "no json": ({"job": "unserialisable_reply"}, Kind.CRASHED, "code 1 and no reply"),
    "no such job": ({"job": "nothing"}, Kind.CRASHED, "nothing"),
    "noise": ({"job": "noise"}, Kind.CRASHED, "code 3 and no reply"),
    "descriptors closed": ({"job": "close_all"}, Kind.CRASHED, "no reply"),
    "litter, then a crash": ({"job": "litter", "then": "segfault"}, Kind.CRASHED, "SIGSEGV"),
    "files, then a crash": ({"job": "fill", "then": "abort"}, Kind.CRASHED, "line 0"),
    "folder deleted, then a crash": ({"job": "vanish", "then": "abort"}, Kind.CRASHED, "SIGABRT"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TrialPool, Path]]:
    """One pool for all faults that need no setting of their own: it must survive them all."""
    mark = tmp_path_factory.mktemp("faults")
    with TrialPool(environ(mark), "fault_jobs", folder=mark / "runs", timeout=20, memory=MEMORY) as made:
        server = made.server_pid
        yield made, mark
        assert made.server_pid == server
    assert wait_until_gone(mark) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gets_its_kind_and_leaves_nothing(shared: tuple[TrialPool, Path], name: str) -> None:
    pool, mark = shared
    job, kind, words = FAULTS[name]
    result = finish(pool, job)
    assert (result.kind, result.reply) == (kind, None), result.message
    assert words in result.message
    assert 0 < len(result.message) <= 2000
    assert all(char.isprintable() or char == "\n" for char in result.message)
    assert 0 < result.peak_bytes < 2 * MEMORY
    assert_clean(pool, mark)


@pytest.mark.parametrize(
    "job",
    [
        {"job": "hang"},
        {"job": "stubborn"},
        {"job": "litter", "then": "hang"},
        {"job": "crowd", "then": "hang"},
        {"job": "vanish", "then": "hang"},
        {"job": "endless_reply"},
        {"job": "join_group"},
    ],
    ids=lambda job: "-".join(map(str, job.values())),
)
def test_a_hanging_trial_is_stopped_with_all_it_started(tmp_path: Path, job: dict[str, Any]) -> None:
    with TrialPool(environ(tmp_path), "fault_jobs", folder=tmp_path / "runs", memory=4096 * MIB) as pool:
        result = finish(pool, job, timeout=0.8)
        assert (result.kind, result.message) == (Kind.TIMEOUT, "stopped at its time limit")
        assert 0.8 <= result.seconds < 8
        assert_clean(pool, tmp_path)


@pytest.mark.parametrize("job", ["litter", "crowd", "fill", "vanish"])
def test_what_a_good_trial_leaves_is_removed(tmp_path: Path, job: str) -> None:
    with TrialPool(environ(tmp_path), "fault_jobs", folder=tmp_path / "runs", memory=4096 * MIB) as pool:
        result = finish(pool, {"job": job, "then": "ok", "value": 1})
        assert result.kind is Kind.OK, result.message
        assert_clean(pool, tmp_path)


@pytest.mark.parametrize(
    "job",
    [
        {"job": "eat", "bytes": 1024 * MIB, "step": 256 * MIB, "pause": 0.0, "hold": 20},
        {"job": "eat", "bytes": 1024 * MIB, "step": 20 * MIB, "pause": 0.05, "hold": 20},
        {"job": "eat_elsewhere", "bytes": 512 * MIB, "step": 20 * MIB, "pause": 0.05},
    ],
    ids=["quickly", "slowly", "in another session"],
)
def test_memory_beyond_the_limit_stops_a_trial(shared: tuple[TrialPool, Path], job: dict[str, Any]) -> None:
    pool, mark = shared
    result = finish(pool, job)
    assert (result.kind, result.message) == (Kind.OUT_OF_MEMORY, "stopped at its memory limit")
    assert MEMORY < result.peak_bytes < 2048 * MIB
    assert result.seconds < 15
    assert_clean(pool, mark)


def test_memory_within_the_limit_is_seen_and_allowed(shared: tuple[TrialPool, Path]) -> None:
    pool, _ = shared
    result = finish(pool, {"job": "eat", "bytes": 120 * MIB, "step": 60 * MIB, "pause": 0.2})
    assert result.reply == {"held": 2}
    assert 120 * MIB < result.peak_bytes < MEMORY


@pytest.mark.parametrize(("size", "kind"), [(5 * MIB, Kind.OK), (100 * MIB, Kind.CRASHED)])
def test_a_reply_has_a_limit(tmp_path: Path, size: int, kind: Kind) -> None:
    with TrialPool(environ(tmp_path), "fault_jobs", folder=tmp_path / "runs") as pool:
        result = finish(pool, {"job": "big_reply", "bytes": size})
        assert result.kind is kind
        assert (result.reply is not None) == (kind is Kind.OK)
        assert_clean(pool, tmp_path)


def test_a_number_that_is_none_arrives_as_such(shared: tuple[TrialPool, Path]) -> None:
    pool, _ = shared
    result = finish(pool, {"job": "nan_reply"})
    assert result.reply is not None
    assert math.isnan(result.reply["value"])


def test_trials_at_once_get_their_own_results(shared: tuple[TrialPool, Path]) -> None:
    pool, mark = shared
    jobs: list[dict[str, Any]] = [
        {"job": "ok", "value": "a", "seconds": 0.6},
        {"job": "segfault"},
        {"job": "ok", "value": "b", "seconds": 0.1},
        {"job": "leave", "code": 7},
        {"job": "ok", "value": "c"},
        {"job": "litter", "then": "abort"},
        {"job": "ok", "value": "d", "seconds": 0.3},
    ]
    submitted = {pool.submit(job): job for job in jobs}
    results: list[TrialResult] = []
    while pool.running:
        results += pool.wait(20)
    assert {result.trial: result.job for result in results} == submitted
    for result in results:
        value = result.job.get("value")
        assert result.kind is (Kind.OK if value else Kind.CRASHED)
        assert (result.reply or {}).get("value") == value
    assert pool.wait() == []
    assert_clean(pool, mark)


def test_one_trials_end_spares_what_another_started(shared: tuple[TrialPool, Path], tmp_path: Path) -> None:
    pool, mark = shared
    long = pool.submit({"job": "litter", "then": "hang", "ready": str(tmp_path / "ready")})
    wait_for(tmp_path / "ready")
    before = {command for command in marked(mark).values() if "sleep" in command}
    pool.submit({"job": "segfault"})
    (result,) = pool.wait(20)
    assert result.kind is Kind.CRASHED
    assert {command for command in marked(mark).values() if "sleep" in command} == before
    assert len(before) >= 2
    pool.kill(long)
    (result,) = pool.wait(20)
    assert result.trial == long
    assert_clean(pool, mark)


def test_a_killed_trial_says_nothing_about_its_configuration(shared: tuple[TrialPool, Path]) -> None:
    pool, mark = shared
    first, second = pool.submit({"job": "stubborn"}), pool.submit({"job": "ok", "value": 2, "seconds": 0.5})
    pool.kill(first)
    pool.kill(4711)
    results = pool.wait(20) + pool.wait(20)
    assert [(result.trial, result.kind, result.message) for result in results] == [
        (first, Kind.ENVIRONMENT_FAULT, "cancelled"),
        (second, Kind.OK, ""),
    ]
    pool.kill(first)
    assert_clean(pool, mark)


def test_wait_returns_in_time_and_polls_at_zero(shared: tuple[TrialPool, Path]) -> None:
    pool, _ = shared
    assert pool.wait() == []
    number = pool.submit({"job": "ok", "seconds": 0.5})
    start = time.monotonic()
    assert pool.wait(0) == []
    assert pool.wait(0.1) == []
    assert 0.1 <= time.monotonic() - start < 30
    results: list[TrialResult] = []
    while not results:
        assert time.monotonic() - start < 60
        results = pool.wait(0)
    assert results[0].trial == number


def test_an_endless_reply_does_not_hold_up_the_others(pool: TrialPool) -> None:
    pool.submit({"job": "endless_reply"}, timeout=3)
    quick = pool.submit({"job": "ok"})
    start = time.monotonic()
    (result,) = pool.wait(20)
    assert result.trial == quick
    while time.monotonic() - start < 0.5:
        pool.wait(0.1)
    assert time.monotonic() - start < 30
    (result,) = pool.wait(20)
    assert result.kind is Kind.TIMEOUT


def test_a_trial_that_ends_while_nobody_waits(shared: tuple[TrialPool, Path]) -> None:
    pool, _ = shared
    for value in range(3):
        pool.submit({"job": "ok", "value": value, "seconds": 0.2})
        assert pool.wait(0.1) == []  # the server's word that it started
        time.sleep(0.4)
        (result,) = pool.wait(10)
        assert result.reply is not None
        assert result.reply["value"] == value


def test_a_job_that_does_not_fit_a_message_is_refused_without_a_trace(shared: tuple[TrialPool, Path]) -> None:
    pool, mark = shared
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ValueError, match="fewer workloads"):
        pool.submit({"job": "ok", "value": "x" * 200_000})
    with pytest.raises(TypeError):
        pool.submit({"job": "ok", "value": {1}})
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert pool.running == 0
    long = finish(pool, {"job": "ok", "value": "x" * 199_000})
    assert long.kind is Kind.OK
    assert_clean(pool, mark)


def test_a_trial_has_its_own_folders_and_no_one_elses_files(pool: TrialPool) -> None:
    for _ in range(3):
        pool.submit({"job": "look", "seconds": 0.5})
    results: list[TrialResult] = []
    while pool.running:
        results += pool.wait(20)
    folders = set()
    for result in results:
        seen = result.reply
        assert seen is not None
        folder = Path(seen["folder"])
        folders.add(folder)
        assert folder.name == str(result.trial)
        assert Path(seen["cwd"]) == folder
        for name in ("TILE_FWK_OUTPUT_DIR", "ASCEND_PROCESS_LOG_PATH", "PYPTO_HOME", "HOME", "TMPDIR"):
            assert Path(seen["environ"][name]).is_relative_to(folder), name
        assert seen["out_parent"]
        assert seen["group"]
        assert (seen["stdin"], seen["files"]["0"]) == ("", "/dev/null")
        assert (seen["files"]["1"], seen["files"]["2"]) == (str(folder / "stdout"), str(folder / "stderr"))
        others = [file for number, file in seen["files"].items() if int(number) > 2]
        assert len(others) == 1, others
        assert others[0].startswith("pipe:")
    assert len(folders) == 3


def test_closing_with_trials_running_leaves_no_process(tmp_path: Path) -> None:
    pool = TrialPool(environ(tmp_path), "fault_jobs", folder=tmp_path / "runs", memory=4096 * MIB)
    for index, job in enumerate(("stubborn", "hang", "endless_reply")):
        pool.submit({"job": "litter", "then": job, "ready": str(tmp_path / str(index))})
    for index in range(3):
        wait_for(tmp_path / str(index))
    assert len(marked(tmp_path)) > 10
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 60
    assert marked(tmp_path) == {}
    assert list((tmp_path / "runs").iterdir()) == []
    pool.close()


def test_a_killed_server_is_replaced(pool: TrialPool, tmp_path: Path) -> None:
    first = pool.server_pid
    assert first is not None
    numbers = {
        pool.submit({"job": "litter", "then": "hang", "ready": str(tmp_path / "ready")}),
        pool.submit({"job": "stubborn"}),
    }
    wait_for(tmp_path / "ready")
    os.kill(first, signal.SIGKILL)
    results: list[TrialResult] = []
    while pool.running or not results:
        results += pool.wait(10)
    assert {result.trial for result in results} == numbers
    assert {(result.kind, result.message) for result in results} == {(Kind.ENVIRONMENT_FAULT, "the trial server ended")}
    assert wait_until_gone(tmp_path) == {}
    assert finish(pool, {"job": "ok"}).kind is Kind.OK
    assert pool.server_pid != first
    assert_clean(pool, tmp_path)


def test_a_server_that_died_idle_costs_no_trial(pool: TrialPool, tmp_path: Path) -> None:
    assert pool.server_pid is not None
    os.kill(pool.server_pid, signal.SIGKILL)
    os.waitid(os.P_PID, pool.server_pid, os.WEXITED | os.WNOWAIT)
    assert finish(pool, {"job": "ok"}).kind is Kind.OK


def test_a_stopped_server_is_given_up(pool: TrialPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "_GRACE", 0.5)
    assert pool.server_pid is not None
    number = pool.submit({"job": "hang"}, timeout=0.5)
    pool.wait(0.2)
    os.kill(pool.server_pid, signal.SIGSTOP)
    start = time.monotonic()
    (result,) = pool.wait()
    assert (result.trial, result.kind) == (number, Kind.ENVIRONMENT_FAULT)
    assert time.monotonic() - start < 60
    assert wait_until_gone(tmp_path) == {}
    assert finish(pool, {"job": "ok"}, timeout=10).kind is Kind.OK


def test_signals_to_the_whole_group_are_the_parents(pool: TrialPool, tmp_path: Path) -> None:
    assert pool.server_pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pool.server_pid, number)
    assert_clean(pool, tmp_path)


@pytest.mark.parametrize("victims", ["parent", "parent and server"])
def test_nothing_outlives_a_killed_parent(tmp_path: Path, victims: str) -> None:
    runs, ready = tmp_path / "runs", tmp_path / "ready"
    jobs = [
        {"job": "litter", "then": "hang", "ready": str(tmp_path / "first")},
        {"job": "litter", "then": "stubborn", "ready": str(tmp_path / "second")},
    ]
    with subprocess.Popen(
        [sys.executable, str(HERE / "pool_parent.py"), str(runs), str(tmp_path), str(ready), *map(json.dumps, jobs)]
    ) as parent:
        for path in (ready, tmp_path / "first", tmp_path / "second"):
            wait_for(path)
        wait_for(ready)
        assert len(marked(tmp_path)) > 8
        parent.kill()
        if victims == "parent and server":
            os.kill(int(ready.read_text()), signal.SIGKILL)
    if victims == "parent":
        assert wait_until_gone(tmp_path, 5) == {}
    (left,) = runs.iterdir()
    fresh = RunFolder(runs)
    assert marked(tmp_path) == {}
    assert list(runs.iterdir()) == [fresh.path]
    assert left != fresh.path
    fresh.remove()


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkerSetupError, match="No module named 'no_such_jobs'") as caught:
        TrialPool(environ(tmp_path), "no_such_jobs", folder=tmp_path / "runs")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_START_TIMEOUT", 0.5)
    (tmp_path / "silent_jobs.py").write_text("import time\ntime.sleep(1000)\n")
    env = environ(tmp_path)
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    start = time.monotonic()
    with pytest.raises(WorkerSetupError, match="no output"):
        TrialPool(env, "silent_jobs", folder=tmp_path / "runs")
    assert time.monotonic() - start < 60
    assert marked(tmp_path) == {}
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_server_that_cannot_start_again_says_so_at_submit(tmp_path: Path) -> None:
    jobs = tmp_path / "fleeting_jobs.py"
    jobs.write_text("JOBS = {'ok': lambda job, folder: {}}\n")
    env = environ(tmp_path)
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    with TrialPool(env, "fleeting_jobs", folder=tmp_path / "runs") as pool:
        assert finish(pool, {"job": "ok"}).kind is Kind.OK
        jobs.rename(tmp_path / "gone")
        assert pool.server_pid is not None
        os.kill(pool.server_pid, signal.SIGKILL)
        os.waitid(os.P_PID, pool.server_pid, os.WEXITED | os.WNOWAIT)
        for _ in range(2):
            with pytest.raises(WorkerSetupError, match="fleeting_jobs"):
                pool.submit({"job": "ok"})
        (tmp_path / "gone").rename(jobs)
        assert finish(pool, {"job": "ok"}).kind is Kind.OK


def test_two_pools_in_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    runs, one, two = tmp_path / "runs", tmp_path / "one", tmp_path / "two"
    with TrialPool(environ(one), "fault_jobs", folder=runs) as first:
        number = first.submit({"job": "ok", "value": 1, "seconds": 1.0})
        with TrialPool(environ(two), "fault_jobs", folder=runs) as second:
            assert len(list(runs.iterdir())) == 2
            assert finish(second, {"job": "segfault"}).kind is Kind.CRASHED
            second.submit({"job": "hang"})
        assert marked(two) == {}
        (result,) = first.wait(20)
        assert (result.trial, result.kind) == (number, Kind.OK)
    assert list(runs.iterdir()) == []


def test_a_relative_folder_is_that_of_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with TrialPool(environ(tmp_path), "fault_jobs", folder=Path("runs")) as pool:
        result = finish(pool, {"job": "look"})
        assert result.reply is not None
        assert Path(result.reply["folder"]).is_relative_to(tmp_path / "runs")


def test_every_log_line_of_the_jobs_is_tried() -> None:
    assert {job["log"] for job, _, _ in FAULTS.values() if "log" in job} == set(LOG_LINES)
