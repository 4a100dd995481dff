"""What an engine imports, over a service: one that works, one that is away, and every one that misbehaves."""

from __future__ import annotations

import logging
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ladder_tools import config, small_ladder
from served_files import ENVIRONMENT, snapshot_of
from service_stand_in import (
    BETTER,
    GOOD,
    MISBEHAVIOUR,
    Behaviour,
    StandIn,
    dead_url,
    hang,
    redirect,
    send,
    serve,
)

from pfatune.kernel import download
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.ladder import Answer, Ladder
from pfatune.kernel.shapes import PfaShape
from pfatune.kernel.snapshot import load
from pfatune.kernel.sources import ServiceSource, Wanted, default_copy
from pfatune.kernel.tuned import TunedConfigs

SHAPE = PfaShape(2, 1024)
DEFAULT = Answer(canonical(default_config(SHAPE), SHAPE.family), "default")
FOREIGN = {
    "serves another kernel": snapshot_of(small_ladder(), replace(ENVIRONMENT, kernel_digest="0" * 16)),
    "serves another chip": snapshot_of(small_ladder(), replace(ENVIRONMENT, soc="950DT")),
}
BAD = MISBEHAVIOUR | {name: serve(data) for name, data in FOREIGN.items()}


@pytest.fixture(autouse=True)
def _short_in_all_and_at_home_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(download, "TOTAL_TIMEOUTS", 3)
    monkeypatch.setattr("pfatune.kernel.sources.MAX_BYTES", 1 << 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    for thread in threading.enumerate():
        if thread.name == "pfatune-tuned":
            thread.join(10)


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def number(tuned: TunedConfigs) -> int:
    return tuned.lookup(SHAPE).config.stitch_function_max_num


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/pfatune/served").iterdir())


def test_a_service_is_served_soon_and_asked_for_changes_only() -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url + "/", refresh_seconds=0.02) as tuned:
        assert tuned.wait(20)
        assert until(lambda: number(tuned) == 100)
        assert until(lambda: service.answered.count(304) >= 3)
        assert service.answered.count(200) == 1
        status = tuned.status
        assert (status.origin, status.loaded, status.entries, status.error) == ("service", True, 2, "")
        assert (status.checksum, status.environment) == (load(GOOD).checksum, ENVIRONMENT.digest)
        service.behave = serve(BETTER)
        assert until(lambda: number(tuned) == 101)
        assert tuned.status.checksum == load(BETTER).checksum


def test_filters_are_part_of_the_question() -> None:
    with StandIn(serve(GOOD)) as service:
        with TunedConfigs(service.url, backend="sim", pypto="0.2.0", refresh_seconds=1000) as tuned:
            assert tuned.wait(20)
        with TunedConfigs(f"{service.url}/below", refresh_seconds=1000) as tuned:
            assert tuned.wait(20)
    assert service.asked == ["/configs?soc=950PR&backend=sim&pypto=0.2.0", "/below/configs?soc=950PR"]


@pytest.mark.slow
@pytest.mark.parametrize("behave", BAD.values(), ids=BAD)
def test_a_bad_service_gives_the_default_and_keeps_nobody_waiting(
    behave: Behaviour, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with StandIn(behave) as service:
        start = time.monotonic()
        with TunedConfigs(service.url, refresh_seconds=0.05, timeout=0.2) as tuned:
            assert time.monotonic() - start < 2
            for _ in range(10_000):
                tuned.lookup(SHAPE)
            assert tuned.lookup(SHAPE) == DEFAULT
            assert time.monotonic() - start < 4
            assert until(lambda: tuned.status.error != "")
            assert until(lambda: len(service.asked) >= 2), "not tried again"
            status = tuned.status
            assert (status.loaded, status.origin, status.refreshed_at) == (False, "built-in", None)
            assert tuned.lookup(SHAPE) == DEFAULT
            assert not tuned.wait(0)
    assert not (tmp_path / "cache").exists()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("behave", BAD.values(), ids=BAD)
def test_a_service_that_turns_bad_leaves_what_was_read(behave: Behaviour, tmp_path: Path) -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url, refresh_seconds=1000, timeout=0.2) as tuned:
        assert tuned.wait(20)
        before = tuned.lookup(SHAPE)
        service.behave = behave
        assert not tuned.refresh()
        assert tuned.lookup(SHAPE) is before
        assert tuned.status.loaded
        # That nothing changed is what a good service says as well.
        assert bool(tuned.status.error) == (behave is not BAD["says that nothing changed"])
        (copy,) = copies(tmp_path)
        assert copy.read_bytes() == GOOD
        service.behave = serve(BETTER)
        assert tuned.refresh()
        assert (number(tuned), tuned.status.error) == (101, "")


