"""``pfatune doctor``: what works on this machine, what does not, and why."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform as python_platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernel.soc import Soc, soc
from ..errors import one_line
from . import options, output

if TYPE_CHECKING:
    from ..settings import Settings

EXAMPLES = """
[bold]Examples[/]

  pfatune doctor
    look at everything, change nothing but the cache

  pfatune doctor --build
    build the interpreter now rather than at the first run

[bold]JSON[/]

  worker_ok, npu_ok (always false: this release has no NPU worker), note, and
  checks: section, name, ok (null where it is neither good nor bad),
  required, detail, remedy.

[bold]Exit codes[/]

  0 the embedded worker can run
  1 it cannot
"""

TESTED_PYPTO = "0.2.0"
NPU_NOTE = "This release measures on PyPTO's cost model only. Nothing of pfatune has run on an NPU."
_IMPORT_TIMEOUT = 120.0  # seconds
_GIB = 1 << 30
_LOW_DISK = 2 * _GIB
_LOW_MEMORY = 2 * _GIB
_PACKAGES = ("pypto", "torch", "numpy", "sympy", "optuna", "sqlalchemy", "alembic", "matplotlib")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``ok`` None: neither good nor bad. ``required``: without it the worker cannot run."""

    section: str
    name: str
    ok: bool | None
    detail: str
    remedy: str = ""
    required: bool = False


def doctor(
    build: Annotated[bool, typer.Option("--build", help="Build PyPTO's interpreter if it is not there.")] = False,
    db: options.Db = None,
    soc_name: options.SocName = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> int:
    """Say what works on this machine, what does not, and what to do about it."""
    from ..settings import load_settings

    settings = load_settings(db=db, soc_name=soc_name)
    chip = soc(settings.soc)
    checks = list(_packages()) + list(_tools())
    checks += _machine(settings)
    checks += _worker(settings, chip, build, fit=all(c.ok for c in checks if c.required))
    checks.append(_database(settings.db))
    checks += _npu()
    worker_ok = all(c.ok for c in checks if c.required)
    if as_json:
        fields = ("section", "name", "ok", "required", "detail", "remedy")
        rows = [{name: getattr(c, name) for name in fields} for c in checks]
        output.print_json({"worker_ok": worker_ok, "npu_ok": False, "note": NPU_NOTE, "checks": rows})
    else:
        _print_checks(checks, worker_ok)
    return 0 if worker_ok else 1


def _print_checks(checks: list[Check], worker_ok: bool) -> None:
    out = output.console()
    marks = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}
    section = ""
    table = output.plain_table("", "", "")
    for c in checks:
        if c.section != section:
            if section:
                out.print(output.indented(table))
            section = c.section
            out.print(section, style="bold")
            table = output.plain_table("", "", "")
            table.columns[1].min_width = 18
        mark, style = marks[c.ok]
        if c.ok is False and not c.required:
            mark, style = "!", "yellow"
        remedy = f": {c.remedy}" if c.remedy and not c.ok else ""
        from rich.text import Text

        table.add_row(Text(mark, style=style), c.name, f"{c.detail}{remedy}")
    out.print(output.indented(table))
    out.print()
    if worker_ok:
        out.print("The embedded worker can run: `pfatune tune` works here.", style="bold green")
    else:
        broken = ", ".join(c.name for c in checks if c.required and not c.ok)
        out.print(f"The embedded worker cannot run here: {broken}.", style="bold red")
    out.print(NPU_NOTE)


def _packages() -> Iterator[Check]:
    version = python_platform.python_version()
    fine = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Check("Packages", "Python", fine, version, "use Python 3.11 or 3.12", required=True)
    for name in _PACKAGES:
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check("Packages", name, False, "not installed", f"pip install {name}", required=True)
            continue
        if name == "pypto" and found != TESTED_PYPTO:
            remedy = f"if anything fails, pip install pypto=={TESTED_PYPTO}"
            yield Check("Packages", name, None, f"{found}, written against {TESTED_PYPTO}", remedy)
        else:
            yield Check("Packages", name, True, found, required=True)


