"""One contract for every database: SQLite always, PostgreSQL where PFATUNE_TEST_POSTGRES is its URL."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from db_examples import SIM
from sqlalchemy import create_engine, make_url, text

from pfatune.db import Store

POSTGRES = os.environ.get("PFATUNE_TEST_POSTGRES", "")


@pytest.fixture(params=["sqlite", "postgresql"] if POSTGRES else ["sqlite"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a database: a path, or the URL of a new schema."""
    if request.param == "sqlite":
        yield str(tmp_path / "tuned.db")
        return
    url = make_url(POSTGRES).set(drivername="postgresql+psycopg")
    schema = f"pfatune_{uuid.uuid4().hex}"
    admin = create_engine(url)
    with admin.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield url.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
    with admin.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    admin.dispose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a SQLite file may be made."""
    return tmp_path / "tuned.db"


@pytest.fixture
def store(target: str) -> Iterator[Store]:
    with Store.open(target) as store:
        yield store


@pytest.fixture
def env_id(store: Store) -> int:
    return store.environment_id(SIM)
