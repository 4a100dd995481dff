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
import subprocess
import sys
import tempfile
from collections.abc import Mapping
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
                done = subprocess.run(
                    command, env=env, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                raise WorkerSetupError(
                    f"building PyPTO's interpreter took over {BUILD_TIMEOUT:.0f} s: run `pfatune doctor`"
                ) from None
        if done.returncode or not library.is_file():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
            raise WorkerSetupError(f"PyPTO's interpreter could not be built ({last[0]}): run `pfatune doctor`")
    return library


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
