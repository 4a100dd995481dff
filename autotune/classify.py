"""From how a trial ended to the kind of its measurement.

Codes and texts are those of PyPTO 0.2.0. Python sees little more than "Run pass failed"; the
reason stands in the compiler's log, so its error lines are read, and kept with the measurement.
"""

from __future__ import annotations

import builtins
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..db.records import Kind

MAX_MESSAGE = 2000  # characters kept with a measurement
_MAX_LOG_BYTES = 1 << 20  # read of each log file, from its end
_MAX_LOG_FILES = 100
_LOG_LINES = 6

_NOISE = re.compile(r"Cannot find attr")  # on every compile, of sizes that no legality needs
_ERROR_LINE = re.compile(r"\bERROR\b")
_LINE_HEAD = re.compile(
    r"^\[ERROR\]\s*(\w+\(\d+\):[\d-]+ [\d:.]+)?\s*(\[[^\]]*:\d+\])?\s*(\[[A-Z_]+\]:?)?\s*(ErrCode:\s*)?"
)
_MEMORY = re.compile(
    r"exceeds? MEM_|Buffer\[L0|Buffer\[L1|Buffer\[UB|is Full|Spill all buffer failed|out of (UB|L1|L0|memory)", re.I
)
_ILLEGAL = re.compile(r"\bF(C4000|C4001|C1001)\b|tile ?shape", re.I)
_SIMULATOR = re.compile(r"F91001")
_DTYPE = re.compile(r"DAV_3510|dtype|data type", re.I)  # those of the kernel are the same in every configuration
_ENVIRONMENT = re.compile(r"cmake|g\+\+: |No space left|Read-only file system|cannot execute|command not found", re.I)
_MACHINE = re.compile(r"No space left on device|Read-only file system|Disk quota exceeded|Too many open files", re.I)
_ALLOCATION = re.compile(r"bad_alloc|MemoryError|Cannot allocate memory|can't allocate memory", re.I)

_PRINTED = (_ERROR_LINE, _ALLOCATION, _MACHINE)  # what is worth reading of a trial's output


class NoOutputError(RuntimeError):
    """The compiler returned without an error and without a result."""


class InterpreterError(RuntimeError):
    """The interpreter, or the compiler before it, ended with this error."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trial's process ended, as its parent saw it.

    ``stopped`` is why the parent killed it ("timeout" or "memory"), empty if it did not;
    ``status`` the exit code, negative for a signal. ``error`` is the type and text of the
    exception that the trial replied with, if it replied.
    """

    status: int
    stopped: str = ""
    error: tuple[str, str] | None = None
    replied: bool = False


def classify(ending: Ending, log: str) -> tuple[Kind, str]:
    """The kind of a trial that did not succeed, and the message to keep with it."""
    lines = _error_lines(log)
    detail = "\n".join(lines)
    if ending.stopped == "timeout":
        return Kind.TIMEOUT, _message("stopped at its time limit", detail)
    if ending.stopped == "memory":
        return Kind.OUT_OF_MEMORY, _message("stopped at its memory limit", detail)
    if ending.error is not None:
        name, text = ending.error
        head = _shorten(text) or name.strip() or "ended with an error that says nothing"
        return _classify_exception(name, text, detail, log), _message(head, detail)
    if _ALLOCATION.search(log):
        return Kind.OUT_OF_MEMORY, _message("ran into its memory limit", detail)
    if _MACHINE.search(log):
        return Kind.ENVIRONMENT_FAULT, _message("the machine ran out of room", detail)
    if ending.status < 0:
        number = -ending.status
        if number == signal.SIGKILL:
            return Kind.ENVIRONMENT_FAULT, _message("killed from outside", detail)
        return Kind.CRASHED, _message(f"ended by signal {_signal_name(number)}", detail)
    if ending.replied:
        return Kind.CRASHED, _message("replied with something that is not the protocol's JSON", detail)
    return Kind.CRASHED, _message(f"ended with code {ending.status} and no reply", detail)


def _classify_exception(name: str, text: str, detail: str, log: str) -> Kind:
    if name == "MemoryError" or _ALLOCATION.search(text):
        return Kind.OUT_OF_MEMORY
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, (OSError, ImportError)):
        return Kind.ENVIRONMENT_FAULT
    if _SIMULATOR.search(text) or _SIMULATOR.search(log) or _MACHINE.search(log):
        return Kind.ENVIRONMENT_FAULT
    if _MEMORY.search(text) or _MEMORY.search(detail):
        return Kind.DOES_NOT_FIT
    if _ILLEGAL.search(text) or _ILLEGAL.search(detail):
        return Kind.REJECTED
    if _ENVIRONMENT.search(text) or (name == "ValueError" and _DTYPE.search(text)):
        return Kind.ENVIRONMENT_FAULT
    if name == "NoOutputError":
        return Kind.CRASHED
    if name in {"ValueError", "TypeError", "NotImplementedError", "ParserError"}:
        return Kind.REJECTED
    return Kind.CRASHED


def read_log(folder: Path, logs: Sequence[Path] = ()) -> str:
    """The error lines of a trial's compiler logs, and what it printed of the same sort.

    ``logs`` are files of the trial that lie outside its folder.
    """
    parts = []
    for path in [*logs, *sorted((folder / "log").rglob("*"))][:_MAX_LOG_FILES]:
        if path.is_file():
            parts += [line for line in _tail(path).splitlines() if _ERROR_LINE.search(line) and not _NOISE.search(line)]
    for name in ("stdout", "stderr"):
        path = folder / name
        if path.is_file():
            parts += [line for line in _tail(path).splitlines() if any(kind.search(line) for kind in _PRINTED)]
    return "\n".join(parts)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MAX_LOG_BYTES))
            return file.read(_MAX_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _error_lines(log: str) -> list[str]:
    """The distinct error lines without time and process, those about memory first."""
    texts = list(dict.fromkeys(_LINE_HEAD.sub("", line).strip() for line in log.splitlines()))
    return sorted((t for t in texts if t), key=lambda text: not _MEMORY.search(text))[:_LOG_LINES]


def _message(head: str, detail: str) -> str:
    return _printable((f"{head}\n{detail}" if detail and detail not in head else head)[:MAX_MESSAGE])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _shorten(text: str) -> str:
    lines: Iterable[str] = (line.strip() for line in text.splitlines())
    return "; ".join([line for line in lines if line and not line.startswith(("File ", "at "))][:3])[:400]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
