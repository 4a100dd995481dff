"""Tiny jobs for the trial server: one that works, and one for each way a trial can go wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Job = dict[str, Any]
FOREVER = 1000.0  # seconds

#: Error lines as PyPTO writes them into its log, by the trial's ``log`` argument.
LOG_LINES = {
    "ub": "[tile_check.cpp:88][PASS]:[AssignMemory.Function]:tensor size 262144 exceeds MEM_UB size 253952",
    "l0a": "[mem_pool.cpp:12][PASS]:[OoOSchedule.Operation]:Buffer[L0A] is Full",
    "spill": "[schedule.cpp:40][PASS]:[OoOSchedule.Operation]:Spill all buffer failed",
    "core": "[pass.cpp:79][PASS]:[Pass.Function]:merge operations with different OpCoreType",
}
LOG_HEAD = "[ERROR] PYPTO(4711):2026-01-02 03:04:05.678 "


def ok(job: Job, folder: Path) -> Job:
    time.sleep(job.get("seconds", 0))
    return {"value": job.get("value"), "pid": os.getpid()}


def fail(job: Job, folder: Path) -> Job:
    """Raise ``error`` with ``text``, after writing ``log`` where PyPTO would."""
    if "log" in job:
        place = folder / "log" / "debug" / "plog"
        place.mkdir(parents=True)
        (place / "pypto-log-1.log").write_text(f"[INFO] nothing\n{LOG_HEAD}{LOG_LINES[job['log']]}\n")
    errors: dict[str, type[Exception]] = {
        kind.__name__: kind for kind in (ValueError, MemoryError, RuntimeError, OSError)
    }
    raise errors[job["error"]](job["text"])


def segfault(job: Job, folder: Path) -> Job:
    ctypes.string_at(0)
    return {}


def abort(job: Job, folder: Path) -> Job:
    os.abort()


def leave(job: Job, folder: Path) -> Job:
    os._exit(job["code"])


def suicide(job: Job, folder: Path) -> Job:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def reply_pipe() -> int:
    """The only pipe this process can write to."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            mode = entry.stat().st_mode
            flags = int(Path(f"/proc/self/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0], 8)
        except FileNotFoundError:  # the listing itself
            continue
        if stat.S_ISFIFO(mode) and flags & os.O_ACCMODE == os.O_WRONLY:
            return int(entry.name)
    raise AssertionError("no reply pipe")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def raw_reply(job: Job, folder: Path) -> Job:
    """Write ``data`` (hexadecimal) as the reply, and exit."""
    _write_all(reply_pipe(), bytes.fromhex(job["data"]))
    os._exit(job.get("code", 0))


def endless_reply(job: Job, folder: Path) -> Job:
    fd = reply_pipe()
    while True:
        os.write(fd, b"x" * 65536)


def big_reply(job: Job, folder: Path) -> Job:
    return {"value": "x" * job["bytes"]}


def nan_reply(job: Job, folder: Path) -> Job:
    return {"value": float("nan")}


def unserialisable_reply(job: Job, folder: Path) -> Job:
    return {"value": {1, 2}}


def noise(job: Job, folder: Path) -> Job:
    """Control characters, invalid UTF-8 and a fake error line on both streams, then a crash."""
    for stream in (1, 2):
        _write_all(
            stream, b"\xff\xfe\x00\x1b[31m\x07\r\n[ERROR] \x1b[2J\xc3\x28 bad \x00 thing\n" + bytes(range(256)) * 40
        )
    os._exit(3)


def hang(job: Job, folder: Path) -> Job:
    time.sleep(FOREVER)
    return {}


def stubborn(job: Job, folder: Path) -> Job:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (folder / "ready").touch()
    return hang(job, folder)


def _daemon() -> None:
    """A grandchild in a session of its own whose parent is gone, with every descriptor inherited."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(FOREVER)
        os._exit(0)
    os.wait()


def litter(job: Job, folder: Path) -> Job:
    """Leave processes of each sort behind, then do as ``then`` says."""
    for session in (False, True):
        subprocess.Popen(["sleep", str(FOREVER)], start_new_session=session)
    subprocess.Popen(["sh", "-c", f"sleep {FOREVER} & sleep {FOREVER}"])
    _daemon()
    if "ready" in job:
        Path(job["ready"]).touch()
    return JOBS[job["then"]](job, folder)


def crowd(job: Job, folder: Path) -> Job:
    """Fifty processes, each in a group of its own, half of them orphans."""
    for number in range(50):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            if number % 2 and os.fork():
                os._exit(0)
            time.sleep(FOREVER)
    return JOBS[job["then"]](job, folder)


def eat(job: Job, folder: Path) -> Job:
    """Take ``bytes`` of memory in steps of ``step``, with a pause after each."""
    held = []
    for _ in range(0, job["bytes"], job["step"]):
        held.append(b"x" * job["step"])
        time.sleep(job["pause"])
    if job.get("hold"):
        time.sleep(job["hold"])
    return {"held": len(held)}


def eat_elsewhere(job: Job, folder: Path) -> Job:
    """The same in an orphan in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            eat({**job, "hold": FOREVER}, folder)
        os._exit(0)
    os.wait()
    return hang(job, folder)


def fill(job: Job, folder: Path) -> Job:
    """Files everywhere, awkward names and all."""
    for number in range(300):
        (folder / "log" / f"{number}.log").write_text(f"{LOG_HEAD}line {number}\n")
        (folder / "out" / f"{number}").write_bytes(b"x" * 1000)
    os.mkfifo(folder / "log" / "pipe")
    (folder / "log" / "loop").symlink_to(folder)
    (folder / "log" / "zero").symlink_to("/dev/zero")
    Path(os.fsdecode(b"log/\xff\n name")).mkdir()
    return JOBS[job["then"]](job, folder)


def close_all(job: Job, folder: Path) -> Job:
    os.closerange(0, 4096)
    return {}


def vanish(job: Job, folder: Path) -> Job:
    """Go elsewhere and delete the trial's folder."""
    os.chdir("/")
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    return JOBS[job["then"]](job, folder)


def join_group(job: Job, folder: Path) -> Job:
    """Leave the trial's process group for the server's."""
    os.setpgid(0, os.getpgid(os.getppid()))
    return hang(job, folder)


def look(job: Job, folder: Path) -> Job:
    """What the trial finds around it."""
    files = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself
            files[entry.name] = str(entry.readlink())
    time.sleep(job.get("seconds", 0))
    return {
        "environ": dict(os.environ),
        "folder": str(folder),
        "cwd": str(Path.cwd()),
        "files": files,
        "stdin": sys.stdin.read(),
        "group": os.getpgid(0) == os.getpid(),
        "out_parent": Path(os.environ["TILE_FWK_OUTPUT_DIR"]).parent.is_dir(),
    }


JOBS: dict[str, Callable[[Job, Path], Job]] = {
    function.__name__: function
    for function in (
        ok,
        fail,
        segfault,
        abort,
        leave,
        suicide,
        raw_reply,
        endless_reply,
        big_reply,
        nan_reply,
        unserialisable_reply,
        noise,
        hang,
        stubborn,
        litter,
        crowd,
        eat,
        eat_elsewhere,
        fill,
        close_all,
        vanish,
        join_group,
        look,
    )
}
