"""Where a database is: a file path or a URL, checked before anything is opened or made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from .errors import (
    DatabaseMissingError,
    DirectoryMissingError,
    NotADatabaseError,
    NotReadableError,
    NotWritableError,
    PathIsDirectoryError,
    UnsupportedTargetError,
)

SMALLEST_DATABASE = 512  # bytes; the smallest page of a SQLite file


@dataclass(frozen=True, slots=True)
class Target:
    """``name`` is what messages call the database: its path, or its URL without the password."""

    name: str
    url: URL
    path: Path | None = None

    @classmethod
    def parse(cls, target: str | Path) -> Target:
        """The target that a path or URL names.

        Raises:
            UnsupportedTargetError: the URL cannot be read, or is of another database than SQLite and PostgreSQL.
        """
        if isinstance(target, Path) or ("://" not in target and target != ":memory:"):
            return cls._of_path(Path(target))
        try:
            url = make_url(target)
        except (ArgumentError, ValueError):
            # The text may hold a password, so only its scheme is shown.
            raise UnsupportedTargetError(target=target.partition(":")[0], detail="this URL cannot be read") from None
        # libpq takes passwords as parameters too.
        name = url.difference_update_query(("password", "sslpassword")).render_as_string(hide_password=True)
        if url.drivername in ("sqlite", "sqlite+pysqlite"):
            if not url.database or url.database == ":memory:":
                raise UnsupportedTargetError(target=name, detail="a database in memory is lost at the end")
            if url.query or url.database.startswith("file:"):
                raise UnsupportedTargetError(target=name, detail="options in a SQLite URL are not supported")
            return cls._of_path(Path(url.database))
        if url.drivername in ("postgresql", "postgresql+psycopg"):
            return cls(name, url.set(drivername="postgresql+psycopg"))
        raise UnsupportedTargetError(target=name, detail=f"{url.drivername} is not supported")

    @classmethod
    def _of_path(cls, path: Path) -> Target:
        path = path.absolute()
        return cls(str(path), URL.create("sqlite", database=str(path)), path)

    @property
    def read_only_url(self) -> URL:
        """The URL that never creates or changes a SQLite file; of PostgreSQL, the URL itself."""
        if self.path is None:
            return self.url
        return URL.create("sqlite", database=f"file:{quote(str(self.path))}", query={"mode": "ro", "uri": "true"})

    def check(self, *, read_only: bool) -> None:
        """Refuse a path of which SQLite would only say "unable to open database file"."""
        if self.path is None:
            return
        try:
            self._check_path(self.path, read_only)
        except OSError as error:
            refusal = NotReadableError if read_only else NotWritableError
            raise refusal(name=self.name, detail=error.strerror) from error

    def _check_path(self, path: Path, read_only: bool) -> None:
        if path.is_dir():
            raise PathIsDirectoryError(name=self.name)
        if not path.parent.is_dir():
            raise DirectoryMissingError(name=self.name, parent=path.parent)
        exists = path.exists()
        if exists and not path.is_file():
            raise NotADatabaseError(name=self.name, detail="not a regular file")
        if exists and 0 < path.stat().st_size < SMALLEST_DATABASE:
            # SQLite takes a file of one byte for an empty one, and would overwrite it.
            raise NotADatabaseError(name=self.name, detail="too short")
        if read_only:
            if not exists:
                raise DatabaseMissingError(name=self.name)
            if not os.access(path, os.R_OK):
                raise NotReadableError(name=self.name, detail="permission denied")
        else:
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise NotWritableError(name=self.name, detail="its directory is write-protected")
            if exists and not os.access(path, os.R_OK | os.W_OK):
                raise NotWritableError(name=self.name, detail="the file is protected")
