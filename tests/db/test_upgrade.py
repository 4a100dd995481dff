"""A database of the first pfatune becomes one of this pfatune, with every row it had."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from db_examples import NPU, SHAPE, SIM, WORKLOAD, config, measured, verified
from job_examples import claimed, request
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError

from pfatune.db import Store, migrate
from pfatune.db.errors import UpgradeNeededError
from pfatune.db.tables import metadata
from pfatune.kernel.shapes import Workload


@pytest.fixture
def first(target: str, tmp_path: Path) -> Iterator[Store]:
    """A database that has only the first migration, with rows."""
    folder = tmp_path / "first" / "migrations"
    shutil.copytree(migrate.MIGRATIONS, folder)
    for script in (folder / "versions").glob("0*.py"):
        if script.name != "0001_first.py":
            script.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "MIGRATIONS", folder)
        store = Store.open(target)
    env_id = store.environment_id(SIM)
    store.environment_id(NPU)
    good = store.add_verification(env_id, verified(stitch=128))
    ids = store.add(env_id, [measured(cost, stitch=128) for cost in (50.0, 40.0)])
    default, *_ = store.add(env_id, [measured(), measured(None), measured(workload=Workload(SHAPE, (7, 1024)))])
    for best in ids:
        store.promote(env_id, best, default, good)
    with store:
        yield store


def contents(store: Store) -> list[object]:
    return [
        store.environments(),
        *(store.measurements(env_id) for env_id in store.environments()),
        store.verification(1, SHAPE.family, config(128).digest),
        store.tuned_history(None, WORKLOAD),
    ]


def test_upgrade_keeps_every_row(first: Store, target: str) -> None:
    before = contents(first)
    with first.database.read() as connection:
        assert not inspect(connection).has_table("job")
    with pytest.raises(UpgradeNeededError):
        Store.open(target, read_only=True)
    with Store.open(target) as store:
        assert contents(store) == before
        assert len(store.tuned_history(None, WORKLOAD)) == 2
        store.check()
    with Store.open(target, read_only=True) as store:
        assert contents(store) == before


def test_upgraded_database_is_like_a_new_one(first: Store, target: str) -> None:
    with Store.open(target) as store:
        with store.database.read() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": migrate.VERSION_TABLE})
            assert compare_metadata(context, metadata) == []
        ((env_id, _),) = store.served_environments()
        assert [entry.cost for _, entry in store.served(env_id)[1]] == [40.0]
        store.jobs.submit(request())
        _, lease = claimed(store)
        (added,) = store.under(lease).add(env_id, [measured()])
        store.traces.add(added, {})
        store.tokens.create("ci")
        assert store.served_portfolios(env_id) == (0, [])
        with pytest.raises(IntegrityError, match="measurement is append-only"), store.database.write() as connection:
            connection.execute(text("DELETE FROM measurement"))


def test_first_pfatune_goes_on_in_a_database_that_is_upgraded_meanwhile(first: Store, target: str) -> None:
    Store.open(target).close()
    assert first.add(1, [measured()])
    assert len(first.tuned(1, WORKLOAD)) == 1
