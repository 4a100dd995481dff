"""``pfatune worker``: its options, what it tells, and how it ends. The trials are the stand-in's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_tools import environ, pfatune

from pfatune.api.cli import main as cli
from pfatune.api.cli import work
from pfatune.autotune.errors import WorkerSetupError
from pfatune.db import JobRequest, JobState, Kind, Store
from pfatune.db.job_records import Job
from pfatune.kernel.shapes import PfaShape, Workload

TESTS = Path(__file__).parents[1] / "autotune"
WORKLOAD = Workload(PfaShape(b=2, s2=1024))
WAITS = "worker waits for jobs"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned.db"


def submit(path: Path, trials: int, backend: str = "npu", workload: Workload = WORKLOAD) -> int:
    with Store.open(path) as store:
        return store.jobs.submit(JobRequest((workload,), trials=trials, backend=backend))[0].id


def look(path: Path, job_id: int) -> Job:
    with Store.open(path, read_only=True) as store:
        job = store.jobs.get(job_id)
    assert job is not None
    return job


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.05)


class Running:
    """The command as a process; ``err`` is what it has told so far."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._err = folder / "stderr"
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = environ(folder / "cache", PYTHONPATH=path, PFATUNE_DB=str(folder / "tuned.db"))
        command = [sys.executable, str(TESTS / "worker_command.py"), str(folder), str(folder / "runs"), "worker"]
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_told(self, text: str) -> None:
        wait_until(lambda: text in self.err or self.process.poll() is not None)
        assert text in self.err

    def ended(self, seconds: float = 30) -> tuple[int, str]:
        """Its exit code and what it printed, after it has ended by itself."""
        code = self.process.wait(seconds)
        assert self.process.stdout is not None
        assert "Traceback" not in self.err
        return code, self.process.stdout.read().decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def make(*arguments: str) -> Running:
        started.append(Running(tmp_path, list(arguments)))
        return started[-1]

    yield make
    for running in started:
        running.process.kill()
        running.process.wait()
        for stream in (running.process.stdin, running.process.stdout):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lease", "0.5"], "--lease is '0.5': give seconds from 1 to 3600"),
        (["--lease", "4000"], "--lease is '4000': give seconds from 1 to 3600"),
        (["--lease", "nan"], "--lease is 'nan': give seconds from 1 to 3600"),
        (["--lease", "soon"], "--lease is 'soon': give seconds from 1 to 3600"),
        (["--parallel", "0"], "--parallel is '0': give a whole number from 1 to 256"),
        (["--name", ""], "--name is '': give 1 to 100 printable characters"),
        (["--name", "a\nb"], "--name is 'a\\nb': give 1 to 100 printable characters"),
        (["--name", "x" * 101], "give 1 to 100 printable characters"),
        (["--heartbeat-file", "none/alive"], "--heartbeat-file 'none/alive' cannot be written"),
        (["--heartbeat-file", "."], "--heartbeat-file '.' is a folder: give a file in it"),
        (["--heartbeat-file", "a\0b"], "--heartbeat-file 'a\\x00b' cannot be written"),
        (["--soc", "910B"], "SoC '910B' is unknown"),
        (["--db", "mysql://x/y"], "is not supported"),
        (["job"], "unexpected"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work.embedded, "check", lambda *args: pytest.fail("it went on to set itself up"))
    assert cli.run(["worker", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PFATUNE_BACKEND", "npu", "PFATUNE_BACKEND is 'npu': there is no NPU worker yet, use sim"),
        ("PFATUNE_BACKEND", "gpu", "PFATUNE_BACKEND is 'gpu': use sim"),
        ("PFATUNE_LEASE_SECONDS", "0", "PFATUNE_LEASE_SECONDS is '0'"),
        ("PFATUNE_LEASE_SECONDS", "3601", "PFATUNE_LEASE_SECONDS is '3601'"),
    ],
)
def test_bad_variables_are_refused(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(work.embedded, "check", lambda *args: pytest.fail("it went on to set itself up"))
    assert cli.run(["worker"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_once_it_does_what_waits_and_ends(start: Callable[..., Running], path: Path) -> None:
    first = submit(path, 3)
    second = submit(path, 1, workload=Workload(PfaShape(b=4, s2=512)))
    elsewhere = submit(path, 1, backend="sim")
    running = start("--once", "--name", "tester", "--lease", "5")
    assert running.ended() == (0, "")
    assert [look(path, job_id).state for job_id in (first, second, elsewhere)] == [
        JobState.DONE,
        JobState.DONE,
        JobState.QUEUED,
    ]
    assert look(path, first).owner == "tester"
    lines = running.err.splitlines()
    assert len(lines) == 6  # one for each job claimed, one for each ended
    assert re.search(rf"job claimed .*attempt=1 job={first} shapes=1", lines[1])
    assert re.search(rf"job finished .*job={first} seconds=[\d.]+ shapes=1 speedup=[\d.]+ state=done", lines[2])
    assert "\x1b" not in running.err


@pytest.mark.slow
def test_verbose_it_tells_of_every_trial(start: Callable[..., Running], path: Path) -> None:
    submit(path, 3)
    running = start("--once", "--verbose")
    assert running.ended() == (0, "")
    assert running.err.count("trial ended") == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["reader", "space"])
def test_a_log_that_cannot_be_written_ends_no_worker(what: str, tmp_path: Path, path: Path) -> None:
    job_id = submit(path, 2)
    if what == "reader":
        reader, log = os.pipe()
        os.close(reader)
    else:
        log = os.open("/dev/full", os.O_WRONLY)
    try:
        env = environ(tmp_path / "cache", PYTHONPATH=str(TESTS), PFATUNE_DB=str(path))
        command = [sys.executable, str(TESTS / "worker_command.py"), str(tmp_path), str(tmp_path / "runs")]
        done = subprocess.run([*command, "worker", "--once"], env=env, stdout=subprocess.PIPE, stderr=log, timeout=120)
    finally:
        os.close(log)
    assert done.stdout == b""
    job = look(path, job_id)
    assert (job.state, job.attempts) == (JobState.DONE, 1)


@contextmanager
def job_at_work(running: Running, path: Path) -> Iterator[int]:
    """A job of which something is measured already."""
    job_id = submit(path, 50)
    running.wait_told("job claimed")
    wait_until(lambda: measured(path) >= 1)
    yield job_id


def measured(path: Path) -> int:
    with Store.open(path, read_only=True) as store:
        return sum(len(store.measurements(env_id)) for env_id in store.environments())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_it(number: signal.Signals, start: Callable[..., Running], path: Path) -> None:
    running = start()
    running.wait_told(WAITS)
    with job_at_work(running, path) as job_id:
        running.process.send_signal(number)
        assert running.ended() == (0, "")
    job = look(path, job_id)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)
    assert "draining" in running.err
    with Store.open(path, read_only=True) as store:
        kinds = {row.kind for env_id in store.environments() for row in store.measurements(env_id)}
    assert kinds == {Kind.OK}


@pytest.mark.slow
def test_a_signal_ends_an_idle_worker_at_once(start: Callable[..., Running]) -> None:
    running = start()
    running.wait_told(WAITS)
    running.process.terminate()
    assert running.ended(10) == (0, "")


@pytest.mark.slow
def test_it_drains_when_standard_input_ends(start: Callable[..., Running], path: Path) -> None:
    running = start("--end-with-stdin")
    running.wait_told(WAITS)
    with job_at_work(running, path) as job_id:
        assert running.process.poll() is None
        assert running.process.stdin is not None
        running.process.stdin.close()
        assert running.ended() == (0, "")
    assert look(path, job_id).state is JobState.QUEUED


@pytest.mark.slow
def test_a_signal_after_standard_input_ended_is_the_first(start: Callable[..., Running], path: Path) -> None:
    """A service manager signals every process, and the parent closes its end besides: still, trials may end."""
    running = start("--end-with-stdin")
    running.wait_told(WAITS)
    with job_at_work(running, path):
        assert running.process.stdin is not None
        running.process.stdin.close()
        running.process.terminate()
        assert running.ended() == (0, "")
    with Store.open(path, read_only=True) as store:
        kinds = {row.kind for env_id in store.environments() for row in store.measurements(env_id)}
    assert kinds == {Kind.OK}


@pytest.mark.slow
def test_without_the_option_standard_input_does_not_matter(start: Callable[..., Running]) -> None:
    running = start()
    running.wait_told(WAITS)
    assert running.process.stdin is not None
    running.process.stdin.close()
    time.sleep(0.5)
    assert running.process.poll() is None


@pytest.mark.slow
def test_the_heartbeat_file_is_touched_busy_or_idle(start: Callable[..., Running], path: Path, tmp_path: Path) -> None:
    beat = tmp_path / "alive"
    running = start("--heartbeat-file", str(beat))
    running.wait_told(WAITS)
    oldest = 0.0
    with job_at_work(running, path) as job_id:
        for _ in range(30):
            oldest = max(oldest, time.time() - beat.stat().st_mtime)
            time.sleep(0.1)
        with Store.open(path) as store:
            store.jobs.cancel(job_id)
        running.wait_told("job finished")
        for _ in range(30):
            oldest = max(oldest, time.time() - beat.stat().st_mtime)
            time.sleep(0.1)
    assert oldest < 5
    running.process.send_signal(signal.SIGSTOP)
    stopped = beat.stat().st_mtime
    time.sleep(2)
    assert beat.stat().st_mtime == stopped
    running.process.send_signal(signal.SIGCONT)
    wait_until(lambda: beat.stat().st_mtime > stopped)


def test_there_is_no_heartbeat_before_the_worker_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = tmp_path / "alive"
    beat.touch()  # a worker's before it, a moment ago
    seen: list[bool] = []

    @contextmanager
    def starting(*args: object, **options: object) -> Iterator[None]:
        seen.append(beat.exists())
        raise WorkerSetupError("not here")
        yield

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work.embedded, "check", lambda *args: seen.append(beat.exists()))
    monkeypatch.setattr(work.embedded, "worker", starting)
    assert cli.run(["worker", "--heartbeat-file", str(beat)]) == 1
    assert seen == [False, False]
    assert not beat.exists()


