"""The contract of traces over every database."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from db_examples import measured
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from pfatune.db import Store
from pfatune.db.errors import UnknownRowError

LANES = {"lanes": [{"core": "AIC_0", "tasks": [[0, 10, "QK", None]]}], "unit": "cycles", "é": "\0"}


@pytest.fixture
def ids(store: Store, env_id: int) -> list[int]:
    return store.add(env_id, [measured()] * 3)


def test_trace_comes_back(store: Store, ids: list[int]) -> None:
    store.traces.add(ids[1], LANES)
    data = store.traces.get(ids[1])
    assert data is not None
    assert json.loads(gzip.decompress(data)) == LANES
    assert store.traces.get(ids[0]) is None
    assert store.traces.get(10**9) is None


def test_first_trace_stays(store: Store, ids: list[int]) -> None:
    store.traces.add(ids[0], LANES)
    first = store.traces.get(ids[0])
    store.traces.add(ids[0], {"other": 1})
    assert store.traces.get(ids[0]) == first


def test_traces_that_are_there_are_named(store: Store, ids: list[int]) -> None:
    assert store.traces.has([]) == set()
    store.traces.add(ids[0], {})
    store.traces.add(ids[2], {})
    assert store.traces.has(ids) == {ids[0], ids[2]}
    assert store.traces.has(range(2000)) == {ids[0], ids[2]}


def test_trace_belongs_to_a_measurement(store: Store, ids: list[int]) -> None:
    with pytest.raises(UnknownRowError, match="measurement 77 is not in the store"):
        store.traces.add(77, LANES)


@pytest.mark.parametrize("document", [{"x": float("inf")}, {"x": object()}])
def test_trace_is_json(store: Store, ids: list[int], document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the trace is no JSON"):
        store.traces.add(ids[0], document)
    assert store.traces.has(ids) == set()


def test_trace_is_added_once_by_many_at_a_time(store: Store, ids: list[int]) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: store.traces.add(ids[0], {"n": number}), range(6)))
    data = store.traces.get(ids[0])
    assert data is not None
    assert json.loads(gzip.decompress(data))["n"] in range(6)


@pytest.mark.parametrize("statement", ["DELETE FROM trace", "UPDATE trace SET created_at = created_at"])
def test_database_itself_keeps_traces(store: Store, ids: list[int], statement: str) -> None:
    store.traces.add(ids[0], LANES)
    with pytest.raises(IntegrityError, match="trace is append-only"), store.database.write() as connection:
        connection.execute(text(statement))
