"""What the service needs: jobs with their idempotency keys, tokens, traces."""

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)
STATES = ("queued", "running", "done", "failed", "cancelled")
UTC_NOW = {
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))",
    "postgresql": "clock_timestamp()",
}


def upgrade() -> None:
    op.create_index("ix_measurement_kind", "measurement", ["environment_id", "kind", "id"])
    create_partial_index("ix_tuned_config_served", "tuned_config", ["environment_id", "id"], "superseded_at IS NULL")
    op.create_table(
        "trace",
        sa.Column("measurement_id", ROW_ID, nullable=False, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        time_column("created_at"),
        sa.PrimaryKeyConstraint("measurement_id", name="pk_trace"),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name="fk_trace_measurement_id"),
    )
    create_job_tables()
    op.create_table(
        "token",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("public", sa.String(8), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        time_column("created_at"),
        sa.Column("revoked_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("public", name="uq_token_public"),
    )
    create_partial_index("uq_token_name", "token", ["name"], "revoked_at IS NULL", unique=True)
    create_triggers()


def create_job_tables() -> None:
    op.create_table(
        "job",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("digest", sa.String(16), nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("soc", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("state", sa.String(10), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        time_column("created_at"),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("lease_expires_at", TIME),
        sa.Column("not_before", TIME),
        time_column("updated_at"),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.CheckConstraint(f"state IN ({', '.join(repr(state) for state in STATES)})", name="ck_job_state"),
        sa.CheckConstraint("(state = 'running') = (lease_expires_at IS NOT NULL)", name="ck_job_lease"),
        sa.CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="ck_job_finished"),
    )
    create_partial_index(
        "uq_job_unanswered", "job", ["digest"], "state IN ('queued', 'running') AND NOT cancel_requested", unique=True
    )
    op.create_index("ix_job_state", "job", ["state", "id"])
    op.create_table(
        "job_key",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("body_digest", sa.Text, nullable=False),
        sa.Column("job_id", ROW_ID, nullable=False),
        time_column("created_at"),
        sa.PrimaryKeyConstraint("key", name="pk_job_key"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_job_key_job_id"),
    )


def create_triggers() -> None:
    append_only = "{table} is append-only"
    refuse("DELETE", "trace", append_only)
    refuse("UPDATE", "trace", append_only)
    refuse("DELETE", "token", append_only)
    refuse("UPDATE OF id, name, public, digest, created_at", "token", append_only)
    refuse("DELETE", "job", "a {table} is never deleted")
    refuse("UPDATE", "job", "a finished {table} is never changed", "OLD.state IN ('done', 'failed', 'cancelled')")


def refuse(event: str, table: str, message: str, when: str = "") -> None:
    """Have the database refuse an event of a table: always, or for the rows that meet the condition."""
    name = f"{table}_no_{event.split()[0].lower()}"
    message = message.format(table=table)
    condition = f"WHEN ({when})" if when else ""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE FUNCTION pfatune_{name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
        action = f"FOR EACH ROW {condition} EXECUTE FUNCTION pfatune_{name}()"
    else:
        action = f"{condition} BEGIN SELECT RAISE(ABORT, '{message}'); END"
    op.execute(f"CREATE TRIGGER tr_{name} BEFORE {event} ON {table} {action}")


def create_partial_index(name: str, table: str, columns: list[str], condition: str, *, unique: bool = False) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, unique=unique, sqlite_where=where, postgresql_where=where)


def time_column(name: str) -> sa.Column[datetime]:
    now = sa.text(UTC_NOW[op.get_bind().dialect.name])
    return sa.Column(name, TIME, server_default=now, nullable=False)
