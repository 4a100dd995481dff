"""The tools that PyPTO's compiler calls, and how they are put on a child's PATH.

PyPTO compiles some twenty small generated files of control flow for every kernel, and their
headers cost more than their code. With ccache in front of g++ an unchanged file costs nothing.
ccache only hits if the compiler sees relative names, because PyPTO's output folder is new each
time; a launcher in front of it changes into the folder and strips it from the arguments.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import WorkerSetupError

#: The launcher: one argument is a source or an output in the folder of the source.
_LAUNCHER = """#!/bin/sh
# g++ for PyPTO's generated control flow: relative names, so that ccache hits.
folder=
for argument do
    case $argument in
        /*/kernel_aicpu/*.cpp|/*/kernel_aicpu/*.s) folder=${argument%/*}; break ;;
    esac
done
if [ -z "$folder" ]; then
    exec {ccache} {compiler} "$@"
fi
for argument do
    shift
    set -- "$@" "${argument#"$folder"/}"
done
cd "$folder" && exec {ccache} {compiler} "$@"
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program PyPTO or pfatune calls: where it is, or how to get it."""

    name: str
    path: str | None
    needed_for: str
    remedy: str
    required: bool = True


def tools(path: str | None = None) -> list[Tool]:
    """Every tool the embedded worker uses, found on ``path`` or the process's PATH."""
    return [
        Tool("g++", shutil.which("g++", path=path), "compiling the kernel's control flow", "apt-get install g++"),
        Tool("ld", shutil.which("ld", path=path), "linking the kernel's control flow", "apt-get install binutils"),
        Tool("objcopy", shutil.which("objcopy", path=path), "packing the control flow", "apt-get install binutils"),
        Tool("cmake", elf_cmake(path), "building the interpreter that checks numbers", "apt-get install cmake"),
        Tool(
            "make",
            shutil.which("make", path=path),
            "building the interpreter that checks numbers",
            "apt-get install make",
        ),
        Tool(
            "ccache",
            shutil.which("ccache", path=path),
            "faster trials: unchanged control flow is not compiled again",
            "apt-get install ccache",
            required=False,
        ),
    ]


def elf_cmake(path: str | None = None) -> str | None:
    """The first cmake on the path that is a program and not pip's script, which PyPTO passes over."""
    for folder in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        found = shutil.which("cmake", path=folder) if folder else None
        if found:
            with Path(found).resolve().open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    return found
    return None


def require_tools(path: str | None = None) -> None:
    """Check that every required tool is there.

    Raises:
        WorkerSetupError: some are missing; a line for each says what for and how to install it.
    """
    missing = [tool for tool in tools(path) if tool.required and tool.path is None]
    if missing:
        raise WorkerSetupError(
            "\n".join(f"{tool.name} is missing, needed for {tool.needed_for}: {tool.remedy}" for tool in missing)
        )


def compiler_environ(base: Mapping[str, str], cache: Path) -> dict[str, str]:
    """``base`` with the launcher first on PATH and ccache's settings, if ccache is installed."""
    env = dict(base)
    cache = cache.absolute()  # trials run elsewhere
    folders = base.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(cache / "bin"))
    ccache = shutil.which("ccache", path=path)
    compiler = shutil.which("g++", path=path)
    if ccache is None or compiler is None:
        return env
    folder = _launcher_folder(cache, ccache, compiler)
    env["PATH"] = f"{folder}{os.pathsep}{path}"
    env["CCACHE_DIR"] = str(cache / "ccache")
    env["CCACHE_NOHASHDIR"] = "1"
    env["CCACHE_COMPILERCHECK"] = "mtime"
    env["CCACHE_SLOPPINESS"] = "include_file_mtime,include_file_ctime,time_macros"
    env["CCACHE_MAXSIZE"] = "2G"
    env["CCACHE_TEMPDIR"] = str(cache / "ccache" / "tmp")
    return env


def _launcher_folder(cache: Path, ccache: str, compiler: str) -> Path:
    folder = cache / "bin"
    launcher = folder / "g++"
    script = _LAUNCHER.replace("{ccache}", shlex.quote(ccache)).replace("{compiler}", shlex.quote(compiler))
    try:
        if launcher.is_file() and launcher.read_text() == script:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        (cache / "ccache" / "tmp").mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".new-", delete=False) as file:
            file.write(script)
        fresh = Path(file.name)
        fresh.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        fresh.replace(launcher)
    except OSError as error:
        raise WorkerSetupError(
            f"cannot write the compiler launcher in {cache}: {error.strerror}; set PFATUNE_CACHE to a writable folder"
        ) from None
    return folder
