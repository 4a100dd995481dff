"""Where a serving engine's configurations come from: a service, a database file, a snapshot file, a copy of one."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlencode

from . import served
from .download import DownloadError, check_url, get
from .ladder import Ladder
from .snapshot import MAX_BYTES, SnapshotError, load
from .soc import soc

Origin = Literal["service", "database", "file", "copy", "built-in"]

_SQLITE = b"SQLite format 3\0"


class SourceError(Exception):
    """A source that cannot be used now, and why, in one line."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which environment may serve here; None means any.

    Raises:
        UnknownSocError: no such chip is described.
    """

    soc: str
    kernel_digest: str
    backend: str | None = None
    pypto: str | None = None

    def __post_init__(self) -> None:
        soc(self.soc)

    def check(self, environment: Mapping[str, str]) -> None:
        """Refuse what was tuned for something else.

        Raises:
            SourceError: with what differs.
        """
        for name, wanted in (
            ("soc", self.soc),
            ("kernel_digest", self.kernel_digest),
            ("backend", self.backend),
            ("pypto", self.pypto),
        ):
            found = environment[name]
            if wanted not in (None, found):
                remedy = "tune this kernel, or install the same pfatune" if name == "kernel_digest" else "tune for it"
                raise SourceError(f"what is served there has {name} {found[:100]!r}, here it is {wanted!r}: {remedy}")


@dataclass(frozen=True, slots=True)
class Served:
    """What a source gave: a settled ladder, where from, and the document if it came as one.

    ``checksum`` is the snapshot's, '' for a database; ``environment`` is the environment's digest.
    """

    ladder: Ladder
    origin: Origin
    environment: str
    checksum: str = ""
    document: bytes = b""


class Source(Protocol):
    """Somewhere to read from, again and again; one thread at a time."""

    def read(self, timeout: float) -> Served | None:
        """What is served now; None if that is what was read last.

        Raises:
            SourceError: nothing can be had, or nothing that fits.
        """


class ServiceSource:
    """A service, by the base of its URL.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, base: str, wanted: Wanted) -> None:
        parts = check_url(base)
        if parts.query or parts.fragment:
            raise ValueError(f"the URL {base!r} has a query or fragment: give the base of the service")
        filters = {"soc": wanted.soc, "backend": wanted.backend, "pypto": wanted.pypto}
        query = urlencode({name: value for name, value in filters.items() if value is not None})
        self.url = f"{base.rstrip('/')}/configs?{query}"
        #: ETag of what was read last; a copy's is its checksum.
        self.tag = ""
        self._wanted = wanted

    def read(self, timeout: float) -> Served | None:
        try:
            download = get(self.url, tag=self.tag, timeout=timeout, max_bytes=MAX_BYTES)
        except DownloadError as error:
            raise SourceError(str(error)) from error
        if download.body is None:
            return None
        found = _from_document(download.body, self._wanted, "service", self.url)
        self.tag = download.tag
        return found


