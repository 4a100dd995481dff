"""Other processes: killed while writing, or opening a new database at the same moment."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import db_examples
import pytest
from db_examples import SIM, open_at_once

from pfatune.db import Store

pytestmark = pytest.mark.slow

OPENERS = 6


@pytest.mark.parametrize("batches", [1, 20, 77])
def test_kill_loses_nothing_that_was_acknowledged(target: str, batches: int) -> None:
    with subprocess.Popen(
        [sys.executable, db_examples.__file__, target], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        lines = [writer.stdout.readline() for _ in range(batches)]
        writer.kill()
        lines += writer.stdout.readlines()
        assert writer.stderr.read() == ""
    acknowledged = {int(number) for line in lines if line.endswith("\n") for number in line.split()}
    assert len(acknowledged) >= 2 * batches
    with Store.open(target) as store:
        store.check()
        env_id = store.environment_id(SIM)
        stored = store.measurements(env_id)
        assert acknowledged <= {one.id for one in stored}
        assert len(stored) % 2 == 0, "half a batch was kept"
        assert store.add(env_id, [db_examples.measured()])


def test_processes_may_open_a_new_database_at_the_same_moment(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(20)]
    open_together(paths)
    for path in paths:
        with Store.open(path) as store:
            assert list(store.environments().values()) == [SIM]
            assert len(store.measurements(store.environment_id(SIM))) == OPENERS
            store.check()


def test_processes_may_open_an_empty_database_of_any_kind_at_the_same_moment(target: str) -> None:
    open_together([target])
    with Store.open(target) as store:
        assert len(store.measurements(store.environment_id(SIM))) == OPENERS


def open_together(targets: list[Path] | list[str]) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(OPENERS)
    openers = [spawn.Process(target=open_at_once, args=(barrier, targets)) for _ in range(OPENERS)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(120)
    assert [opener.exitcode for opener in openers] == [0] * OPENERS
