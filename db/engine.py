"""One database, opened: its connections, its transactions, and its errors in plain words."""

from __future__ import annotations

import copy
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError

from .errors import (
    DatabaseDamagedError,
    DatabaseFailedError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseMovedError,
    DatabaseUnreachableError,
    DriverMissingError,
    NotADatabaseError,
    NotReadableError,
    NotWritableError,
    ReadOnlyStoreError,
    StoreError,
)
from .target import Target

#: Execution option: the statement that starts a transaction on SQLite.
_BEGIN = "pfatune_begin"
#: One state of the database for the whole transaction, as SQLite has it.
_POSTGRESQL_READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
CONNECT_SECONDS = 10


class Database:
    """Connections to one database, shared by threads.

    ``read()`` and ``write()`` each give a connection in one transaction, which ends with the
    block: committed, or rolled back by an exception. On SQLite a write takes the write lock at
    once, waiting ``busy_timeout`` seconds for it, and is on the disk when the block ends.
    """

    def __init__(self, target: Target, *, read_only: bool = False, busy_timeout: float = 5.0) -> None:
        target.check(read_only=read_only)
        self.target = target
        self.name = target.name
        self.read_only = read_only
        self.busy_timeout = busy_timeout
        self._guard: Callable[[Connection], None] | None = None
        self._file: tuple[int, int] | None = None  # device and inode of what was opened
        self.is_sqlite = target.path is not None
        self._engine = self._sqlite_engine() if self.is_sqlite else self._postgresql_engine()
        reading, writing = ({}, {_BEGIN: "BEGIN IMMEDIATE"}) if self.is_sqlite else (_POSTGRESQL_READING, {})
        self._reader = self._engine.execution_options(**reading)
        self._writer = self._engine.execution_options(**writing)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one state of the database."""
        self._require_file()
        with self._plain_errors(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection whose changes are kept all or not at all.

        Raises:
            ReadOnlyStoreError: the database was opened read-only.
            DatabaseLockedError: another process kept the lock for longer than ``busy_timeout``.
        """
        if self.read_only:
            raise ReadOnlyStoreError(name=self.name)
        self._require_file()
        with self._plain_errors(), self._writer.begin() as connection:
            if self._guard is not None:
                self._guard(connection)
            yield connection

    def guarded(self, guard: Callable[[Connection], None]) -> Self:
        """The same connections, but that every write first calls the guard, whose exception refuses the write.

        Closing it closes nothing.
        """
        other = copy.copy(self)
        other._guard = guard
        return other

    def use_wal(self) -> None:
        """Let SQLite's readers and writer work at the same time; the file stays so for good."""
        deadline = time.monotonic() + self.busy_timeout
        with self._plain_errors(), self._engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            while True:
                try:
                    if driver.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                        driver.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError:
                    # SQLite does not always wait here; another process may be making the same change.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)

    def close(self) -> None:
        if self._guard is None:
            self._engine.dispose()

    def _sqlite_engine(self) -> Engine:
        engine = create_engine(
            self.target.read_only_url if self.read_only else self.target.url,
            # The driver shall start no transaction by itself: it would be a deferred one, and too late.
            connect_args={"isolation_level": None, "timeout": self.busy_timeout},
            json_serializer=_to_json,
        )
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "connect", self._remember_file)
        event.listen(engine, "begin", _begin)
        return engine

    def _remember_file(self, connection: sqlite3.Connection, record: object) -> None:
        if self._file is None:
            self._file = self._file_there()

    def _file_there(self) -> tuple[int, int] | None:
        assert self.target.path is not None
        try:
            found = self.target.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _require_file(self) -> None:
        """Refuse to go on where SQLite would: in a file that has lost its name, and lasts as long as this process.

        Raises:
            DatabaseMovedError: another file, or none, has that name now.
        """
        if self._file is not None and self._file != self._file_there():
            raise DatabaseMovedError(name=self.name)

    def _postgresql_engine(self) -> Engine:
        # A server of another encoding converts; one of none (SQL_ASCII) gives bytes unless it is asked for text.
        connect_args: dict[str, Any] = {"client_encoding": "utf8"}
        if "connect_timeout" not in self.target.url.query:
            connect_args["connect_timeout"] = CONNECT_SECONDS
        try:
            engine = create_engine(
                self.target.url,
                connect_args=connect_args,
                pool_pre_ping=True,
                json_serializer=_to_json,
            )
        except ModuleNotFoundError as error:
            raise DriverMissingError(name=self.name) from error
        event.listen(engine, "connect", partial(_set_lock_timeout, self.busy_timeout))
        return engine

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            plain = self._plain_error(error)
            if plain is None:
                raise
            raise plain from error

    def _plain_error(self, error: DBAPIError | sqlite3.Error) -> StoreError | None:
        cause = error.orig if isinstance(error, DBAPIError) else error
        detail = " ".join(str(cause).split())
        sqlite_name = getattr(cause, "sqlite_errorname", None)
        code = sqlite_name or getattr(cause, "sqlstate", None) or ""
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or code == "55P03":
            return DatabaseLockedError(name=self.name, seconds=self.busy_timeout)
        if code == "SQLITE_NOTADB":
            return NotADatabaseError(name=self.name, detail=detail)
        if code.startswith("SQLITE_CORRUPT") or code.startswith("XX"):
            return DatabaseDamagedError(name=self.name, detail=detail)
        if code in ("SQLITE_FULL", "53100"):
            return DatabaseFullError(name=self.name, detail=detail)
        if code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")) or code in ("25006", "42501"):
            return (NotReadableError if self.read_only else NotWritableError)(name=self.name, detail=detail)
        if isinstance(error, OperationalError) and (error.connection_invalidated or not code):
            return DatabaseUnreachableError(name=self.name, detail=detail)
        if code.startswith(("SQLITE_IOERR", "53", "57", "58")):
            return DatabaseFailedError(name=self.name, detail=detail)
        return None


def _set_pragmas(connection: sqlite3.Connection, record: object) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    # In WAL mode only FULL brings every commit to the disk before it is acknowledged.
    connection.execute("PRAGMA synchronous = FULL")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def _set_lock_timeout(seconds: float, connection: Any, record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {round(seconds * 1000)}")
    connection.commit()


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
