"""The queries of what is served, over databases that the store wrote."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ladder_tools import config
from served_files import ENVIRONMENT, described, tune

from pfatune.kernel.config import ConfigError
from pfatune.kernel.ladder import Entry
from pfatune.kernel.served import (
    CONFIG_SQL,
    ENVIRONMENT_COLUMNS,
    ENVIRONMENTS_SQL,
    SERVED_SQL,
    STATE_SQL,
    choose_environment,
    entries_from_rows,
)
from pfatune.kernel.shapes import PfaShape

SMALL, LARGE = PfaShape(2, 1024), PfaShape(16, 8192, nkv=2)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "tuned.db"
    tune(path, [SMALL, LARGE])
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def entries(connection: sqlite3.Connection, env: int = 1, after: int = 0) -> list[tuple[int, PfaShape, Entry]]:
    rows = connection.execute(SERVED_SQL, {"env": env, "after": after})
    return list(entries_from_rows(rows, lambda number: connection.execute(CONFIG_SQL, {"id": number}).fetchone()[0]))


def path_of(connection: sqlite3.Connection) -> Path:
    return Path(connection.execute("PRAGMA database_list").fetchone()[2])


def test_what_is_served_is_listed_with_its_evidence(connection: sqlite3.Connection) -> None:
    (first, small, one), (second, large, other) = entries(connection)
    assert (first, small, second, large) == (1, SMALL, 2, LARGE)
    assert (one.config, other.config) == (config(100), config(100, LARGE.family))
    assert (one.cost, one.default_cost, one.measurement, one.full) == (900.0, 2000.0, 1, True)
    age = datetime.now(UTC) - datetime.fromisoformat(one.verified_at)
    assert timedelta(minutes=-1) < age < timedelta(hours=1)


def test_only_what_came_after_is_listed(connection: sqlite3.Connection) -> None:
    assert [number for number, _, _ in entries(connection, after=1)] == [2]
    assert entries(connection, after=2) == []


def test_what_was_superseded_is_not_listed(connection: sqlite3.Connection) -> None:
    tune(path_of(connection), [SMALL], number=101)
    assert [(number, shape) for number, shape, _ in entries(connection)] == [(2, LARGE), (3, SMALL)]
    assert connection.execute(STATE_SQL, {"env": 1}).fetchone() == (2, 3)


def test_an_entry_measured_with_short_requests_says_so(connection: sqlite3.Connection) -> None:
    tune(path_of(connection), [SMALL], number=101, lengths=(512, 1024))
    assert [one.full for _, shape, one in entries(connection) if shape == SMALL] == [True, False]


def test_environments_are_kept_apart_and_listed_newest_first(connection: sqlite3.Connection) -> None:
    tune(path_of(connection), [LARGE], environment=replace(ENVIRONMENT, pypto="0.3.0"))
    rows = connection.execute(ENVIRONMENTS_SQL).fetchall()
    assert [row[0] for row in rows] == [2, 1]
    found = dict(zip(ENVIRONMENT_COLUMNS, rows[1][1:], strict=True))
    assert found == described()
    assert [shape for _, shape, _ in entries(connection, env=2)] == [LARGE]


def test_an_environment_that_serves_nothing_is_not_listed(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TRIGGER tr_tuned_config_no_delete")
    connection.execute("DELETE FROM tuned_config")
    assert connection.execute(ENVIRONMENTS_SQL).fetchall() == []
    assert connection.execute(STATE_SQL, {"env": 1}).fetchone() == (0, None)


def test_each_configuration_is_read_once() -> None:
    asked = []

    def config_of(number: int) -> Any:
        asked.append(number)
        return config(number).to_json()  # as PostgreSQL's driver gives it

    verified = datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    digests = {7: "a", 8: "b", 9: "a"}
    rows = [(n, n, 1024, 1, 12, 1, 128, 128, "", n, digests[n], 5.0, 6.0, verified) for n in digests]
    found = list(entries_from_rows(rows, config_of))
    assert asked == [7, 8]
    assert [entry.config for _, _, entry in found] == [config(7), config(8), config(7)]
    assert found[0][2] == Entry(config(7), 5.0, 6.0, 7, "2026-03-01T12:00:00+00:00", True)


def test_a_row_the_store_never_wrote_is_refused() -> None:
    row = (1, 0, 1024, 1, 12, 1, 128, 128, "", 1, "a", 5.0, 6.0, "2026-03-01 12:00:00.000000")
    with pytest.raises(ValueError, match="b is 0"):
        list(entries_from_rows([row], lambda number: config().to_json()))
    with pytest.raises(ConfigError):
        list(entries_from_rows([row], lambda number: "{}"))


def test_hardware_comes_before_the_model_and_new_before_old() -> None:
    npu = replace(ENVIRONMENT, backend="npu", torch_npu="2.13.0")
    listed = [
        (5, described(replace(ENVIRONMENT, pypto="0.3.0"))),
        (4, described(replace(ENVIRONMENT, kernel_digest="other"))),
        (3, described(replace(ENVIRONMENT, soc="950DT"))),
        (2, described(npu)),
        (1, described()),
    ]
    digest = ENVIRONMENT.kernel_digest

    def chosen(*filters: str | None) -> list[int]:
        return [number for number, _ in choose_environment(listed, "950PR", *filters, kernel_digest=digest)]

    assert chosen() == [2, 5, 1]
    assert chosen("sim") == [5, 1]
    assert chosen(None, "0.2.0") == [2, 1]
    assert chosen("npu", "0.3.0") == []
