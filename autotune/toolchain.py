"""The tools that PyPTO's compiler calls, and the environment that a worker's processes get."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import WorkerSetupError
from .launcher import launcher_folder
from .shortcuts import shortcuts_library


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
    """``base`` with the shortcuts preloaded, and with the launcher and ccache's settings if ccache is installed."""
    env = dict(base)
    cache = cache.absolute()  # trials run elsewhere
    folders = base.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(cache / "bin"))
    ccache = shutil.which("ccache", path=path)
    compiler = shutil.which("g++", path=path)
    if compiler and (shortcuts := shortcuts_library(cache, compiler)):
        others = [name for name in env.get("LD_PRELOAD", "").split() if name != str(shortcuts)]
        env["LD_PRELOAD"] = " ".join([str(shortcuts), *others])
    if ccache is None or compiler is None:
        return env
    folder = launcher_folder(cache, ccache, compiler)
    env["PATH"] = f"{folder}{os.pathsep}{path}"
    env["CCACHE_DIR"] = str(cache / "ccache")
    env["CCACHE_NOHASHDIR"] = "1"
    env["CCACHE_COMPILERCHECK"] = "mtime"
    env["CCACHE_SLOPPINESS"] = "include_file_mtime,include_file_ctime,time_macros"
    env["CCACHE_MAXSIZE"] = "2G"
    env["CCACHE_TEMPDIR"] = str(cache / "ccache" / "tmp")
    return env
