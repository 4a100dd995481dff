"""What an engine imports, over local files: databases and snapshots, whole, broken, missing and changing."""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from ladder_tools import FAMILIES, config, small_ladder
from served_files import ENVIRONMENT, snapshot_of, tune
from strategies import shapes

from pfatune.kernel import sources
from pfatune.kernel import tuned as module
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.ladder import Answer, Ladder
from pfatune.kernel.shapes import PfaShape
from pfatune.kernel.snapshot import load
from pfatune.kernel.tuned import TunedConfigs

SHAPE = PfaShape(2, 1024)
DEFAULT = Answer(canonical(default_config(SHAPE), SHAPE.family), "default")
NPU = replace(ENVIRONMENT, backend="npu", torch_npu="2.13.0")
NEWER = replace(ENVIRONMENT, pypto="0.3.0")
FOREIGN_KERNEL = replace(ENVIRONMENT, kernel_digest="0" * 16)
OTHER_CHIP = replace(ENVIRONMENT, soc="950DT")


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.db"
    tune(path, [SHAPE, PfaShape(16, 8192)])
    return path


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "served.json"
    path.write_bytes(snapshot_of(small_ladder(100)))
    return path


def number(tuned: TunedConfigs) -> int:
    """Which ``config(number)`` is served for SHAPE."""
    return tuned.lookup(SHAPE).config.stitch_function_max_num


def test_a_database_is_served_at_once(database: Path) -> None:
    with TunedConfigs(database) as tuned:
        answer = tuned.lookup(SHAPE)
        assert (answer.config, answer.provenance, answer.shape) == (config(100), "exact", SHAPE)
        assert answer.entry is not None
        assert (answer.entry.cost, answer.entry.default_cost) == (900.0, 2000.0)
        status = tuned.status
        assert (status.source, status.loaded, status.origin, status.entries) == (str(database), True, "database", 2)
        assert (status.environment, status.error) == (ENVIRONMENT.digest, "")
        assert status.refreshed_at is not None
        assert tuned.wait(0)


def test_a_snapshot_is_served_at_once(snapshot: Path) -> None:
    with TunedConfigs(str(snapshot)) as tuned:
        assert tuned.lookup(SHAPE).config == config(100)
        status = tuned.status
        assert (status.origin, status.entries, status.error) == ("file", 2, "")
        assert status.checksum == load(snapshot.read_bytes()).checksum


@pytest.mark.parametrize("shape", [SHAPE, PfaShape(3, 1500), PfaShape(1024, 1), PfaShape(2, 1024, nkv=3)])
def test_every_rung_answers_as_the_ladder_does(database: Path, shape: PfaShape) -> None:
    with TunedConfigs(database) as tuned:
        for _ in range(2):
            found = tuned.lookup(shape)
            expected = small_ladder(100, [(2, 1024), (16, 8192)]).lookup(shape)
            assert (found.config, found.provenance, found.shape) == (
                expected.config,
                expected.provenance,
                expected.shape,
            )


@given(shape=shapes())
def test_no_shape_makes_a_lookup_fail(shape: PfaShape) -> None:
    answers = module._Answers(sources.Served(small_ladder(), "file", ""))
    assert answers[shape] == answers[shape] == small_ladder().lookup(shape)


def test_answers_are_kept_but_not_without_end(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 10)
    with TunedConfigs(snapshot) as one:
        for b in range(1, 100):
            assert one.lookup(PfaShape(b, 1024)) == small_ladder().lookup(PfaShape(b, 1024))
        assert len(one._answers) == 10
        assert one.lookup(PfaShape(1, 1024)) is one.lookup(PfaShape(1, 1024))


def test_what_is_new_in_a_database_is_taken(database: Path) -> None:
    with TunedConfigs(database, refresh_seconds=1000) as tuned:
        assert not tuned.refresh()
        tune(database, [SHAPE], number=101)
        assert number(tuned) == 100
        assert tuned.refresh()
        assert number(tuned) == 101
        assert not tuned.refresh()
        tune(database, [PfaShape(2, 1024, nkv=2)])
        assert tuned.refresh()
        assert tuned.status.entries == 3


def test_what_is_withdrawn_from_a_database_is_served_no_longer(database: Path) -> None:
    with TunedConfigs(database, refresh_seconds=1000) as tuned:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE tuned_config SET superseded_at = created_at WHERE b = 2")
        assert tuned.refresh()
        assert tuned.lookup(SHAPE) == DEFAULT


def test_what_is_new_in_a_file_is_taken_in_the_background(snapshot: Path) -> None:
    with TunedConfigs(snapshot, refresh_seconds=0.02) as tuned:
        assert number(tuned) == 100
        snapshot.write_bytes(snapshot_of(small_ladder(101)))
        assert until(lambda: number(tuned) == 101)


