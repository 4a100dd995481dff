"""Opening: what is created, upgraded or refused, and that a refusal says what to do."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from db_examples import SIM, measured
from sqlalchemy import create_engine, inspect, make_url, text

from pfatune.db import OpenError, Store, StoreError, migrate
from pfatune.db.errors import (
    DatabaseDamagedError,
    DatabaseLockedError,
    DatabaseMissingError,
    DatabaseMovedError,
    DatabaseUnreachableError,
    DirectoryMissingError,
    ForeignDatabaseError,
    NewerDatabaseError,
    NotADatabaseError,
    NotReadableError,
    NotWritableError,
    PathIsDirectoryError,
    UnsupportedTargetError,
    UpgradeNeededError,
)
from pfatune.db.target import Target

POSTGRES = os.environ.get("PFATUNE_TEST_POSTGRES", "")

NEXT_MIGRATION = """
import sqlalchemy as sa
from alembic import op
revision = "0004"
down_revision = "0003"

def upgrade():
    op.create_table("later", sa.Column("id", sa.Integer, primary_key=True))
"""


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switch to a pfatune that has one migration more, and back."""
    ours = migrate.MIGRATIONS
    theirs = tmp_path / "100%" / "migrations"
    shutil.copytree(ours, theirs)
    (theirs / "versions" / "0004_later.py").write_text(NEXT_MIGRATION)

    def switch(to_newer: bool) -> None:
        monkeypatch.setattr(migrate, "MIGRATIONS", theirs if to_newer else ours)

    return switch


def refusal(kind: type[StoreError], target: str | Path, **options: object) -> str:
    """Open, be refused, and return the message: one line that names the database."""
    with pytest.raises(kind) as caught:
        Store.open(target, **options)  # type: ignore[arg-type]  # wrong ones too
    message = str(caught.value)
    assert type(caught.value) is kind
    assert "\n" not in message
    if isinstance(target, Path):
        assert message.startswith(f"{target}: ")
    return message


def test_empty_database_is_created_and_opened_again(target: str) -> None:
    with Store.open(target) as store:
        store.add(store.environment_id(SIM), [measured()])
        store.check()
    with Store.open(target) as store:
        assert len(store.measurements(store.environment_id(SIM))) == 1


def test_sqlite_file_is_marked_and_set_up(path: Path) -> None:
    with Store.open(f"sqlite:///{path}") as store, store.database.read() as connection:

        def pragma(name: str) -> object:
            return connection.execute(text(f"PRAGMA {name}")).scalar_one()

        assert pragma("application_id") == migrate.APPLICATION_ID
        assert pragma("journal_mode") == "wal"
        assert pragma("busy_timeout") == 5000
        assert pragma("foreign_keys") == 1
        assert pragma("synchronous") == 2


def test_empty_file_is_an_empty_database(path: Path) -> None:
    path.touch()
    with Store.open(path) as store:
        assert store.environments() == {}