@pytest.mark.parametrize("behave", [hang, send(b"", 500), serve(FOREIGN["serves another kernel"])])
def test_the_copy_serves_while_the_service_is_away(behave: Behaviour) -> None:
    with StandIn(serve(GOOD)) as service:
        with TunedConfigs(service.url, refresh_seconds=1000) as tuned:
            assert tuned.wait(20)
        service.behave = behave
        with TunedConfigs(service.url, refresh_seconds=0.05, timeout=0.2) as tuned:
            assert (number(tuned), tuned.status.origin, tuned.status.loaded) == (100, "copy", False)
            assert until(lambda: tuned.status.error != "")
            assert number(tuned) == 100
            service.behave = serve(BETTER)
            assert until(lambda: number(tuned) == 101)
            assert until(lambda: tuned.status.loaded)
            assert tuned.status.origin == "service"


def test_a_copy_that_is_still_right_is_not_fetched_again() -> None:
    with StandIn(serve(GOOD)) as service:
        for _ in range(2):
            with TunedConfigs(service.url, refresh_seconds=1000) as tuned:
                assert tuned.wait(20)
                assert until(lambda: tuned.status.origin == "service")
    assert service.answered == [200, 304]


def test_nobody_there_gives_the_default_or_the_copy(tmp_path: Path) -> None:
    with TunedConfigs(dead_url(), refresh_seconds=0.05) as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        assert until(lambda: "refused" in tuned.status.error)
        assert tuned.lookup(SHAPE) == DEFAULT
    copy = tmp_path / "copy.json"
    copy.write_bytes(GOOD)
    with TunedConfigs(dead_url(), copy=copy) as tuned:
        assert number(tuned) == 100


def test_the_copy_is_its_owners_and_nothing_else_is_left(tmp_path: Path) -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url, refresh_seconds=1000) as tuned:
        assert tuned.wait(20)
        source = ServiceSource(service.url, Wanted("950PR", ENVIRONMENT.kernel_digest))
        (copy,) = copies(tmp_path)
        assert copy == default_copy(source)
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
        service.behave = serve(BETTER)
        assert tuned.refresh()
        assert copies(tmp_path) == [copy]
        assert copy.read_bytes() == BETTER


def test_copies_of_other_services_and_filters_are_kept_apart() -> None:
    digest = ENVIRONMENT.kernel_digest
    paths = {
        default_copy(ServiceSource(url, wanted))
        for url in ("http://one", "http://two", "https://one")
        for wanted in (Wanted("950PR", digest), Wanted("950PR", digest, "sim"), Wanted("950DT", digest))
    }
    assert len(paths) == 9


@pytest.mark.parametrize(
    "data", [b"", GOOD[:-10], GOOD.replace(b"2000.0", b"2000.5"), *FOREIGN.values(), b"x" * (1 << 21)]
)
def test_a_copy_that_may_not_be_used_is_not(tmp_path: Path, data: bytes) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(data)
    with StandIn(hang) as service, TunedConfigs(service.url, copy=copy, timeout=0.2, refresh_seconds=0.05) as tuned:
        assert tuned.lookup(SHAPE) == DEFAULT
        assert str(copy) in tuned.status.error
        service.behave = serve(GOOD)
        assert until(lambda: number(tuned) == 100)
        assert until(lambda: tuned.status.error == "")
        assert copy.read_bytes() == GOOD