def test_a_file_may_turn_into_a_database(snapshot: Path, database: Path) -> None:
    with TunedConfigs(snapshot, refresh_seconds=1000) as tuned:
        tune(database, [SHAPE], number=102)
        snapshot.write_bytes(database.read_bytes())
        assert tuned.refresh()
        assert (tuned.status.origin, number(tuned)) == ("database", 102)


def test_hardware_comes_first_and_filters_choose(database: Path) -> None:
    tune(database, [SHAPE], number=101, environment=NPU)
    tune(database, [SHAPE], number=102, environment=NEWER)
    tune(database, [SHAPE], number=103, environment=FOREIGN_KERNEL)
    tune(database, [SHAPE], number=104, environment=OTHER_CHIP)
    for filters, expected in (
        ({}, 101),
        ({"backend": "sim"}, 102),
        ({"backend": "sim", "pypto": "0.2.0"}, 100),
        ({"soc": "950DT"}, 104),
    ):
        with TunedConfigs(database, **filters) as tuned:
            assert number(tuned) == expected
    with TunedConfigs(database, pypto="9.9") as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        assert "pypto 9.9: tune for it" in tuned.status.error


@pytest.mark.parametrize(
    ("environment", "what"), [(FOREIGN_KERNEL, "kernel_digest '0000000000000000'"), (OTHER_CHIP, "soc '950DT'")]
)
def test_a_snapshot_of_something_else_is_refused(tmp_path: Path, environment: object, what: str) -> None:
    path = tmp_path / "served.json"
    path.write_bytes(snapshot_of(small_ladder(), environment))  # type: ignore[arg-type]
    with TunedConfigs(path) as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        assert what in tuned.status.error


def make_missing(path: Path) -> None:
    path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_foreign_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE tuned_config (id INTEGER)")


def make_empty_database(path: Path) -> None:
    path.unlink()
    tune(path, [])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:16] + os.urandom(5000))


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


BREAKAGE = [
    make_missing,
    make_folder,
    make_pipe,
    make_foreign_database,
    make_empty_database,
    truncate,
    scramble,
    make_empty,
    make_loop,
]


@pytest.fixture(params=["database", "snapshot"])
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    if request.param == "database":
        with closing(sqlite3.connect(path)) as connection:  # all in one file, to be broken at once
            connection.execute("PRAGMA journal_mode = DELETE")
    return path


