"""What the database itself refuses, and that the migrations and the tables agree."""

from __future__ import annotations

import re

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from db_examples import SHAPE, WORKLOAD, config, measured, verified
from sqlalchemy import Select, event, insert, select, text
from sqlalchemy.exc import IntegrityError

from pfatune.db import JobState, Kind, Store
from pfatune.db.migrate import VERSION_TABLE
from pfatune.db.tables import metadata, tuned_config
from pfatune.kernel.served import ENVIRONMENTS_SQL, SERVED_SQL, STATE_SQL


@pytest.fixture
def served(store: Store, env_id: int) -> None:
    best, default = store.add(env_id, [measured(50.0, stitch=128), measured(100.0)])
    store.promote(env_id, best, default, store.add_verification(env_id, verified(stitch=128)))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE measurement SET cost = 1 WHERE kind = 'ok'",
        "UPDATE measurement SET message = 'x'",
        "DELETE FROM measurement",
        "UPDATE verification SET passed = false",
        "DELETE FROM verification",
        "UPDATE tuned_config SET default_id = measurement_id",
        "DELETE FROM tuned_config",
    ],
)
def test_rows_are_never_changed_or_deleted(store: Store, statement: str) -> None:
    table = re.search("measurement|verification|tuned_config", statement)
    assert table is not None
    with pytest.raises(IntegrityError, match=f"{table[0]} is append-only"), store.database.write() as connection:
        connection.execute(text(statement))


@pytest.mark.usefixtures("served")
def test_workload_has_one_current_row_in_an_environment(store: Store) -> None:
    with store.database.read() as connection:
        row = dict(connection.execute(select(tuned_config)).mappings().one())
    del row["id"]
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(insert(tuned_config).values(row))
    with store.database.write() as connection:
        connection.execute(insert(tuned_config).values(row | {"superseded_at": row["created_at"]}))
    assert len(store.tuned_history(None, WORKLOAD)) == 2


@pytest.mark.parametrize("change", [{"kind": "ok", "cost": None}, {"kind": "timeout"}, {"kind": "slow", "cost": None}])
def test_kind_and_cost_are_checked(store: Store, env_id: int, change: dict[str, object]) -> None:
    store.add(env_id, [measured()])
    table = metadata.tables["measurement"]
    with store.database.read() as connection:
        row = dict(connection.execute(select(table)).mappings().one())
    del row["id"]
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(insert(table).values(row | change))


def test_references_are_checked(store: Store, env_id: int) -> None:
    row = dict.fromkeys(("b", "s2", "s1", "nq", "nkv", "qd", "block_size"), 1) | {"seq_digest": ""}
    references = {"environment_id": env_id, "measurement_id": 9, "default_id": 9, "verification_id": 9}
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(insert(tuned_config).values(row | references))
    store.add(env_id, [measured()])
    with pytest.raises(IntegrityError), store.database.write() as connection:
        connection.execute(text("DELETE FROM environment"))


def test_migrations_make_the_tables(store: Store) -> None:
    with store.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []


def test_queries_use_their_indexes(store: Store, env_id: int) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL plans by the size of its tables")
    plans: list[str] = []

    @event.listens_for(store.database._engine, "after_execute")
    def explain(connection, statement, *rest):  # type: ignore[no-untyped-def]  # SQLAlchemy's to call
        if isinstance(statement, Select):
            query = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}")
            plans.append("\n".join(row[-1] for row in rows))

    store.tuned(env_id, WORKLOAD)
    store.tuned(None, WORKLOAD)
    store.tuned_history(None, WORKLOAD)
    store.measurements(env_id, newest_first=True, limit=10)
    store.measurements(env_id, workload=WORKLOAD)
    store.measurements(env_id, family=SHAPE.family, config_digest=config().digest)
    store.verification(env_id, SHAPE.family, config().digest)
    store.measurement_page(workload=WORKLOAD)
    store.measurement_page(env_id=env_id, kind=Kind.OK)
    store.jobs.list(state=JobState.QUEUED)
    store.tokens.check("")
    whole_workload = r"\(.*s1=\? .*block_size=\? AND s2=\? AND b=\? AND seq_digest=\?"
    wanted = [
        # Either index of tuned_config leads to the few rows of a workload.
        f"tuned_config USING INDEX .* {whole_workload}",
        f"tuned_config USING INDEX .* {whole_workload}",
        f"tuned_config USING INDEX ix_tuned_config_history {whole_workload}",
        "INDEX ix_measurement_newest",
        f"INDEX ix_measurement_workload {whole_workload}",
        r"INDEX ix_measurement_config \(.*config_digest=\?",
        r"INDEX ix_verification_config \(.*config_digest=\?",
        f"INDEX ix_measurement_workload {whole_workload}",
        r"INDEX ix_measurement_kind \(environment_id=\? AND kind=\?",
        "INDEX ix_job_state",
        r"INDEX .* \(public=\?",
    ]
    assert len(plans) == len(wanted)
    for plan, index in zip(plans, wanted, strict=True):
        assert re.search(index, plan)
        assert "SCAN" not in plan.replace("SCAN environment", "")


def test_what_is_served_is_found_by_its_index(store: Store, env_id: int) -> None:
    if not store.database.is_sqlite:
        pytest.skip("PostgreSQL plans by the size of its tables")
    with store.database.read() as connection:
        for query in (ENVIRONMENTS_SQL, SERVED_SQL, STATE_SQL):
            rows = connection.execute(text(f"EXPLAIN QUERY PLAN {query}"), {"env": env_id, "after": 0})
            plan = "\n".join(row[-1] for row in rows)
            assert re.search(r"SEARCH t USING (COVERING )?INDEX ix_tuned_config_served \(environment_id=\?", plan)
            assert "SCAN t" not in plan
            assert "TEMP B-TREE" not in plan
