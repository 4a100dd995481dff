"""What a serving engine imports: the configuration for any shape, at once, whatever happens elsewhere."""

from __future__ import annotations

import enum
import logging
import os
import random
import threading
import weakref
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from .ladder import Answer, Ladder
from .shapes import PfaShape
from .source import kernel_digest
from .sources import DiskCopy, FileSource, Origin, Served, ServiceSource, Source, SourceError, Wanted, default_copy

#: Shapes whose answers are kept; further ones are looked up each time.
MAX_KEPT = 65536
#: The longest wait after failures, in refresh intervals.
MAX_BACKOFF = 10
JITTER = 0.2
#: The first wait after a failure while nothing was read yet: engine and service may start together.
_FIRST_RETRY = 1.0  # second
#: How long the constructor may wait for a locked database.
_START_TIMEOUT = 0.2  # seconds
_CLOSE_TIMEOUT = 1.0  # seconds

_log = logging.getLogger("pfatune.tuned")


class Auto(enum.Enum):
    """An argument that is left to pfatune."""

    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Status:
    """What is served and how the source is doing.

    ``loaded`` tells whether the source was read at least once; ``origin`` says where the ``entries``
    in use come from, ``checksum`` and ``environment`` (its digest) which they are ('' where there
    are none). ``refreshed_at`` (UTC) is when the source was last read well, changed or not;
    ``error`` is what went wrong last, '' if nothing.
    """

    source: str
    loaded: bool
    origin: Origin
    entries: int
    checksum: str
    environment: str
    refreshed_at: datetime | None
    error: str


