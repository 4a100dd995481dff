"""The interpreter that checks a kernel's numbers on the CPU: built once, kept by version.

Run as a program in the worker's environment, it builds the library into a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import WorkerSetupError

_NAME = "libtile_fwk_calculator.so"
BUILD_TIMEOUT = 900.0  # seconds; 90 on two cores of the machines it was measured on


def library_path(cache: Path) -> Path:
    """Where the interpreter for the installed PyPTO, torch and Python is kept."""
    versions = [importlib.metadata.version(name) for name in ("pypto", "torch")]
    place = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    name = "-".join([*versions, platform.python_version(), platform.machine(), place])
    return cache / "interpreter" / name / _NAME


def ensure_interpreter(cache: Path, environ: Mapping[str, str]) -> Path:
    """The interpreter's library, built if it is not there; other processes wait for the builder.

    Raises:
        WorkerSetupError: the build failed, with its last line.
    """
    library = library_path(cache)
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return library
        with tempfile.TemporaryDirectory(prefix="pfatune-interpreter-") as folder:
            env = {**environ, "PYPTO_HOME": folder, "ASCEND_PROCESS_LOG_PATH": folder, "TMPDIR": folder}
            command = [sys.executable, "-m", "pfatune.autotune.interpreter", str(library)]
            try:
                code, told = _run(command, env, folder)
            except subprocess.TimeoutExpired:
                raise WorkerSetupError(
                    f"building PyPTO's interpreter took over {BUILD_TIMEOUT:.0f} s: run `pfatune doctor`"
                ) from None
        if code or not library.is_file():
            last = told.strip().splitlines()[-1:] or ["no output"]
            raise WorkerSetupError(f"PyPTO's interpreter could not be built ({last[0]}): run `pfatune doctor`")
    return library


def _run(command: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[int, str]:
    """The command's exit code and what it told; where it is not waited for to its end, all it has started ends too.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``BUILD_TIMEOUT``.
    """
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=BUILD_TIMEOUT)
    except BaseException:
        # cmake and the compilers would go on for a minute, with a GB each, and write into a folder that is deleted.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, err or out


def _build(library: Path) -> None:
    from .pypto_private import build_interpreter

    def keep(built: Path) -> None:
        if built.name != _NAME:
            return
        fresh = library.with_name(f".new-{os.getpid()}")
        shutil.copyfile(built, fresh)
        fresh.replace(library)

    build_interpreter(keep)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
