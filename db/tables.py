"""The tables. They are made by the migrations; a test holds the two together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    literal,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from .job_records import JobState
from .records import Kind

#: SQLite numbers rows by itself only where the type is spelled INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC; SQLite keeps it without its offset."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class UtcNow(FunctionElement[datetime]):
    """The database's clock in UTC: hosts that share a database need not agree on the time."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(UtcNow, "sqlite")
def _utc_now_sqlite(element: UtcNow, compiler: SQLCompiler, **kw: Any) -> str:
    # Six digits of a second, as SQLAlchemy writes them, so that times also compare as text.
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(UtcNow, "postgresql")
def _utc_now_postgresql(element: UtcNow, compiler: SQLCompiler, **kw: Any) -> str:
    return "clock_timestamp()"


class UtcIn(FunctionElement[datetime]):
    """The database's clock in UTC, some seconds on."""

    type = UtcDateTime()
    inherit_cache = True

    def __init__(self, seconds: float) -> None:
        super().__init__(literal(float(seconds), Double))


@compiles(UtcIn, "sqlite")
def _utc_in_sqlite(element: UtcIn, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('%+.3f seconds', {seconds}))"


@compiles(UtcIn, "postgresql")
def _utc_in_postgresql(element: UtcIn, compiler: SQLCompiler, **kw: Any) -> str:
    return f"clock_timestamp() + make_interval(secs => {compiler.process(element.clauses, **kw)})"


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
    }
)

FAMILY_COLUMNS = ("s1", "nq", "nkv", "qd", "block_size")
#: Families first: a search among the neighbours of a shape is then one range of an index.
WORKLOAD_COLUMNS = (*FAMILY_COLUMNS, "s2", "b", "seq_digest")


def _id() -> Column[int]:
    return Column("id", RowId, primary_key=True)


def _environment_id() -> Column[int]:
    return Column("environment_id", RowId, ForeignKey("environment.id"), nullable=False)


def _created_at() -> Column[datetime]:
    return Column("created_at", UtcDateTime, nullable=False, server_default=UtcNow())


def _is_one_of(column: str, values: Iterable[str]) -> str:
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def _whole_columns(*names: str) -> list[Column[int]]:
    return [Column(name, Integer, nullable=False) for name in names]


environment = Table(
    "environment",
    metadata,
    _id(),
    Column("digest", String(16), nullable=False, unique=True),
    Column("backend", Text, nullable=False),
    Column("soc", Text, nullable=False),
    Column("pypto", Text, nullable=False),
    Column("torch", Text, nullable=False),
    Column("kernel_digest", Text, nullable=False),
    Column("model_digest", Text, nullable=False),
    Column("torch_npu", Text, nullable=False),
    Column("cann", Text, nullable=False),
    Column("driver", Text, nullable=False),
    _created_at(),
)