def test_a_copy_that_cannot_be_written_is_told_and_changes_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    copy = tmp_path / "file" / "copy.json"
    caplog.set_level(logging.WARNING, "pfatune.tuned")
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url, copy=copy, refresh_seconds=0.02) as tuned:
        assert tuned.wait(20)
        assert until(lambda: service.answered.count(304) >= 2)
        assert number(tuned) == 100
        assert f"the copy {copy} cannot be" in tuned.status.error
    assert len({record.getMessage() for record in caplog.records}) == len(caplog.records) <= 2


def test_a_half_written_copy_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url, refresh_seconds=1000) as tuned:
        assert tuned.wait(20)
        (copy,) = copies(tmp_path)

        def full(number: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        service.behave = serve(BETTER)
        assert tuned.refresh()
        assert number(tuned) == 101
        assert "No space left" in tuned.status.error
        assert copies(tmp_path) == [copy]
        assert copy.read_bytes() == GOOD


def test_no_copy_is_kept_unless_wanted_or_of_a_file(tmp_path: Path) -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url, copy=None) as tuned:
        assert tuned.wait(20)
    snapshot = tmp_path / "served.json"
    snapshot.write_bytes(GOOD)
    with TunedConfigs(snapshot):
        assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("cache", [None, "relative"])
def test_without_a_cache_folder_of_its_own_the_home_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str | None
) -> None:
    if cache is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", str(tmp_path))
    source = ServiceSource("http://host", Wanted("950PR", ""))
    assert default_copy(source).parent == tmp_path / ".cache/pfatune/served"


def test_a_redirect_is_followed() -> None:
    with (
        StandIn(serve(GOOD)) as service,
        StandIn(redirect(f"{service.url}/configs?soc=950PR")) as old,
        TunedConfigs(old.url) as tuned,
    ):
        assert until(lambda: number(tuned) == 100)


def test_a_service_without_tags_is_read_whole_each_time() -> None:
    with StandIn(send(GOOD)) as service, TunedConfigs(service.url, refresh_seconds=0.02) as tuned:
        assert tuned.wait(20)
        assert until(lambda: service.answered.count(200) >= 3)
        assert tuned.lookup(SHAPE).config == config(100)
        assert tuned.status.error == ""


def test_a_service_that_serves_nothing_yet_is_no_error() -> None:
    with StandIn(serve(snapshot_of(Ladder()))) as service, TunedConfigs(service.url) as tuned:
        assert tuned.wait(20)
        assert tuned.lookup(SHAPE) == DEFAULT
        assert (tuned.status.origin, tuned.status.entries, tuned.status.error) == ("service", 0, "")


@pytest.mark.slow
def test_closing_does_not_wait_for_a_service_that_hangs() -> None:
    with StandIn(hang) as service:
        tuned = TunedConfigs(service.url, timeout=1)
        assert until(lambda: len(service.asked) == 1)
        start = time.monotonic()
        tuned.close()
        assert time.monotonic() - start < 3
        assert tuned.lookup(SHAPE) == DEFAULT


def test_a_snapshot_that_comes_after_closing_is_not_taken(tmp_path: Path) -> None:
    closed = threading.Event()

    def late(handler: object) -> None:
        closed.wait(20)
        serve(GOOD)(handler)  # type: ignore[arg-type]

    with StandIn(late) as service:
        tuned = TunedConfigs(service.url)
        assert until(lambda: len(service.asked) == 1)
        tuned._stop.set()
        closed.set()
        tuned.close()
        tuned._thread.join(10)
        assert tuned.lookup(SHAPE) == DEFAULT
    assert not (tmp_path / "cache").exists()


def test_the_document_is_not_kept_in_memory() -> None:
    with StandIn(serve(GOOD)) as service, TunedConfigs(service.url) as tuned:
        assert tuned.wait(20)
        assert until(lambda: tuned.status.origin == "service")
        assert tuned._answers.served.document == b""
