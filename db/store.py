"""The store: what was measured, what was verified, and what is served."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import IntegrityError

from ..kernel.ladder import Entry, Member
from ..kernel.shapes import PfaFamily, PfaShape, Workload
from . import listing, promotion, served
from .engine import Database
from .errors import DatabaseDamagedError, UnknownEnvironmentError
from .job_records import Lease
from .jobs import JobQueue
from .leases import require_lease
from .migrate import migrate
from .portfolios import Portfolios
from .records import Environment, Kind, Measurement, TunedConfig, Verification
from .rows import (
    environment_of,
    environment_row,
    is_family,
    is_workload,
    measurement_of,
    measurement_row,
    verification_of,
    verification_row,
)
from .tables import environment, measurement, verification
from .target import Target
from .tokens import Tokens
from .traces import Traces


class Store:
    """Measurements, verifications and tuned configurations in one database.

    Threads may share a store. Every method is one transaction; what a method has returned from
    writing survives a crash of the process and of the machine.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.jobs = JobQueue(database)
        self.tokens = Tokens(database)
        self.traces = Traces(database)
        self.portfolios = Portfolios(database)

    @classmethod
    def open(cls, target: str | Path, *, read_only: bool = False, busy_timeout: float = 5.0) -> Self:
        """The store in a SQLite file or a database named by URL; an empty one is created, an older one upgraded.

        ``busy_timeout`` is how long to wait for another process's lock, in seconds.

        Raises:
            OpenError: the database is missing, foreign, newer, not readable, not writable or none at
                all; the subclass tells which, the message what to do.
            DatabaseLockedError, DatabaseUnreachableError: it cannot be had now.
        """
        database = Database(Target.parse(target), read_only=read_only, busy_timeout=busy_timeout)
        try:
            migrate(database)
            if database.is_sqlite and not read_only:
                database.use_wal()
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.database.name}>"

    def under(self, lease: Lease) -> Store:
        """The same store for the holder of a lease: once the job is another's, or has ended, it takes nothing more.

        Reading is not affected. A write that is refused raises LeaseLostError.
        """
        guarded = Store(self.database.guarded(partial(require_lease, lease=lease)))
        # These check the lease they are given.
        guarded.jobs = self.jobs
        return guarded

    def ping(self) -> None:
        """Read one row.

        Raises:
            StoreError: the database cannot be read now.
        """
        with self.database.read() as connection:
            connection.execute(select(environment.c.id).limit(1)).first()

    def check(self) -> None:
        """Have SQLite look through the whole file; PostgreSQL has its own tools for this.

        Raises:
            DatabaseDamagedError: with what was found first.
        """
        if not self.database.is_sqlite:
            return
        with self.database.read() as connection:
            found = connection.execute(text("PRAGMA integrity_check(1)")).scalar_one()
            if found == "ok" and connection.execute(text("PRAGMA foreign_key_check")).first() is not None:
                found = "a row refers to one that is not there"
        if found != "ok":
            raise DatabaseDamagedError(name=self.database.name, detail=" ".join(found.split()))

    def environment_id(self, env: Environment) -> int:
        """The environment's id, the same for every process; it is added when new."""
        query = select(environment.c.id).where(environment.c.digest == env.digest)
        with self.database.read() as connection:
            found: int | None = connection.execute(query).scalar_one_or_none()
        if found is not None:
            return found
        try:
            with self.database.write() as connection:
                statement = insert(environment).values(environment_row(env)).returning(environment.c.id)
                found = connection.execute(statement).scalar_one()
        except IntegrityError:  # another process was faster
            with self.database.read() as connection:
                found = connection.execute(query).scalar_one()
        return found

    def environments(self) -> dict[int, Environment]:
        """Every environment by id, oldest first."""
        with self.database.read() as connection:
            rows = connection.execute(select(environment).order_by(environment.c.id)).mappings()
            return {row["id"]: environment_of(row) for row in rows}

    def add(self, env_id: int, measurements: Sequence[Measurement]) -> list[int]:
        """Add measurements, all or none, and return their ids in the same order.

        Raises:
            UnknownEnvironmentError: no environment has that id.
        """
        if not measurements:
            return []
        rows = [measurement_row(env_id, one) for one in measurements]
        with self.database.write() as connection:
            _require_environment(connection, env_id)
            statement = insert(measurement).returning(measurement.c.id, sort_by_parameter_order=True)
            return list(connection.execute(statement, rows).scalars())

    def measurements(
        self,
        env_id: int,
        *,
        workload: Workload | None = None,
        family: PfaFamily | None = None,
        config_digest: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Measurement]:
        """The environment's measurements that meet every condition given, oldest first unless told otherwise."""
        query = select(measurement).where(measurement.c.environment_id == env_id)
        if workload is not None:
            query = query.where(is_workload(measurement, workload))
        if family is not None:
            query = query.where(is_family(measurement, family))
        if config_digest is not None:
            query = query.where(measurement.c.config_digest == config_digest)
        query = query.order_by(measurement.c.id.desc() if newest_first else measurement.c.id).limit(limit)
        with self.database.read() as connection:
            return [measurement_of(row) for row in connection.execute(query).mappings()]

    def measurement(self, measurement_id: int) -> tuple[int, Measurement] | None:
        """The measurement of that id, after the id of its environment; None when there is none."""
        with self.database.read() as connection:
            return listing.one(connection, measurement_id)

    def measurement_page(
        self,
        *,
        env_id: int | None = None,
        workload: Workload | None = None,
        family: PfaFamily | None = None,
        kind: Kind | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[tuple[int, Measurement]]:
        """The measurements that meet every condition given, each after the id of its environment, newest first.

        ``before`` is the id of the last one of the page before.
        """
        with self.database.read() as connection:
            return listing.page(
                connection,
                env_id=env_id,
                workload=workload,
                family=family,
                kind=kind,
                before=before,
                limit=limit,
            )

    def measurement_counts(self) -> dict[tuple[str, str, Kind], int]:
        """How many measurements there are of each backend, SoC and kind.

        Reads an index from end to end: a caller who asks often should keep the answer for a while.
        """
        with self.database.read() as connection:
            return listing.counts(connection)

    def add_verification(self, env_id: int, verified: Verification) -> int:
        """Add a verification, passed or not, and return its id.

        Raises:
            UnknownEnvironmentError: no environment has that id.
        """
        statement = insert(verification).values(verification_row(env_id, verified)).returning(verification.c.id)
        with self.database.write() as connection:
            _require_environment(connection, env_id)
            added: int = connection.execute(statement).scalar_one()
        return added

    def verification(self, env_id: int, family: PfaFamily, config_digest: str) -> Verification | None:
        """The newest verification of a configuration for a family, passed or not; None when there is none."""
        query = (
            select(verification)
            .where(
                verification.c.environment_id == env_id,
                is_family(verification, family),
                verification.c.config_digest == config_digest,
            )
            .order_by(verification.c.id.desc())
            .limit(1)
        )
        with self.database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else verification_of(row)

    def promote(self, env_id: int, measurement_id: int, default_id: int, verification_id: int) -> TunedConfig:
        """Make a measurement the one to serve for its workload; the row it replaces is kept as history.

        The default may be promoted itself. To promote what is already current changes nothing and
        returns the current row.

        Raises:
            UnknownEnvironmentError, UnknownRowError: an id is not in the store.
            PromotionError: the rows are of different environments, workloads or configurations, one
                was not measured or verified well, or the default is faster.
        """
        with self.database.write() as connection:
            return promotion.promote(connection, env_id, measurement_id, default_id, verification_id)

    def tuned(self, env_id: int | None, workload: Workload) -> list[TunedConfig]:
        """What is served for a workload, newest first: at most one row for each environment.

        ``env_id`` None means any environment.
        """
        with self.database.read() as connection:
            return promotion.find(connection, env_id, workload, current=True)

    def served_environments(self) -> list[tuple[int, Environment]]:
        """The environments in which something is served, after their ids, newest first."""
        with self.database.read() as connection:
            return served.environments(connection)

    def served(self, env_id: int, after: int = 0) -> tuple[int, list[tuple[PfaShape, Entry]]]:
        """What is served in an environment, oldest first, and the id of the newest row.

        With that id as ``after`` the next call gives only what was promoted since, which takes
        the place of what it gave for the same shape before.
        """
        with self.database.read() as connection:
            return served.entries(connection, env_id, after)

    def served_portfolios(self, env_id: int, after: int = 0) -> tuple[int, list[tuple[PfaFamily, tuple[Member, ...]]]]:
        """The portfolios of an environment, oldest first, and the id of the newest; ``after`` as in ``served``."""
        with self.database.read() as connection:
            return served.portfolios(connection, env_id, after)

    def tuned_history(self, env_id: int | None, workload: Workload) -> list[TunedConfig]:
        """What is and was served for a workload, newest first."""
        with self.database.read() as connection:
            return promotion.find(connection, env_id, workload, current=False)


def _require_environment(connection: Connection, env_id: int) -> None:
    if connection.execute(select(environment.c.id).where(environment.c.id == env_id)).first() is None:
        raise UnknownEnvironmentError(env_id=env_id)
