"""The first tables: environments, measurements, verifications, tuned configurations.

A migration that rebuilds or rewrites an append-only table must drop the triggers before,
and make them again after.
"""

from datetime import datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
FAMILY = ("s1", "nq", "nkv", "qd", "block_size")
WORKLOAD = (*FAMILY, "s2", "b", "seq_digest")
KINDS = (
    "ok",
    "illegal",
    "rejected",
    "does_not_fit",
    "crashed",
    "timeout",
    "out_of_memory",
    "wrong_result",
    "environment_fault",
)
UTC_NOW = {
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))",
    "postgresql": "clock_timestamp()",
}
TUNED_COLUMNS = (
    "id, environment_id, b, s2, s1, nq, nkv, qd, block_size, seq_digest, "
    "measurement_id, default_id, verification_id, created_at"
)
#: What no one may do to a row, by table.
APPEND_ONLY = {
    "measurement": ("DELETE", "UPDATE"),
    "verification": ("DELETE", "UPDATE"),
    "tuned_config": ("DELETE", f"UPDATE OF {TUNED_COLUMNS}"),
}


def upgrade() -> None:
    op.create_table(
        "environment",
        id_column(),
        sa.Column("digest", sa.String(16), nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in (
                "backend",
                "soc",
                "pypto",
                "torch",
                "kernel_digest",
                "model_digest",
                "torch_npu",
                "cann",
                "driver",
            )
        ),
        created_at_column(),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
        sa.UniqueConstraint("digest", name="uq_environment_digest"),
    )
    op.create_table(
        "measurement",
        id_column(),
        sa.Column("environment_id", ROW_ID, nullable=False),
        *whole_columns("b", "s2", *FAMILY),
        sa.Column("actual_seq", sa.JSON),
        sa.Column("seq_digest", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("config_digest", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("cost", sa.Double),
        sa.Column("samples", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("compile_seconds", sa.Double, nullable=False),
        sa.Column("run_seconds", sa.Double, nullable=False),
        sa.Column("peak_bytes", sa.BigInteger, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("study", sa.Text, nullable=False),
        created_at_column(),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
        foreign_key("measurement", "environment_id", "environment"),
        sa.CheckConstraint(f"kind IN ({', '.join(repr(kind) for kind in KINDS)})", name="ck_measurement_kind"),
        sa.CheckConstraint("(kind = 'ok') = (cost IS NOT NULL)", name="ck_measurement_cost"),
    )
    op.create_table(
        "verification",
        id_column(),
        sa.Column("environment_id", ROW_ID, nullable=False),
        *whole_columns(*FAMILY),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("config_digest", sa.String(16), nullable=False),
        sa.Column("passed", sa.Boolean, nullable=False),
        sa.Column("max_abs_diff", sa.Double),
        sa.Column("shapes", sa.JSON, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        created_at_column(),
        sa.PrimaryKeyConstraint("id", name="pk_verification"),
        foreign_key("verification", "environment_id", "environment"),
    )
    op.create_table(
        "tuned_config",
        id_column(),
        sa.Column("environment_id", ROW_ID, nullable=False),
        *whole_columns("b", "s2", *FAMILY),
        sa.Column("seq_digest", sa.String(16), nullable=False),
        sa.Column("measurement_id", ROW_ID, nullable=False),
        sa.Column("default_id", ROW_ID, nullable=False),
        sa.Column("verification_id", ROW_ID, nullable=False),
        created_at_column(),
        sa.Column("superseded_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_tuned_config"),
        foreign_key("tuned_config", "environment_id", "environment"),
        foreign_key("tuned_config", "measurement_id", "measurement"),
        foreign_key("tuned_config", "default_id", "measurement"),
        foreign_key("tuned_config", "verification_id", "verification"),
    )
    create_indexes()
    create_triggers()


def create_indexes() -> None:
    op.create_index("ix_measurement_newest", "measurement", ["environment_id", "id"])
    op.create_index("ix_measurement_workload", "measurement", ["environment_id", *WORKLOAD])
    op.create_index("ix_measurement_config", "measurement", ["environment_id", *FAMILY, "config_digest"])
    op.create_index("ix_verification_config", "verification", ["environment_id", *FAMILY, "config_digest"])
    current = sa.text("superseded_at IS NULL")
    op.create_index(
        "uq_tuned_config_current",
        "tuned_config",
        [*WORKLOAD, "environment_id"],
        unique=True,
        sqlite_where=current,
        postgresql_where=current,
    )
    op.create_index("ix_tuned_config_history", "tuned_config", [*WORKLOAD, "id"])


def create_triggers() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:
        op.execute(
            "CREATE FUNCTION pfatune_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; "
            "END $$"
        )
    for table, events in APPEND_ONLY.items():
        for event in events:
            name = f"tr_{table}_no_{event.split()[0].lower()}"
            if postgresql:
                action = "FOR EACH ROW EXECUTE FUNCTION pfatune_append_only()"
            else:
                action = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            op.execute(f"CREATE TRIGGER {name} BEFORE {event} ON {table} {action}")


def id_column() -> sa.Column[int]:
    return sa.Column("id", ROW_ID, nullable=False)


def created_at_column() -> sa.Column[datetime]:
    now = sa.text(UTC_NOW[op.get_bind().dialect.name])
    return sa.Column("created_at", sa.DateTime(timezone=True), server_default=now, nullable=False)


def whole_columns(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def foreign_key(table: str, column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{parent}.id"], name=f"fk_{table}_{column}")