@pytest.mark.parametrize("name", ["ä b.db", "100%.db", "what?.db", "a#b&c=d.db", ":memory:.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path / name) as store:
        env_id = store.environment_id(SIM)
    with Store.open(tmp_path / name, read_only=True) as store:
        assert store.environments() == {env_id: SIM}
    assert name in [file.name for file in tmp_path.iterdir()]


def test_relative_path_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open("tuned.db") as store:
        assert store.database.name == str(tmp_path / "tuned.db")


def test_older_database_is_upgraded(target: str, newer: Callable[[bool], None]) -> None:
    with Store.open(target) as store:
        env_id = store.environment_id(SIM)
    newer(True)
    with pytest.raises(UpgradeNeededError, match="open it for writing once to upgrade it"):
        Store.open(target, read_only=True)
    with Store.open(target) as store, store.database.read() as connection:
        assert inspect(connection).has_table("later")
        assert store.environments() == {env_id: SIM}
    Store.open(target, read_only=True).close()


def test_newer_database_is_refused(target: str, newer: Callable[[bool], None]) -> None:
    newer(True)
    Store.open(target).close()
    newer(False)
    for read_only in (False, True):
        with pytest.raises(NewerDatabaseError, match=r"a newer pfatune \(revision 0004\): upgrade pfatune"):
            Store.open(target, read_only=read_only)


def test_failed_migration_leaves_an_empty_database(
    target: str, newer: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer(True)
    broken = migrate.MIGRATIONS / "versions" / "0004_later.py"
    broken.write_text(NEXT_MIGRATION + "    raise RuntimeError('power cut')\n")
    with pytest.raises(RuntimeError, match="power cut"):
        Store.open(target)
    newer(False)
    with Store.open(target) as store, store.database.read() as connection:
        assert not inspect(connection).has_table("later")
        assert store.environments() == {}


def test_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE invoice (id INTEGER)")
    other.close()
    before = path.read_bytes()
    assert "belongs to another program (it holds invoice)" in refusal(ForeignDatabaseError, path)
    assert path.read_bytes() == before


def test_file_marked_by_another_program_is_refused(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA application_id = 42")
    other.close()
    assert "application_id is 0x2a" in refusal(ForeignDatabaseError, path)


def test_tables_of_our_names_but_not_ours_are_refused(target: str) -> None:
    with Store.open(target) as store, store.database.write() as connection:
        connection.execute(text(f"DROP TABLE {migrate.VERSION_TABLE}"))
    with pytest.raises(ForeignDatabaseError, match="it holds environment, job, job_key"):
        Store.open(target)


@pytest.mark.parametrize("content", [b"x", b"{}\n" * 50, b"\0" * 4096, b"PK\3\4" * 5000])
@pytest.mark.parametrize("read_only", [False, True])
def test_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes, read_only: bool) -> None:
    path.write_bytes(content)
    assert "not a SQLite database" in refusal(NotADatabaseError, path, read_only=read_only)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_device_is_refused() -> None:
    refusal(NotADatabaseError, Path("/dev/null"))


def test_missing_directory_is_named(tmp_path: Path) -> None:
    message = refusal(DirectoryMissingError, tmp_path / "none" / "tuned.db")
    assert f"create {tmp_path / 'none'} first" in message
    assert not (tmp_path / "none").exists()


def test_directory_is_refused(tmp_path: Path) -> None:
    assert "path of a file inside it" in refusal(PathIsDirectoryError, tmp_path)


def test_missing_database_is_not_created_by_reading(path: Path) -> None:
    refusal(DatabaseMissingError, path, read_only=True)
    assert not path.exists()
    path.touch()
    refusal(DatabaseMissingError, path, read_only=True)
    assert path.read_bytes() == b""


def test_directory_where_no_file_can_be_made_is_refused() -> None:
    assert "give this user write access" in refusal(NotWritableError, Path("/proc/tuned.db"))


def test_impossible_name_is_refused(tmp_path: Path) -> None:
    assert "File name too long" in refusal(NotWritableError, tmp_path / ("x" * 300))


@pytest.mark.slow
def test_permissions_are_respected() -> None:
    """In a child that is not root, for permissions do not bind root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("protected.db", "secret.db"):
            Store.open(folder / file).close()
        (folder / "secret.db").chmod(0o600 if os.getuid() == 0 else 0o000)
        if os.getuid() != 0:
            (folder / "protected.db").chmod(0o444)
        child = subprocess.run(
            [sys.executable, "-c", OPEN_AS_NOBODY, name], capture_output=True, text=True, timeout=60, check=False
        )
    assert child.stderr == ""
    assert child.stdout.split() == ["NotWritableError", "NotReadableError", *["NotWritableError"] * root_only()]


def root_only() -> int:
    return int(os.getuid() == 0)


OPEN_AS_NOBODY = """
import os, sys
from pathlib import Path
from pfatune.db import Store, StoreError
folder = Path(sys.argv[1])
tries = [("protected.db", False), ("secret.db", True)]
if os.getuid() == 0:
    os.setuid(65534)
    tries.append(("new.db", False))
for name, read_only in tries:
    try:
        Store.open(folder / name, read_only=read_only)
    except StoreError as error:
        print(type(error).__name__)
"""


def test_locked_database_is_refused_after_the_busy_timeout(path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    message = refusal(DatabaseLockedError, path, busy_timeout=0.2)
    assert "locked for longer than 0.2 s: try again" in message
    holder.close()


def test_switch_to_wal_waits_for_readers(path: Path) -> None:
    Store.open(path).close()
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    reader.execute("PRAGMA journal_mode = DELETE")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM environment").fetchall()
    refusal(DatabaseLockedError, path, busy_timeout=0.1)
    release = threading.Timer(0.3, reader.close)
    release.start()
    with Store.open(path) as store:
        assert store.environments() == {}
    release.join()
    with sqlite3.connect(path) as again:
        assert again.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again.close()


def test_writer_waits_no_longer_than_the_busy_timeout(target: str) -> None:
    with Store.open(target) as holder, Store.open(target, busy_timeout=0.2) as store:
        env_id = store.environment_id(SIM)
        with holder.database.write() as connection:
            if not holder.database.is_sqlite:
                connection.execute(text("LOCK TABLE measurement"))
            with pytest.raises(DatabaseLockedError):
                store.add(env_id, [measured()])
            if holder.database.is_sqlite:
                assert store.measurements(env_id) == []
        assert len(store.add(env_id, [measured()])) == 1


def test_damage_is_found(path: Path) -> None:
    with Store.open(path) as store:
        store.check()
        env_id = store.environment_id(SIM)
        store.add(env_id, [measured()] * 500)
    with path.open("r+b") as file:
        file.seek(200 * 1024)
        file.write(os.urandom(64 * 1024))
    with Store.open(path) as store, pytest.raises(DatabaseDamagedError, match="restore it from a backup"):
        store.check()


@pytest.mark.parametrize(
    ("target", "detail"),
    [
        ("mysql://user:secret@host/db", "mysql is not supported"),
        ("postgresql+asyncpg://user:secret@host/db", "not supported"),
        ("postgresql://user:secret@host:port/db", "this URL cannot be read"),
        ("sqlite://", "lost at the end"),
        (":memory:", "cannot be read"),
        ("sqlite:///:memory:", "lost at the end"),
        ("sqlite:///x.db?mode=ro", "options"),
    ],
)
def test_unsupported_target_is_refused_without_its_password(target: str, detail: str) -> None:
    message = refusal(UnsupportedTargetError, target)
    assert detail in message
    assert "give a file path" in message
    assert "secret" not in message


def test_server_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    message = refusal(DatabaseUnreachableError, "postgresql://user:secret@127.0.0.1:9/db")
    assert message.startswith("postgresql://user:***@127.0.0.1:9/db: the server cannot be reached")
    assert "secret" not in message


def test_password_given_as_a_parameter_is_not_shown_either() -> None:
    pytest.importorskip("psycopg")
    target = "postgresql://user@127.0.0.1:9/db?password=secret&sslpassword=secret&connect_timeout=1"
    message = refusal(DatabaseUnreachableError, target)
    assert message.startswith("postgresql://user@127.0.0.1:9/db?connect_timeout=1: the server cannot be reached")
    assert "secret" not in message
    assert Target.parse(target).url.query["password"] == "secret"


@pytest.mark.skipif(not POSTGRES, reason="needs PFATUNE_TEST_POSTGRES")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_postgresql_database_of_any_encoding(encoding: str) -> None:
    url = make_url(POSTGRES).set(drivername="postgresql+psycopg")
    name = f"pfatune_test_{uuid.uuid4().hex}"
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {options}"))
    try:
        with Store.open(url.set(database=name).render_as_string(hide_password=False)) as store:
            env_id = store.environment_id(SIM)
            assert store.environments() == {env_id: SIM}
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()


def test_every_refusal_to_open_is_one_kind_of_error() -> None:
    assert issubclass(NotReadableError, OpenError)
    assert issubclass(DatabaseLockedError, StoreError)


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_nothing_is_kept_in_a_file_that_is_gone(what: str, path: Path) -> None:
    with Store.open(path) as store:
        env_id = store.environment_id(SIM)
        away = path.with_name("away.db")
        path.rename(away)
        if what == "removed":
            away.unlink()
        elif what == "replaced":
            path.write_bytes(b"something else")
        for use in (store.ping, lambda: store.add(env_id, [measured()]), lambda: store.measurements(env_id)):
            with pytest.raises(DatabaseMovedError, match="put that very file back, or start again"):
                use()
        assert path.exists() is (what == "replaced")  # and nothing is made in its place
        if what == "moved":
            away.rename(path)
            store.add(env_id, [measured()])
            store.check()
    if what == "moved":
        with Store.open(path) as store:
            assert len(store.measurements(env_id)) == 1