def quick_lookups(tuned: TunedConfigs, expected: Answer) -> None:
    start = time.monotonic()
    for _ in range(10_000):
        assert tuned.lookup(SHAPE) is tuned.lookup(SHAPE)
    assert tuned.lookup(SHAPE) == expected
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("broken", BREAKAGE)
def test_a_broken_source_gives_the_default(
    source: Path, broken: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    broken(source)
    start = time.monotonic()
    with TunedConfigs(source, refresh_seconds=0.05) as tuned:
        assert time.monotonic() - start < 5
        quick_lookups(tuned, DEFAULT)
        assert not tuned.refresh()
        status = tuned.status
        assert (status.loaded, status.origin, status.entries, status.refreshed_at) == (False, "built-in", 0, None)
        assert str(source) in status.error
        assert "\n" not in status.error
        assert not tuned.wait(0.01)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("broken", BREAKAGE)
def test_a_source_that_breaks_leaves_what_was_read(source: Path, broken: Callable[[Path], None]) -> None:
    with TunedConfigs(source, refresh_seconds=1000) as tuned:
        before = tuned.lookup(SHAPE)
        broken(source)
        assert not tuned.refresh()
        quick_lookups(tuned, before)
        assert str(source) in tuned.status.error
        assert tuned.status.loaded


def test_a_source_that_comes_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / "tuned.db"
    with TunedConfigs(path, refresh_seconds=0.05) as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        tune(path, [SHAPE])
        assert tuned.wait(20)
        assert until(lambda: number(tuned) == 100)
        assert until(lambda: tuned.status.error == "")


def test_a_locked_database_keeps_nobody_waiting(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        with TunedConfigs(database, refresh_seconds=0.05, timeout=0.3) as tuned:
            quick_lookups(tuned, DEFAULT)
            assert time.monotonic() - start < 5
            assert "locked" in tuned.status.error
            connection.rollback()
            assert until(lambda: number(tuned) == 100)


def test_a_database_is_never_made_or_changed(database: Path, tmp_path: Path) -> None:
    before = database.read_bytes()
    with TunedConfigs(database), TunedConfigs(tmp_path / "none.db"):
        assert database.read_bytes() == before
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "source", ["", " ", "ftp://host/x", "postgresql://user:secret@host/db", "http://", "http:///x"]
)
def test_a_source_that_is_none_is_refused_at_once(source: str) -> None:
    with pytest.raises(ValueError, match="give") as caught:
        TunedConfigs(source)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("fields", [{"refresh_seconds": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"soc": "910"}])
def test_a_setting_that_cannot_be_is_refused_at_once(snapshot: Path, fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give|use"):
        TunedConfigs(snapshot, **fields)  # type: ignore[arg-type]


def test_an_odd_path_is_no_error(tmp_path: Path) -> None:
    odd = tmp_path / "odd? name #%20.db"
    tune(odd, [SHAPE])
    with TunedConfigs(odd) as tuned, TunedConfigs("nul\0") as other:
        assert number(tuned) == 100
        assert other.lookup(SHAPE) == DEFAULT
        assert other.status.error


def test_each_new_error_is_logged_once(snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = snapshot.read_bytes()
    with caplog.at_level(logging.WARNING, "pfatune.tuned"), TunedConfigs(snapshot, refresh_seconds=1000) as tuned:
        for data in (b"", b"", good, b"", b"{", b"{"):
            snapshot.write_bytes(data)
            tuned.refresh()
    messages = [record.getMessage() for record in caplog.records]
    assert ["empty" in message for message in messages] == [True, True, False]


def test_failures_are_tried_again_less_and_less_often(snapshot: Path) -> None:
    with TunedConfigs(snapshot, refresh_seconds=1000) as tuned:
        assert 800 <= tuned._delay() <= 1200
        snapshot.unlink()
        waits = []
        for _ in range(8):
            tuned.refresh()
            waits.append(tuned._delay())
        assert 1600 <= waits[0] <= 2400
        assert 3200 <= waits[1] <= 4800
        assert all(8000 <= wait <= 12000 for wait in waits[4:])
        snapshot.write_bytes(snapshot_of(small_ladder(101)))
        assert tuned.refresh()
        assert tuned._delay() <= 1200


def test_a_source_that_was_never_there_is_tried_again_soon(tmp_path: Path) -> None:
    with TunedConfigs(tmp_path / "none", refresh_seconds=1000) as tuned:
        assert tuned._delay() <= 1.2
        for _ in range(3000):
            tuned._failures += 1
            assert 0 < tuned._delay() <= 12000


def test_lookups_go_on_while_snapshots_are_swapped(snapshot: Path) -> None:
    documents = [snapshot_of(small_ladder(n)) for n in (100, 101)]
    seen: list[set[int]] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        mine: set[int] = set()
        seen.append(mine)
        b = 0
        try:
            while not over.is_set():
                b = b % 1024 + 1
                mine.add(number(tuned))
                answer = tuned.lookup(PfaShape(b, 8192))
                expected = "exact" if b == 16 else "bucket" if 8 < b < 16 else "nearest" if 4 <= b <= 64 else "default"
                assert answer.provenance == expected, b
                time.sleep(0)
        except BaseException as error:
            failed.append(error)

    with TunedConfigs(snapshot, refresh_seconds=1000) as tuned:
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(20):
            snapshot.write_bytes(documents[(turn + 1) % 2])
            assert tuned.refresh()
            time.sleep(0.01)
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []
    assert seen == [{100, 101}] * 3


def test_a_closed_one_answers_and_reads_no_more(snapshot: Path) -> None:
    tuned = TunedConfigs(snapshot, refresh_seconds=0.02)
    tuned.close()
    tuned.close()
    assert not tuned._thread.is_alive()
    snapshot.write_bytes(snapshot_of(small_ladder(101)))
    assert not tuned.refresh()
    assert number(tuned) == 100


def test_one_that_is_forgotten_ends_its_thread(snapshot: Path) -> None:
    tuned = TunedConfigs(snapshot, refresh_seconds=1000)
    thread = tuned._thread
    del tuned
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def _strange(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: object, timeout: float) -> None:
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr(sources.FileSource, "read", read)


@pytest.mark.usefixtures("_strange")
def test_an_error_that_nobody_thought_of_is_told_and_not_raised(snapshot: Path) -> None:
    with TunedConfigs(snapshot) as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        assert tuned.status.error == "ZeroDivisionError: what nobody thought of"


def test_an_answer_of_another_family_is_its_own(database: Path) -> None:
    shape = PfaShape(2, 1024, nkv=2)
    tune(database, [shape], number=99)
    with TunedConfigs(database) as tuned:
        assert tuned.lookup(shape).config == config(99, FAMILIES[1])
        assert number(tuned) == 100


def test_it_shows_what_it_serves(snapshot: Path) -> None:
    with TunedConfigs(snapshot) as tuned:
        assert repr(tuned) == f"<TunedConfigs {snapshot}: 2 from file>"
        assert isinstance(tuned._answers.served.ladder, Ladder)
