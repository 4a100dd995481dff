"""Portfolios as an engine gets them: from a database, from a snapshot, and from what older ones wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from ladder_tools import config, ladders, small_ladder
from served_files import ENVIRONMENT, described, snapshot_of, tune
from strategies import shapes

from pfatune.db import Kind, Measurement, PortfolioTerms, Store, Verification
from pfatune.kernel.ladder import Ladder
from pfatune.kernel.shapes import MAX_S2, PfaFamily, PfaShape, Workload
from pfatune.kernel.snapshot import load
from pfatune.kernel.tuned import TunedConfigs

FAR = PfaShape(1024, MAX_S2)
SMALL = PfaShape(2, 1024)


def choose(path: Path, members: Sequence[tuple[int, int, int]]) -> None:
    """Serve a portfolio of (b, s2, number of a configuration)."""
    with Store.open(path) as store:
        env = store.environment_id(ENVIRONMENT)
        pairs = []
        for b, s2, number in members:
            row = Measurement(Workload(PfaShape(b, s2)), config(number), Kind.OK, 100.0)
            checked = Verification(PfaFamily(), config(number), True, 0.0, (SMALL,))
            pairs.append((store.add(env, [row])[0], store.add_verification(env, checked)))
        store.portfolios.save(env, PfaFamily(), pairs, PortfolioTerms(0.05, None, 0.0))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.db"
    tune(path, [SMALL])
    return path


def test_a_database_serves_its_portfolio_and_what_takes_its_place(database: Path) -> None:
    with TunedConfigs(database, refresh_seconds=1000) as tuned:
        assert tuned.lookup(FAR).provenance == "default"
        choose(database, [(2, 1024, 7), (16, 8192, 8)])
        assert tuned.refresh()
        answer = tuned.lookup(FAR)
        assert (answer.config, answer.provenance, answer.shape) == (config(8), "portfolio", None)
        assert tuned.lookup(PfaShape(1, 32)).config == config(7)
        assert tuned.lookup(SMALL).provenance == "exact"
        assert tuned.lookup(PfaShape(3, 1500)).provenance == "nearest"
        assert not tuned.refresh()
        choose(database, [(16, 8192, 9)])
        assert tuned.refresh()
        assert tuned.lookup(FAR).config == config(9)
        assert tuned.lookup(PfaShape(1, 32)).config == config(9)


def test_a_database_of_a_pfatune_without_portfolios_is_read(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE portfolio_member")
        connection.execute("DROP TABLE portfolio")
    with TunedConfigs(database, refresh_seconds=1000) as tuned:
        assert tuned.lookup(SMALL).provenance == "exact"
        assert tuned.lookup(FAR).provenance == "default"
        assert tuned.status.error == ""
        assert not tuned.refresh()


def test_a_snapshot_serves_its_portfolio(tmp_path: Path) -> None:
    ladder = small_ladder()
    ladder.set_portfolio(PfaFamily(), [(1, 128, config(7)), (16, 8192, config(8))])
    (tmp_path / "a.json").write_bytes(snapshot_of(ladder))
    with TunedConfigs(tmp_path / "a.json") as tuned:
        assert (tuned.lookup(FAR).config, tuned.lookup(FAR).provenance) == (config(8), "portfolio")


def test_a_snapshot_written_before_there_were_portfolios_is_read() -> None:
    before = snapshot_of(small_ladder())
    document = json.loads(before)
    assert [one["portfolio"] for one in document["families"]] == [[]]
    assert document["version"] == 1
    found = load(before)
    assert found.environment == described()
    assert list(found.ladder.portfolios()) == []
    assert found.ladder.lookup(FAR).provenance == "default"


@given(ladders(), shapes())
def test_a_snapshot_answers_as_what_it_was_made_of(ladder: Ladder, shape: PfaShape) -> None:
    found = load(snapshot_of(ladder)).ladder
    for family, _ in ladder.portfolios():
        asked = PfaShape(shape.b, max(shape.s2, family.s1), **family.to_json())
        assert found.lookup(asked) == ladder.lookup(asked)