#: Append-only: triggers refuse to change or delete a row.
measurement = Table(
    "measurement",
    metadata,
    _id(),
    _environment_id(),
    *_whole_columns("b", "s2", *FAMILY_COLUMNS),
    Column("actual_seq", JSON(none_as_null=True)),
    Column("seq_digest", String(16), nullable=False),  # '' when every request is full
    Column("config", JSON, nullable=False),
    Column("config_digest", String(16), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("cost", Double),
    Column("samples", JSON, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("compile_seconds", Double, nullable=False),
    Column("run_seconds", Double, nullable=False),
    Column("peak_bytes", BigInteger, nullable=False),
    Column("message", Text, nullable=False),
    Column("study", Text, nullable=False),
    _created_at(),
    CheckConstraint(_is_one_of("kind", Kind), name="kind"),
    CheckConstraint("(kind = 'ok') = (cost IS NOT NULL)", name="cost"),
    Index("ix_measurement_newest", "environment_id", "id"),
    Index("ix_measurement_workload", "environment_id", *WORKLOAD_COLUMNS),
    Index("ix_measurement_config", "environment_id", *FAMILY_COLUMNS, "config_digest"),
    Index("ix_measurement_kind", "environment_id", "kind", "id"),
)

#: Append-only, as measurement is.
verification = Table(
    "verification",
    metadata,
    _id(),
    _environment_id(),
    *_whole_columns(*FAMILY_COLUMNS),
    Column("config", JSON, nullable=False),
    Column("config_digest", String(16), nullable=False),
    Column("passed", Boolean, nullable=False),
    Column("max_abs_diff", Double),
    Column("shapes", JSON, nullable=False),
    Column("message", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    _created_at(),
    Index("ix_verification_config", "environment_id", *FAMILY_COLUMNS, "config_digest"),
)

#: A picture of a measurement's run, for as few as had one taken. Append-only.
trace = Table(
    "trace",
    metadata,
    Column("measurement_id", RowId, ForeignKey("measurement.id"), primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),  # JSON, in gzip
    _created_at(),
)

_CURRENT = text("superseded_at IS NULL")

#: Append-only but for superseded_at, which is set when a better row takes the place of this one.
tuned_config = Table(
    "tuned_config",
    metadata,
    _id(),
    _environment_id(),
    *_whole_columns("b", "s2", *FAMILY_COLUMNS),
    Column("seq_digest", String(16), nullable=False),
    Column("measurement_id", RowId, ForeignKey("measurement.id"), nullable=False),
    Column("default_id", RowId, ForeignKey("measurement.id"), nullable=False),
    Column("verification_id", RowId, ForeignKey("verification.id"), nullable=False),
    _created_at(),
    Column("superseded_at", UtcDateTime),
    # The environment comes last, so that one index also answers for any environment.
    Index(
        "uq_tuned_config_current",
        *WORKLOAD_COLUMNS,
        "environment_id",
        unique=True,
        sqlite_where=_CURRENT,
        postgresql_where=_CURRENT,
    ),
    Index("ix_tuned_config_history", *WORKLOAD_COLUMNS, "id"),
    Index("ix_tuned_config_served", "environment_id", "id", sqlite_where=_CURRENT, postgresql_where=_CURRENT),
)

#: Append-only but for superseded_at, as tuned_config is. At least one of regret_limit and max_configs is given.
portfolio = Table(
    "portfolio",
    metadata,
    _id(),
    _environment_id(),
    *_whole_columns(*FAMILY_COLUMNS),
    Column("regret_limit", Double),
    Column("max_configs", Integer),
    Column("worst_regret", Double),  # unknown where a shape has no member that was measured there
    Column("held_out_median", Double),
    Column("held_out_worst", Double),
    Column("proven", Boolean, nullable=False),
    _created_at(),
    Column("superseded_at", UtcDateTime),
    CheckConstraint("regret_limit IS NOT NULL OR max_configs IS NOT NULL", name="asked_for"),
    Index(
        "uq_portfolio_current",
        *FAMILY_COLUMNS,
        "environment_id",
        unique=True,
        sqlite_where=_CURRENT,
        postgresql_where=_CURRENT,
    ),
    Index("ix_portfolio_served", "environment_id", "id", sqlite_where=_CURRENT, postgresql_where=_CURRENT),
)

#: The anchors of a portfolio: a measurement gives shape and configuration. Append-only.
portfolio_member = Table(
    "portfolio_member",
    metadata,
    Column("portfolio_id", RowId, ForeignKey("portfolio.id"), primary_key=True, autoincrement=False),
    Column("measurement_id", RowId, ForeignKey("measurement.id"), primary_key=True, autoincrement=False),
    Column("verification_id", RowId, ForeignKey("verification.id"), nullable=False),
)

_UNANSWERED = text("state IN ('queued', 'running') AND NOT cancel_requested")

#: No row is deleted, and none in a final state is changed.
job = Table(
    "job",
    metadata,
    _id(),
    Column("request", JSON, nullable=False),  # but for its priority, which may be raised
    Column("digest", String(16), nullable=False),
    Column("backend", Text, nullable=False),
    Column("soc", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String(10), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("progress", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    _created_at(),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("lease_expires_at", UtcDateTime),
    Column("not_before", UtcDateTime),
    Column("updated_at", UtcDateTime, nullable=False, server_default=UtcNow()),
    CheckConstraint(_is_one_of("state", JobState), name="state"),
    CheckConstraint("(state = 'running') = (lease_expires_at IS NOT NULL)", name="lease"),
    CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="finished"),
    Index("uq_job_unanswered", "digest", unique=True, sqlite_where=_UNANSWERED, postgresql_where=_UNANSWERED),
    Index("ix_job_state", "state", "id"),
)

#: Which job an idempotency key was answered with.
job_key = Table(
    "job_key",
    metadata,
    Column("key", Text, primary_key=True),
    Column("body_digest", Text, nullable=False),
    Column("job_id", RowId, ForeignKey("job.id"), nullable=False),
    _created_at(),
)

_IN_USE = text("revoked_at IS NULL")

#: Append-only but for revoked_at. The text of a token is nowhere, only its digest.
token = Table(
    "token",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("public", String(8), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
    _created_at(),
    Column("revoked_at", UtcDateTime),
    Index("uq_token_name", "name", unique=True, sqlite_where=_IN_USE, postgresql_where=_IN_USE),
)