class TunedConfigs:
    """Tuned configurations for a serving engine: from a service, a database or a snapshot file.

    A lookup reads memory only. A thread in the background reads the source every
    ``refresh_seconds`` (give or take a fifth; less often while that fails) and swaps in what is
    new. Of a service that is away, the copy on disk serves, or else what was read last; where
    there is nothing, or for shapes unlike any tuned one, the kernel's own default does. Failures
    are told by ``status`` and, once each, by the log ``pfatune.tuned``; they never raise.

    Threads may share one, and a forked child goes on with a thread of its own. While something new
    is taken in, Python is shared with it: measured, other threads wait some 6 ms at a time with
    10,000 shapes, and 0.2 s with 100,000.

    Args:
        source: the base URL of a service (http or https), or the path of a database of pfatune
            (SQLite) or of a snapshot, which are read at once.
        soc: the chip, such as ``950PR``. Only what was tuned for it and for this very kernel is used.
        backend: ``npu`` or ``sim``; None takes ``npu`` first.
        pypto: the version of PyPTO; None takes the newest environment.
        copy: where to keep the last snapshot of a service; None keeps none. Left out, it is a file
            under ``$XDG_CACHE_HOME`` or ``~/.cache``. Local sources are not copied.
        refresh_seconds: how often the source is read.
        timeout: how long a service may be silent, or a database locked, in seconds; a whole
            download may take ten times that.

    Raises:
        ValueError: the source is no URL or path, the chip is unknown, or a time is not above 0.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        soc: str = "950PR",
        backend: str | None = None,
        pypto: str | None = None,
        copy: str | os.PathLike[str] | Auto | None = Auto.AUTO,
        refresh_seconds: float = 60.0,
        timeout: float = 10.0,
    ) -> None:
        for name, value in (("refresh_seconds", refresh_seconds), ("timeout", timeout)):
            if not 0 < value <= threading.TIMEOUT_MAX / 100:
                raise ValueError(f"{name} is {value!r}: give seconds above 0")
        wanted = Wanted(soc, kernel_digest(), backend, pypto)
        self._name = os.fspath(source)
        self._source = _source(self._name, wanted)
        self._refresh_seconds = refresh_seconds
        self._timeout = timeout
        self._answers = _Answers(Served(Ladder(), "built-in", ""))
        self._refreshed_at: datetime | None = None
        self._error = self._copy_error = self._warned = ""
        self._failures = 0
        self._copy: DiskCopy | None = None
        self._make_locks()
        if isinstance(self._source, ServiceSource):
            self._read_copy(self._source, copy, wanted)
        else:
            self._attempt(min(timeout, _START_TIMEOUT))
        self._start()
        _alive.add(self)

    def lookup(self, shape: PfaShape) -> Answer:
        """What to run for a shape, in canonical form, and where it comes from. Never waits, never raises."""
        return self._answers[shape]

    def refresh(self) -> bool:
        """Read the source now, in this thread; whether something new was taken.

        Waits for a read that is under way; nothing is raised, see ``status``.
        """
        return self._attempt(self._timeout)

    def wait(self, timeout: float) -> bool:
        """Wait until the source was read for the first time, at most ``timeout`` seconds; whether it was.

        For a start that shall begin tuned; an engine need not wait.
        """
        return self._loaded.wait(timeout)

    @property
    def status(self) -> Status:
        now = self._answers.served
        return Status(
            source=self._name,
            loaded=self._loaded.is_set(),
            origin=now.origin,
            entries=len(now.ladder),
            checksum=now.checksum,
            environment=now.environment,
            refreshed_at=self._refreshed_at,
            error=self._error or self._copy_error,
        )

    def close(self) -> None:
        """Stop reading the source; lookups go on with what is there. May be called twice."""
        self._stop.set()
        _alive.discard(self)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TunedConfigs {self._name}: {len(self._answers.served.ladder)} from {self._answers.served.origin}>"

    def _make_locks(self) -> None:
        self._lock = threading.Lock()  # one read at a time
        self._loaded = threading.Event()
        self._stop = threading.Event()

    def _start(self) -> None:
        # The thread holds no reference to this object while it waits, so that one which is
        # dropped without close() is collected, and its thread ends.
        self._thread = threading.Thread(
            target=_keep_fresh, args=(weakref.ref(self), self._stop), name="pfatune-tuned", daemon=True
        )
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def _restart_in_child(self) -> None:
        loaded = self._loaded.is_set()
        self._make_locks()
        if loaded:
            self._loaded.set()
        self._start()

    def _delay(self) -> float:
        """Seconds until the next read."""
        interval = self._refresh_seconds
        if self._failures:
            first = 2 * interval if self._loaded.is_set() else min(_FIRST_RETRY, interval)
            interval = min(first * 2.0 ** min(self._failures - 1, 60), MAX_BACKOFF * interval)
        elif isinstance(self._source, ServiceSource) and not self._loaded.is_set():
            return 0
        return interval * random.uniform(1 - JITTER, 1 + JITTER)

    def _attempt(self, timeout: float) -> bool:
        with self._lock:
            if self._stop.is_set():
                return False
            taken = False
            try:
                found = self._source.read(timeout)
                taken = not self._stop.is_set() and self._take(found)
            except Exception as error:  # an engine is to go on serving, whatever it is
                self._failures += 1
                self._error = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
            else:
                self._failures = 0
                self._error = ""
                self._refreshed_at = datetime.now(UTC)
                self._loaded.set()
            error_now = self._error or self._copy_error
            news = error_now != self._warned
            self._warned = error_now
        if news and error_now:
            _log.warning("%s", error_now)
        return taken

    def _take(self, found: Served | None) -> bool:
        if found is None:
            if self._answers.served.origin == "copy":
                self._answers.confirm("service")
            return False
        self._answers = _Answers(found)
        if self._copy is not None and found.document:
            try:
                self._copy.write(found.document)
                self._copy_error = ""
            except OSError as error:
                self._copy_error = f"the copy {self._copy.path} cannot be written: {error.strerror or error}"
        return True

    def _read_copy(self, source: ServiceSource, copy: str | os.PathLike[str] | Auto | None, wanted: Wanted) -> None:
        if copy is None:
            return
        try:
            self._copy = DiskCopy(default_copy(source) if isinstance(copy, Auto) else Path(copy), wanted)
            found = self._copy.read()
        except Exception as error:  # as in _attempt
            self._copy_error = self._warned = str(error)
            _log.warning("%s", error)
            return
        if found is not None:
            self._answers = _Answers(found)
            source.tag = f'"{found.checksum}"'


class _Answers(dict[PfaShape, Answer]):
    """The answers of one ladder, each looked up when it is first asked for: a hit costs what a dict costs."""

    __slots__ = ("served",)

    def __init__(self, served: Served) -> None:
        super().__init__()
        self.served = replace(served, document=b"")  # which may be large

    def __missing__(self, shape: PfaShape) -> Answer:
        answer = self.served.ladder.lookup(shape)
        if len(self) < MAX_KEPT:
            self[shape] = answer
        return answer

    def confirm(self, origin: Origin) -> None:
        self.served = replace(self.served, origin=origin)


def _source(text: str, wanted: Wanted) -> Source:
    if not text.strip():
        raise ValueError("the source is empty: give the URL of a service, or the path of a database or snapshot")
    scheme, separator, _ = text.partition("://")
    if not separator:
        return FileSource(Path(text), wanted)
    if scheme.lower() not in ("http", "https"):
        # The rest may hold a password.
        raise ValueError(f"the source is a URL of scheme {scheme[:20]!r}: give http, https, or the path of a file")
    return ServiceSource(text, wanted)


def _keep_fresh(of: weakref.ref[TunedConfigs], stop: threading.Event) -> None:
    """The life of the thread."""
    while (tuned := of()) is not None:
        delay = tuned._delay()
        del tuned
        if stop.wait(delay):
            return
        if (tuned := of()) is not None:
            tuned.refresh()
        del tuned


#: What has to get a new thread in a forked child.
_alive: weakref.WeakSet[TunedConfigs] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tuned in list(_alive):
        tuned._restart_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