@pytest.mark.parametrize("what", ["contents", "link", "pipe"])
def test_the_heartbeat_takes_the_place_of_nothing_else(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "alive", tmp_path / "other"
    other.write_text("kept")
    if what == "contents":
        path.write_text("kept")
    elif what == "link":
        path.symlink_to(other)
    else:
        os.mkfifo(path)
    before = path.lstat()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work.embedded, "check", lambda *args: pytest.fail("it went on to set itself up"))
    assert cli.run(["worker", "--heartbeat-file", str(path)]) == 2
    assert f"--heartbeat-file {str(path)!r} is something else already" in capsys.readouterr().err
    assert path.lstat() == before
    assert other.read_text() == "kept"


@pytest.mark.slow
def test_a_worker_that_cannot_work_says_why(tmp_path: Path) -> None:
    env = {**environ(tmp_path / "cache"), "PATH": str(tmp_path)}
    done = pfatune(["worker", "--once"], tmp_path, env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "g++" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.sim
def test_the_embedded_worker_does_a_job(tmp_path: Path, path: Path) -> None:
    cache = Path(os.environ.get("PFATUNE_CACHE") or Path.home() / ".cache" / "pfatune")
    workload = Workload(PfaShape(b=1, s2=128))
    job_id = submit(path, 1, backend="sim", workload=workload)
    done = pfatune(["worker", "--once", "--db", str(path)], tmp_path, environ(cache))
    assert (done.returncode, done.stdout) == (0, "")
    job = look(path, job_id)
    assert (job.state, job.progress["unit"], job.progress["speedup"]) == (JobState.DONE, "cycles", 1.0)
    with Store.open(path, read_only=True) as store:
        (tuned,) = store.tuned(None, workload)
        assert store.traces.has([tuned.measurement.id or 0])