def _tools() -> Iterator[Check]:
    from ...autotune.toolchain import tools

    for tool in tools():
        detail = tool.path or f"missing, needed for {tool.needed_for}"
        yield Check("Tools", tool.name, tool.path is not None, detail, tool.remedy, required=tool.required)


def _machine(settings: Settings) -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0))
    yield Check("Machine", "cores", True, f"{cores}; {settings.parallel} trials at once")
    available = _available_memory()
    if available is not None:
        detail = f"{available / _GIB:.1f} GiB available; a trial may use {settings.trial_memory_gib:g}"
        yield Check("Machine", "memory", available >= _LOW_MEMORY, detail, "free some, or lower PFATUNE_PARALLEL")
    folder = _existing(settings.cache_folder)
    free = shutil.disk_usage(folder).free
    yield Check("Machine", "disk", free >= _LOW_DISK, f"{free / _GIB:.1f} GiB free at {folder}", "free some space")
    yield _cache(settings.cache_folder)


def _available_memory() -> int | None:
    """Bytes that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _cache(folder: Path) -> Check:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "set PFATUNE_CACHE to a writable folder"
        return Check("Machine", "cache", False, f"{folder} cannot be written: {error.strerror}", remedy, required=True)
    return Check("Machine", "cache", True, f"{folder}, writable", required=True)


def _worker(settings: Settings, chip: Soc, build: bool, *, fit: bool) -> Iterator[Check]:
    section = f"Embedded worker, {chip.name}"
    if not fit:
        yield Check(section, "not tried", None, "something above is missing")
        return
    from ...autotune import interpreter, platform
    from ...autotune.errors import WorkerSetupError
    from ...autotune.sim import SimBackend

    cache = settings.cache_folder
    try:
        overlay = platform.prepare(chip, cache)
    except WorkerSetupError as error:
        yield Check(section, "overlay", False, str(error), required=True)
        return
    yield Check(section, "overlay", True, str(overlay.root), required=True)
    trouble = _import_trouble(overlay.environ(os.environ))
    detail = trouble or "torch and PyPTO load"
    yield Check(section, "import", not trouble, detail, "reinstall torch and pypto", required=True)
    library = interpreter.library_path(cache)
    if library.is_file():
        yield Check(section, "interpreter", True, str(library))
    elif not build or trouble:
        yield Check(section, "interpreter", None, "not built yet; the first run does it, or --build: 30 to 90 s")
    else:
        try:
            SimBackend(chip, cache)
        except WorkerSetupError as error:
            yield Check(section, "interpreter", False, str(error), required=True)
        else:
            yield Check(section, "interpreter", True, f"built: {library}")


def _import_trouble(environ: dict[str, str]) -> str:
    """Why torch and PyPTO cannot be imported as the worker does, in a process of its own; empty if they can."""
    command = [sys.executable, "-c", "import torch, pypto"]
    with tempfile.TemporaryDirectory(prefix="pfatune-doctor-") as folder:
        env = {**environ, "ASCEND_PROCESS_LOG_PATH": folder, "PYPTO_HOME": folder}
        try:
            done = subprocess.run(
                command, env=env, cwd=folder, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not done after {_IMPORT_TIMEOUT:.0f} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"]
    return one_line(lines[-1])[:300]


def _database(target: str) -> Check:
    from ...db.errors import StoreError
    from .lookup import open_if_there

    try:
        store = open_if_there(target)
        if store is None:
            return Check("Database", target, None, "not there yet; `pfatune tune` makes it")
        with store:
            count = len(store.environments())
            return Check("Database", target, True, f"{count} environment{'s' if count != 1 else ''} measured in")
    except StoreError as error:
        return Check("Database", target, False, str(error))


def _npu() -> Iterator[Check]:
    found = importlib.util.find_spec("torch_npu") is not None
    yield Check("NPU", "torch_npu", None, "installed" if found else "not installed")
    home = os.environ.get("ASCEND_HOME_PATH")
    yield Check("NPU", "ASCEND_HOME_PATH", None, home or "not set: no CANN")
    devices = sorted(str(path) for path in Path("/dev").glob("davinci[0-9]*"))
    yield Check("NPU", "devices", None, ", ".join(devices) or "no /dev/davinci*: no NPU here")
