"""Portfolios: the few configurations that serve a whole family, with the evidence for each."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIME = sa.DateTime(timezone=True)
FAMILY = ("s1", "nq", "nkv", "qd", "block_size")
UTC_NOW = {
    "sqlite": "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))",
    "postgresql": "clock_timestamp()",
}
PORTFOLIO_COLUMNS = (
    "id, environment_id, s1, nq, nkv, qd, block_size, regret_limit, max_configs, "
    "worst_regret, held_out_median, held_out_worst, proven, created_at"
)


def upgrade() -> None:
    op.create_table(
        "portfolio",
        sa.Column("id", ROW_ID, nullable=False),
        sa.Column("environment_id", ROW_ID, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in FAMILY),
        sa.Column("regret_limit", sa.Double),
        sa.Column("max_configs", sa.Integer),
        sa.Column("worst_regret", sa.Double),
        sa.Column("held_out_median", sa.Double),
        sa.Column("held_out_worst", sa.Double),
        sa.Column("proven", sa.Boolean, nullable=False),
        sa.Column("created_at", TIME, server_default=sa.text(UTC_NOW[op.get_bind().dialect.name]), nullable=False),
        sa.Column("superseded_at", TIME),
        sa.PrimaryKeyConstraint("id", name="pk_portfolio"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_portfolio_environment_id"),
        sa.CheckConstraint("regret_limit IS NOT NULL OR max_configs IS NOT NULL", name="ck_portfolio_asked_for"),
    )
    op.create_table(
        "portfolio_member",
        sa.Column("portfolio_id", ROW_ID, nullable=False, autoincrement=False),
        sa.Column("measurement_id", ROW_ID, nullable=False, autoincrement=False),
        sa.Column("verification_id", ROW_ID, nullable=False),
        sa.PrimaryKeyConstraint("portfolio_id", "measurement_id", name="pk_portfolio_member"),
        *(
            sa.ForeignKeyConstraint([f"{parent}_id"], [f"{parent}.id"], name=f"fk_portfolio_member_{parent}_id")
            for parent in ("portfolio", "measurement", "verification")
        ),
    )
    current = sa.text("superseded_at IS NULL")
    for name, columns, unique in (
        ("uq_portfolio_current", [*FAMILY, "environment_id"], True),
        ("ix_portfolio_served", ["environment_id", "id"], False),
    ):
        op.create_index(name, "portfolio", columns, unique=unique, sqlite_where=current, postgresql_where=current)
    for table, event in (
        ("portfolio", "DELETE"),
        ("portfolio", f"UPDATE OF {PORTFOLIO_COLUMNS}"),
        ("portfolio_member", "DELETE"),
        ("portfolio_member", "UPDATE"),
    ):
        refuse(event, table)


def refuse(event: str, table: str) -> None:
    """Have the database refuse an event of an append-only table; the first migration made PostgreSQL's function."""
    if op.get_bind().dialect.name == "postgresql":
        action = "FOR EACH ROW EXECUTE FUNCTION pfatune_append_only()"
    else:
        action = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    op.execute(f"CREATE TRIGGER tr_{table}_no_{event.split()[0].lower()} BEFORE {event} ON {table} {action}")
