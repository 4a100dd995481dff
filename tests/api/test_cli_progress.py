"""Progress as lines and as JSON, the stop on a signal, and numbers for people."""

from __future__ import annotations

import json
import signal

import pytest

from pfatune.api.cli.output import cost_text, duration, speedup_text
from pfatune.api.cli.progress import JsonReport, LineReport
from pfatune.api.cli.stop import Stop
from pfatune.autotune.progress import Budget, Progress
from pfatune.db import Kind
from pfatune.kernel.shapes import PfaShape, Workload

WORKLOAD = Workload(PfaShape(2, 1024))


def advance(progress: Progress, kind: Kind, cost: float | None = None) -> None:
    progress.trials += 1
    progress.kinds[kind] = progress.kinds.get(kind, 0) + 1
    progress.last = f"0123456789abcdef {kind}"
    progress.elapsed += 7
    if cost is not None:
        progress.default.setdefault(WORKLOAD, cost)
        progress.best[WORKLOAD] = min(cost, progress.best.get(WORKLOAD, cost))


def test_lines_tell_changes_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    report = LineReport()
    progress = Progress((WORKLOAD,), "cycles", Budget(40))
    report.start([WORKLOAD], "heading")
    for cost in (2000.0, 2000.0, 1500.0, None, *[1600.0] * 20):
        advance(progress, Kind.OK if cost else Kind.CRASHED, cost)
        for _ in range(50):  # mere ticks
            report.watch(progress)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "heading"
    assert lines[2] == "[00:07] default: 2,000 cycles (cost model)"
    assert "best 1,500 cycles (cost model), 1.33x as fast as the default" in lines[3]
    assert lines[4].endswith("0123456789abcdef crashed")
    assert lines[5].startswith("[01:10] 10 of 40 trials: 9 ok, 1 crashed; about")
    assert lines[6].startswith("[02:20] 20 of 40 trials: 19 ok, 1 crashed")
    assert len(lines) == 7


def test_json_lines_are_one_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    report = JsonReport()
    progress = Progress((WORKLOAD,), "cycles", Budget(None, 100.0))
    for step in range(5):
        advance(progress, Kind.OK, 100.0 - step)
        for _ in range(50):
            progress.elapsed += 0.5
            report.watch(progress)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["trials"] for document in documents] == [1, 2, 3, 4, 5]
    assert documents[-1]["best_cost"] == [96.0]
    assert documents[-1]["speedup"] == pytest.approx(100 / 96)


def test_a_signal_stops_at_once_outside_a_run() -> None:
    stop = Stop()
    with pytest.raises(KeyboardInterrupt):
        stop._handle(signal.SIGTERM, None)
    assert stop.exit_code == 143


def test_a_signal_waits_for_a_safe_place_within_a_run_but_not_for_ever() -> None:
    stop = Stop()
    with stop.deferred():
        stop.check()
        stop._handle(signal.SIGINT, None)
        stop._handle(signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            stop._handle(signal.SIGINT, None)
    assert stop.exit_code == 130


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (3600, "1 h 0 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_costs_have_their_unit() -> None:
    assert cost_text(1024838.0) == "1,024,838 cycles (cost model)"
    assert cost_text(12.3456, "npu") == "12.35 us"
    assert speedup_text(1.2345) == "1.23x"


@pytest.mark.torch
def test_the_tolerance_that_is_shown_is_the_golden_s() -> None:
    from pfatune.api.cli.verify import TOLERANCE
    from pfatune.kernel.golden import ATOL, RTOL

    assert TOLERANCE == (RTOL, ATOL)
