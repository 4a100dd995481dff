"""Bringing a database to the tables of this pfatune, or saying why it cannot be."""

from __future__ import annotations

import enum
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select, text

from .engine import Database
from .errors import DatabaseMissingError, ForeignDatabaseError, NewerDatabaseError, UpgradeNeededError
from .tables import metadata

MIGRATIONS = Path(__file__).parent / "migrations"
#: A name of our own: several programs may keep their tables in one PostgreSQL database.
VERSION_TABLE = "pfatune_revision"
#: "pfat": marks a SQLite file as ours, also for file(1).
APPLICATION_ID = 0x70666174

# Alembic keeps the migration that runs in module globals.
_one_at_a_time = threading.Lock()


class State(enum.Enum):
    empty = enum.auto()
    older = enum.auto()
    current = enum.auto()


def migrate(database: Database) -> None:
    """Create the tables in an empty database, or upgrade those of an older pfatune.

    Processes that do this at the same time wait for each other. A database that is refused is
    left as it was.

    Raises:
        ForeignDatabaseError: the database holds another program's tables.
        NewerDatabaseError: a newer pfatune wrote it.
        DatabaseMissingError: it is empty, and was opened read-only.
        UpgradeNeededError: it is older, and was opened read-only.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    with database.read() as connection:
        state = find_state(database, connection, scripts)
    if state is State.current:
        return
    if database.read_only:
        raise (DatabaseMissingError if state is State.empty else UpgradeNeededError)(name=database.name)
    with _one_at_a_time, database.write() as connection:
        if not database.is_sqlite:
            connection.execute(select(func.pg_advisory_xact_lock(APPLICATION_ID)))
        # Another process may have been faster.
        if find_state(database, connection, scripts) is not State.current:
            config.attributes.update(connection=connection, metadata=metadata, version_table=VERSION_TABLE)
            command.upgrade(config, "head")
            if database.is_sqlite:
                connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))


def find_state(database: Database, connection: Connection, scripts: ScriptDirectory) -> State:
    """How the database stands to the migrations.

    Raises:
        ForeignDatabaseError, NewerDatabaseError: as ``migrate``.
    """
    if database.is_sqlite:
        mark = connection.execute(text("PRAGMA application_id")).scalar_one()
        if mark not in (0, APPLICATION_ID):
            raise ForeignDatabaseError(name=database.name, detail=f"its application_id is {mark:#x}")
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    revisions = context.get_current_heads()
    if not revisions:
        _refuse_tables_of_others(database, connection)
        return State.empty
    known = {script.revision for script in scripts.walk_revisions()}
    for revision in revisions:
        if revision not in known:
            raise NewerDatabaseError(name=database.name, revision=revision)
    return State.current if set(revisions) == set(scripts.get_heads()) else State.older


def _refuse_tables_of_others(database: Database, connection: Connection) -> None:
    inspector = inspect(connection)
    names = set(inspector.get_table_names()) | set(inspector.get_view_names())
    if not database.is_sqlite:
        # A PostgreSQL schema may be shared, so long as no name is wanted twice.
        names &= set(metadata.tables)
    if names:
        raise ForeignDatabaseError(name=database.name, detail=f"it holds {', '.join(sorted(names)[:3])}")