class FileSource:
    """A database of pfatune in one file, or a snapshot, whichever the file is when it is read."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path = path
        self._wanted = wanted
        self._last: object = None

    def read(self, timeout: float) -> Served | None:
        if _is_database(self._path):
            return self._read_database(timeout)
        data = read_file(self._path)
        state = hashlib.sha256(data).digest()
        if state == self._last:
            return None
        found = _from_document(data, self._wanted, "file", str(self._path))
        self._last = state
        return found

    def _read_database(self, timeout: float) -> Served | None:
        try:
            with _reading:
                try:
                    return self._read_with(timeout, "mode=ro")
                except sqlite3.OperationalError as error:
                    # SQLite has to write beside the file, and may not.
                    refused = error.sqlite_errorname.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN"))
                    if not refused or not _is_at_rest(self._path):
                        raise
                    return self._read_at_rest(timeout)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            raise SourceError(f"{self._path} cannot be read as a database of pfatune: {error}") from error

    def _read_with(self, timeout: float, mode: str) -> Served | None:
        uri = f"file:{quote(str(self._path.absolute()))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)) as connection:
            connection.execute("BEGIN")  # one state of the database for all queries
            return self._read_rows(connection)

    def _read_at_rest(self, timeout: float) -> Served | None:
        """Read a file that nobody has open, without the files that SQLite would make beside it."""
        last, before = self._last, _state(self._path)
        found = self._read_with(timeout, "mode=ro&immutable=1")
        if not _is_at_rest(self._path) or _state(self._path) != before:
            self._last = last
            raise SourceError(f"{self._path} was changed while it was read: it will be read again")
        return found

    def _read_rows(self, connection: sqlite3.Connection) -> Served | None:
        wanted = self._wanted
        rows = connection.execute(served.ENVIRONMENTS_SQL)
        listed = [(row[0], dict(zip(served.ENVIRONMENT_COLUMNS, row[1:], strict=True))) for row in rows]
        fit = served.choose_environment(
            listed, wanted.soc, wanted.backend, wanted.pypto, kernel_digest=wanted.kernel_digest
        )
        if not fit:
            raise SourceError(
                f"{self._path} serves nothing for soc {wanted.soc}, kernel {wanted.kernel_digest}, "
                f"backend {wanted.backend or 'any'}, pypto {wanted.pypto or 'any'}: tune for it"
            )
        env, environment = fit[0]
        state = (env, *connection.execute(served.STATE_SQL, {"env": env}).fetchone())
        has_portfolios = connection.execute(served.HAS_PORTFOLIOS_SQL).fetchone() is not None
        if has_portfolios:
            state += connection.execute(served.PORTFOLIO_STATE_SQL, {"env": env}).fetchone()
        if state == self._last:
            return None

        def config_of(measurement: int) -> Any:
            return connection.execute(served.CONFIG_SQL, {"id": measurement}).fetchone()[0]

        ladder = Ladder()
        for _, shape, entry in served.entries_from_rows(
            connection.execute(served.SERVED_SQL, {"env": env, "after": 0}), config_of
        ):
            ladder.add(shape, entry)
        if has_portfolios:
            found = connection.execute(served.PORTFOLIOS_SQL, {"env": env, "after": 0})
            for _, family, members in served.portfolios_from_rows(found, config_of):
                ladder.set_portfolio(family, members)
        ladder.settle()
        self._last = state
        return Served(ladder, "database", environment["digest"])


class DiskCopy:
    """The last snapshot of a service, kept for the next start without one."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path = path
        self._wanted = wanted

    def read(self) -> Served | None:
        """The copy; None if there is none.

        Raises:
            SourceError: it is not whole, or of something else.
        """
        if not self.path.exists():
            return None
        return _from_document(read_file(self.path), self._wanted, "copy", f"the copy {self.path}")

    def write(self, document: bytes) -> None:
        """Replace the copy, whole or not at all; only its owner can read it.

        Raises:
            OSError: it cannot be written.
        """
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def default_copy(source: ServiceSource) -> Path:
    """Where the copy of a service's snapshot is kept, apart for each URL and filter.

    Raises:
        RuntimeError: there is no home folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path("~/.cache").expanduser()
    return cache / "pfatune" / "served" / f"{hashlib.sha256(source.url.encode()).hexdigest()[:16]}.json"


def read_file(path: Path) -> bytes:
    """A file of at most ``MAX_BYTES``.

    Raises:
        SourceError: it cannot be read, is no file, or is too large.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path} is no file: give a database or a snapshot")  # a pipe would keep us waiting
        if found.st_size > MAX_BYTES:
            raise SourceError(f"{path} has {found.st_size} bytes, limit {MAX_BYTES}: serve fewer shapes")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path that holds NUL
        raise SourceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _is_database(path: Path) -> bool:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except (OSError, ValueError):
        return False  # to be read, and explained, as any file


def _is_at_rest(path: Path) -> bool:
    """Whether nobody has the database open: its log lies beside it until the last one has closed it."""
    return not path.with_name(f"{path.name}-wal").exists()


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _from_document(data: bytes, wanted: Wanted, origin: Origin, name: str) -> Served:
    try:
        snapshot = load(data)
        wanted.check(snapshot.environment)
    except (SnapshotError, SourceError) as error:
        raise SourceError(f"{name}: {error}") from error
    return Served(snapshot.ladder, origin, snapshot.environment["digest"], snapshot.checksum, data)


#: Held while SQLite is in use, so that no child is forked with SQLite's own locks taken: it could
#: never use SQLite again. A fork waits for this, but not for long.
_reading = threading.Lock()
_FORK_SECONDS = 1.0
_fork_waited = False


def _before_fork() -> None:
    global _fork_waited
    _fork_waited = _reading.acquire(timeout=_FORK_SECONDS)


def _after_fork() -> None:
    if _fork_waited:
        _reading.release()


def _after_fork_in_child() -> None:
    global _reading
    _reading = threading.Lock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
