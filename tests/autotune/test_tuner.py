"""The tuning loop over real processes: whatever configurations, machine and user do, nothing finished is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import (
    LARGE,
    NO_ROOM,
    RAGGED,
    SMALL,
    Special,
    StandIn,
    check_rows,
    cost_of,
    default,
    rows_of,
    stand_in_pool,
    starts,
)
from trial_tools import HERE, MIB, environ, marked, wait_until_gone

from pfatune.autotune.errors import DefaultFailedError, WorkerSetupError
from pfatune.autotune.progress import Budget, Progress, TuneResult, Watch
from pfatune.autotune.trial import TrialPool, TrialResult
from pfatune.autotune.tuner import Tuner
from pfatune.db import Kind, Measurement, Store, StoreError, Verification
from pfatune.db.errors import DatabaseFullError, DatabaseLockedError
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.slow

DEFAULT = default(LARGE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuned.db") as opened:
        yield opened


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TrialPool]:
    with stand_in_pool(tmp_path / "runs", tmp_path) as made:
        yield made
        assert made.running == 0
        assert set(marked(tmp_path)) <= {made.server_pid}
    assert wait_until_gone(tmp_path) == {}


def tune(
    store: Store,
    pool: TrialPool,
    backend: StandIn | None = None,
    workloads: Sequence[Workload] = (LARGE,),
    *,
    trials: int | None = 12,
    seconds: float | None = None,
    parallel: int = 1,
    watch: Watch = lambda progress: None,
) -> TuneResult:
    budget = Budget(trials, seconds)
    return Tuner(store, backend or StandIn(), pool, workloads, budget=budget, parallel=parallel, watch=watch).run()


def only(*configs: KernelConfig, **special: Any) -> Special:
    """Something special for these configurations, and nothing for others."""
    return lambda config: special if config in configs else {}


def but(config: KernelConfig, **special: Any) -> Special:
    """Something special for all others."""
    return lambda other: {} if other == config else special


def kinds(store: Store, config: KernelConfig) -> list[Kind]:
    return [row.kind for row in rows_of(store, [LARGE]) if row.config == config]


def test_the_default_is_measured_first_and_the_best_is_tuned(store: Store, pool: TrialPool) -> None:
    backend = StandIn()
    result = tune(store, pool, backend, trials=25)
    rows = rows_of(store, [LARGE])
    assert rows[0].config == DEFAULT
    assert rows[0].cost == cost_of(DEFAULT, LARGE)
    assert (len(rows), result.progress.trials, result.progress.known) == (25, 25, 0)
    assert result.progress.kinds == {Kind.OK: 25}
    assert all(row.cost == cost_of(row.config, LARGE) for row in rows)
    (tuned,) = result.tuned
    assert tuned.cost == min(row.cost for row in rows if row.cost is not None) < tuned.default_cost
    assert (tuned.default.config, tuned.default_cost) == (DEFAULT, rows[0].cost)
    assert tuned.verification.passed
    assert tuned.verification.config == tuned.measurement.config
    assert store.tuned(None, LARGE) == [tuned]
    assert result.progress.speedup == pytest.approx(tuned.speedup)
    assert backend.verified[0] == DEFAULT
    check_rows(store, [LARGE])


FAULTS: list[tuple[dict[str, Any], Kind, str]] = [
    ({"job": "segfault"}, Kind.CRASHED, "SIGSEGV"),
    ({"job": "raw_reply", "data": b"\xff{]garbage".hex()}, Kind.CRASHED, "JSON"),
    ({"job": "noise"}, Kind.CRASHED, "code 3"),
    ({"job": "stubborn"}, Kind.TIMEOUT, "time limit"),
    ({"job": "eat", "bytes": 600 * MIB, "step": 8 * MIB, "pause": 0.01}, Kind.OUT_OF_MEMORY, "memory limit"),
    ({"job": "fail", "error": "ValueError", "text": "tile shape not set"}, Kind.REJECTED, "tile shape"),
    ({"job": "fail", "error": "RuntimeError", "text": "Run pass failed", "log": "ub"}, Kind.DOES_NOT_FIT, "MEM_UB"),
]


def test_every_way_to_fail_is_stored_and_the_run_goes_on(store: Store, tmp_path: Path) -> None:
    faulty = dict(zip(starts(LARGE)[1:], FAULTS, strict=False))
    extra = StandIn(lambda config: {"time": faulty[config][0]} if config in faulty else {})
    left = FAULTS[len(faulty) :]
    with stand_in_pool(tmp_path / "runs", tmp_path, timeout=2) as pool:
        result = tune(store, pool, extra, trials=16)
        for fault, kind, message in left:  # more ways than starting points
            other = Workload(PfaShape(b=16, s2=4096 + len(message)))
            second = starts(other)[1]
            tune(store, pool, StandIn(only(second, time=fault)), [other], trials=4)
            (row,) = (row for row in rows_of(store, [other]) if row.config == second)
            assert (row.kind, row.cost) == (kind, None)
            assert message in row.message
    for config, (_, kind, message) in faulty.items():
        (row,) = (row for row in rows_of(store, [LARGE]) if row.config == config)
        assert (row.kind, row.cost) == (kind, None)
        assert message in row.message
        assert row.seconds > 0
    assert sum(result.progress.kinds.values()) == result.progress.trials == 16
    assert result.progress.kinds[Kind.OK] == 16 - len(faulty)
    (tuned,) = result.tuned
    assert tuned.measurement.config not in faulty
    assert tuned.cost == min(row.cost for row in rows_of(store, [LARGE]) if row.cost is not None)
    check_rows(store, [LARGE])


def test_wrong_numbers_are_never_served_however_fast(store: Store, pool: TrialPool) -> None:
    first, second = starts(LARGE)[2:4]
    special = {first: {"wrong": True, "factor": 0.01}, second: {"factor": 0.1}}
    backend = StandIn(lambda config: special.get(config, {}))
    result = tune(store, pool, backend)
    assert kinds(store, first) == [Kind.OK, Kind.WRONG_RESULT]
    (wrong,) = (row for row in rows_of(store, [LARGE]) if row.kind is Kind.WRONG_RESULT)
    assert wrong.message == "failed its check: 3 elements differ"
    assert result.progress.kinds == {Kind.OK: 11, Kind.WRONG_RESULT: 1}
    (tuned,) = result.tuned
    assert tuned.measurement.config == second
    assert tuned.verification.passed
    env_id = store.environment_id(backend.environment)
    verdict = store.verification(env_id, LARGE.shape.family, first.digest)
    assert verdict is not None
    assert not verdict.passed
    again = tune(store, pool, StandIn(), trials=12)
    assert again.tuned == result.tuned
    assert again.progress.kinds == result.progress.kinds


def test_the_next_best_is_served_when_the_best_are_wrong(store: Store, pool: TrialPool) -> None:
    *wrong, right = starts(LARGE)[1:5]
    special = {config: {"factor": 0.1 + 0.1 * place, "wrong": True} for place, config in enumerate(wrong)}
    special[right] = {"factor": 0.5}
    result = tune(store, pool, StandIn(lambda config: special.get(config, {"factor": 2})), parallel=2)
    assert [tuned.measurement.config for tuned in result.tuned] == [right]
    assert result.progress.kinds == {Kind.OK: 9, Kind.WRONG_RESULT: 3}
    assert {row.config for row in rows_of(store, [LARGE]) if row.kind is Kind.WRONG_RESULT} == set(wrong)


def test_a_check_that_does_not_finish_has_not_passed(store: Store, pool: TrialPool) -> None:
    fast = starts(LARGE)[1]
    result = tune(store, pool, StandIn(only(fast, factor=0.1, verify={"job": "segfault"})))
    assert kinds(store, fast) == [Kind.OK, Kind.WRONG_RESULT]
    (wrong,) = (row for row in rows_of(store, [LARGE]) if row.kind is Kind.WRONG_RESULT)
    assert wrong.message == "failed its check: crashed: ended by signal SIGSEGV"
    assert result.tuned[0].measurement.config != fast


def test_a_fault_of_the_machine_is_tried_again(store: Store, pool: TrialPool, tmp_path: Path) -> None:
    fast = starts(LARGE)[1]
    once = {what: {**NO_ROOM, "once": str(tmp_path / what)} for what in ("time", "verify")}
    backend = StandIn(only(fast, factor=0.1, **once))
    result = tune(store, pool, backend)
    assert (backend.timed.count(fast), backend.verified.count(fast)) == (2, 2)
    assert kinds(store, fast) == [Kind.OK]
    assert result.tuned[0].measurement.config == fast
    assert result.progress.kinds == {Kind.OK: 12}


def test_a_configuration_that_brings_the_machine_down_is_neither_ranked_nor_counted(
    store: Store, pool: TrialPool
) -> None:
    bad = starts(LARGE)[1]
    backend = StandIn(only(bad, time=NO_ROOM))
    result = tune(store, pool, backend, trials=40)
    assert backend.timed.count(bad) == 3
    assert kinds(store, bad) == [Kind.ENVIRONMENT_FAULT]
    assert result.progress.trials == 40
    assert result.progress.kinds == {Kind.OK: 40}
    assert result.tuned[0].measurement.config != bad
    # It says nothing of the configuration: another run tries it again.
    better = StandIn()
    assert tune(store, pool, better, trials=41).progress.kinds == {Kind.OK: 41}
    check_rows(store, [LARGE])


def test_what_cannot_be_checked_here_is_checked_by_the_next_run(store: Store, pool: TrialPool) -> None:
    fast, second = starts(LARGE)[1:3]
    special = {fast: {"factor": 0.1, "verify": NO_ROOM}, second: {"factor": 0.2}}
    backend = StandIn(lambda config: special.get(config, {}))
    result = tune(store, pool, backend)
    assert result.tuned[0].measurement.config == second
    assert backend.verified.count(fast) == 3
    assert kinds(store, fast) == [Kind.OK]
    backend = StandIn()
    result = tune(store, pool, backend)
    assert backend.timed == []
    assert result.tuned[0].measurement.config == fast


def test_a_machine_that_fails_every_trial_ends_the_run(store: Store, pool: TrialPool) -> None:
    backend = StandIn(but(DEFAULT, time=NO_ROOM))
    with pytest.raises(WorkerSetupError, match="No space left on device") as caught:
        tune(store, pool, backend, trials=1000)
    assert "\n" not in str(caught.value)
    assert len(backend.timed) < 30
    result = tune(store, pool, StandIn())
    assert result.progress.known == 1
    assert result.progress.trials == 12


def test_a_second_run_does_nothing_and_a_larger_budget_goes_on(store: Store, pool: TrialPool) -> None:
    first = tune(store, pool, trials=8)
    again, larger = StandIn(), StandIn()
    second = tune(store, pool, again, trials=8)
    assert (again.timed, again.verified) == ([], [])
    assert (second.progress.known, second.progress.trials) == (8, 8)
    assert second.tuned == first.tuned
    third = tune(store, pool, larger, trials=20)
    assert len(larger.timed) == 12
    assert (third.progress.known, third.progress.trials) == (8, 20)
    assert len(rows_of(store, [LARGE])) == 20
    check_rows(store, [LARGE])


def test_a_smaller_budget_than_is_known_measures_nothing(store: Store, pool: TrialPool) -> None:
    tune(store, pool, trials=8)
    backend = StandIn()
    assert tune(store, pool, backend, trials=3).progress.trials == 8
    assert backend.timed == []


def test_a_budget_in_seconds_ends_what_is_running(store: Store, pool: TrialPool) -> None:
    started = time.monotonic()
    result = tune(store, pool, StandIn(but(DEFAULT, time={"job": "stubborn"})), trials=None, seconds=1.5, parallel=2)
    assert 1.5 <= time.monotonic() - started < 60
    assert len(rows_of(store, [LARGE])) == result.progress.trials == 1
    assert not result.progress.interrupted
    assert [tuned.speedup for tuned in result.tuned] == [1.0]


def test_a_budget_in_seconds_is_spent_whole(store: Store, pool: TrialPool) -> None:
    started = time.monotonic()
    result = tune(store, pool, trials=None, seconds=1.5)
    assert 1.4 < time.monotonic() - started < 60
    assert result.progress.trials > 3
    assert result.tuned[0].speedup > 1


def test_workloads_of_a_family_share_trials_and_are_served_apart(store: Store, pool: TrialPool) -> None:
    workloads = (LARGE, SMALL, RAGGED)
    backend = StandIn()
    result = tune(store, pool, backend, workloads, trials=30)
    rows = rows_of(store, workloads)
    assert (len(backend.timed), len(rows), result.progress.trials) == (30, 90, 30)
    assert {row.config for row in rows[:6]} == {default(LARGE), default(SMALL)}
    check_rows(store, workloads)
    assert [tuned.workload for tuned in result.tuned] == list(workloads)
    for tuned in result.tuned:
        costs = [row.cost for row in rows if row.workload == tuned.workload and row.cost is not None]
        assert tuned.cost == min(costs)
        assert tuned.default.config == default(tuned.workload)
        assert tuned.verification.config == tuned.measurement.config
    assert len({tuned.measurement.config.tile.s2_tile for tuned in result.tuned}) > 1


def test_a_workload_added_later_is_measured_where_it_is_missing(store: Store, pool: TrialPool) -> None:
    tune(store, pool, workloads=[SMALL], trials=10)
    backend = StandIn()
    result = tune(store, pool, backend, [SMALL, RAGGED], trials=10)
    assert result.progress.trials == 10
    check = [(row.config, row.workload) for row in rows_of(store, [SMALL, RAGGED]) if row.kind is Kind.OK]
    assert len(set(check)) == len(check)
    assert len(result.tuned) == 2
    # Numbers hold for a family: what the first run checked is not checked again.
    assert default(SMALL) not in backend.verified


def test_what_is_wrong_for_one_workload_is_wrong_for_its_family(store: Store, pool: TrialPool) -> None:
    wrong = starts(SMALL)[1]
    tune(store, pool, StandIn(only(wrong, factor=0.01, wrong=True)), [SMALL])
    backend = StandIn(only(wrong, factor=0.01))
    result = tune(store, pool, backend, [RAGGED], trials=30)
    assert wrong in backend.timed
    assert wrong not in backend.verified
    assert result.tuned[0].measurement.config != wrong
    assert result.progress.kinds[Kind.WRONG_RESULT] == 1


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_so_many_trials_run_at_once_and_no_more(store: Store, pool: TrialPool, parallel: int) -> None:
    running = []

    def watch(progress: Progress) -> None:
        running.append(progress.running)
        assert pool.running <= parallel

    backend = StandIn(lambda config: {"seconds": 0.05})
    result = tune(store, pool, backend, [LARGE, SMALL], trials=20, parallel=parallel, watch=watch)
    assert max(running) == parallel
    assert len(backend.timed) == len(set(backend.timed)) == result.progress.trials == 20
    assert len(result.tuned) == 2
    assert all(tuned.speedup >= 1 for tuned in result.tuned)
    check_rows(store, [LARGE, SMALL])


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 9, 12, 16])
@pytest.mark.parametrize("parallel", [1, 3])
def test_drained_it_starts_nothing_more_and_keeps_what_runs(
    store: Store, pool: TrialPool, at: int, parallel: int
) -> None:
    backend = StandIn()
    begun: list[int] = []

    def watch(progress: Progress) -> None:
        begun.append(progress.running)
        if len(begun) == at:
            tuner.drain()
            begun.append(len(backend.timed) + len(backend.verified))

    tuner = Tuner(store, backend, pool, [LARGE, SMALL], budget=Budget(12), parallel=parallel, watch=watch)
    result = tuner.run()
    assert (result.progress.drained, result.progress.interrupted) == (True, False)
    assert result.progress.running == pool.running == 0
    assert len(backend.timed) + len(backend.verified) == begun[at]
    rows = rows_of(store, [LARGE, SMALL])
    assert len(rows) == 2 * len(backend.timed)  # all that was begun is kept
    assert {row.kind for row in rows} <= {Kind.OK}
    resumed = tune(store, pool, StandIn(), [LARGE, SMALL])
    assert (resumed.progress.known, resumed.progress.trials) == (len(backend.timed), 12)
    assert not resumed.progress.drained
    check_rows(store, [LARGE, SMALL])


@pytest.mark.parametrize("before", [True, False])
def test_cancelled_from_another_thread_it_stops_at_once(store: Store, pool: TrialPool, before: bool) -> None:
    backend = StandIn(but(DEFAULT, time={"job": "stubborn"}))
    tuner = Tuner(store, backend, pool, [LARGE], budget=Budget(12))
    timer = threading.Timer(0 if before else 1.5, tuner.cancel)
    timer.start()
    if before:
        timer.join()
    started = time.monotonic()
    result = tuner.run()
    timer.join()
    assert time.monotonic() - started < 15
    assert (result.progress.drained, result.progress.interrupted) == (False, True)
    assert result.progress.running == pool.running == 0
    assert [row.kind for row in rows_of(store, [LARGE])] == ([] if before else [Kind.OK])
    assert len(result.tuned) == (0 if before else 1)


def test_a_store_that_fails_leaves_the_pool_free(
    store: Store, pool: TrialPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is used again after it; what a dead run left in it would be taken for another's."""
    add = store.add
    seconds = {default(LARGE): 0.0, default(SMALL): 0.0}
    durations = iter([0.1, 0.2, 30.0, 30.0, 30.0])

    def refuse(env_id: int, rows: Sequence[Measurement]) -> list[int]:
        if rows[0].config in {default(LARGE), default(SMALL)}:
            return add(env_id, rows)
        time.sleep(0.5)  # a second trial ends, a third still runs
        raise DatabaseFullError(name="test", detail="full")

    def special(config: KernelConfig) -> dict[str, Any]:
        if config not in seconds:
            seconds[config] = next(durations)
        return {"seconds": seconds[config]}

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", refuse)
        with pytest.raises(DatabaseFullError):
            tune(store, pool, StandIn(special), [LARGE, SMALL], parallel=3)
    assert pool.running == 0
    assert len(rows_of(store, [LARGE, SMALL])) == 4
    assert tune(store, pool, StandIn(), [LARGE, SMALL]).progress.trials == 12
    check_rows(store, [LARGE, SMALL])


@pytest.mark.parametrize("method", ["add", "add_verification", "promote"])
def test_a_refused_write_is_tried_again_for_as_long_as_it_is_asked_to(
    store: Store, pool: TrialPool, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    write = getattr(store, method)
    refused: list[StoreError] = []

    def refuse_some(*args: object) -> object:
        if len(refused) < 3:
            raise DatabaseLockedError(name="test", seconds=1)
        return write(*args)

    def wait(error: StoreError) -> bool:
        refused.append(error)
        return True

    monkeypatch.setattr(store, method, refuse_some)
    result = Tuner(store, StandIn(), pool, [LARGE], budget=Budget(12), wait_for_store=wait).run()
    assert len(refused) == 3
    assert result.progress.trials == 12
    assert len(result.tuned) == 1
    check_rows(store, [LARGE])


class Together(TrialPool):
    """Hands over all that runs at once, and remembers what it handed over."""

    handed: list[TrialResult]

    def wait(self, timeout: float | None = None) -> list[TrialResult]:
        done = super().wait(timeout)
        while done and self.running:
            done += super().wait(timeout)
        self.handed = [*getattr(self, "handed", []), *done]
        return done


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16])
def test_an_interrupt_keeps_everything_that_finished(store: Store, tmp_path: Path, at: int) -> None:
    calls = 0

    def watch(progress: Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt

    once = str(tmp_path / "once")
    backend = StandIn(lambda config: {} if config == DEFAULT else {"time": {**NO_ROOM, "once": once}})
    with stand_in_pool(tmp_path / "runs", tmp_path, pool=Together) as pool:
        assert isinstance(pool, Together)
        result = tune(store, pool, backend, parallel=3, watch=watch)
        assert result.progress.interrupted
        assert pool.running == 0
        assert set(marked(tmp_path)) == {pool.server_pid}
        finished = {
            KernelConfig.from_json(done.job["config"])
            for done in getattr(pool, "handed", [])
            if done.kind is Kind.OK and done.job["job"] == "time"
        }
        assert {row.config for row in rows_of(store, [LARGE]) if row.kind is Kind.OK} == finished
        check_rows(store, [LARGE])
        resumed = tune(store, pool, StandIn())
        assert resumed.progress.known == len(finished)
        assert resumed.progress.trials == 12
        assert resumed.tuned[0].speedup > 1
        check_rows(store, [LARGE])


def test_an_interrupt_while_the_pool_waits_ends_the_run(store: Store, tmp_path: Path) -> None:
    """A signal may come anywhere: the result the pool was about to hand over is lost, and nothing waits for it."""

    class Interrupted(TrialPool):
        count = 0

        def wait(self, timeout: float | None = None) -> list[TrialResult]:
            done = super().wait(timeout)
            self.count += bool(done)
            if self.count == 5:
                raise KeyboardInterrupt
            return done

    with stand_in_pool(tmp_path / "runs", tmp_path, pool=Interrupted) as pool:
        assert tune(store, pool).progress.interrupted
        assert pool.running == 0


def test_what_an_interrupt_left_unchecked_is_checked_by_the_next_run(store: Store, pool: TrialPool) -> None:
    backend = StandIn()
    env_id = store.environment_id(backend.environment)
    tune(store, pool, backend, trials=3)
    fast = replace(starts(LARGE)[1], stitch_function_max_num=16)
    store.add(env_id, [Measurement(LARGE, fast, Kind.OK, 0.5)])
    result = tune(store, pool, backend, trials=4)
    assert result.tuned[0].measurement.config == fast


def test_only_what_would_be_served_is_checked(store: Store, pool: TrialPool) -> None:
    """Many fast ones that nobody has checked: the fastest is enough."""
    backend = StandIn()
    env_id = store.environment_id(backend.environment)
    tune(store, pool, backend, trials=1)
    base = starts(LARGE)[1]
    configs = [replace(base, stitch_function_max_num=number) for number in range(2, 30)]
    store.add(
        env_id, [Measurement(LARGE, config, Kind.OK, float(len(configs) - n)) for n, config in enumerate(configs)]
    )
    backend = StandIn()
    result = tune(store, pool, backend, trials=1)
    assert backend.verified == [configs[-1]]
    assert result.tuned[0].measurement.config == configs[-1]


def test_a_verdict_whose_rows_a_crash_took_still_counts(store: Store, pool: TrialPool) -> None:
    backend = StandIn()
    env_id = store.environment_id(backend.environment)
    tune(store, pool, backend, trials=3)
    fast = replace(starts(LARGE)[1], stitch_function_max_num=16)
    store.add(env_id, [Measurement(LARGE, fast, Kind.OK, 0.5)])
    store.add_verification(env_id, Verification(LARGE.shape.family, fast, False, 0.5, (LARGE.shape,), "wrong"))
    result = tune(store, pool, backend, trials=4)
    assert result.progress.kinds == {Kind.OK: 3, Kind.WRONG_RESULT: 1}
    assert result.tuned[0].measurement.config != fast


def test_a_killed_run_loses_nothing_it_has_shown(tmp_path: Path) -> None:
    database, mark = tmp_path / "tuned.db", tmp_path / "mark"
    command = [sys.executable, str(HERE / "tuner_parent.py"), str(database), str(tmp_path / "runs"), str(mark), "60"]
    shown: set[str] = set()
    for wanted in (1, 3, 6, 9):  # finished measurements before the kill
        with subprocess.Popen(command, env=environ(mark), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(wanted):
                shown.add(process.stdout.readline().strip())
            process.send_signal(signal.SIGKILL)
            shown |= {line.strip() for line in process.stdout if line.endswith("\n")}
        assert wait_until_gone(mark) == {}
        with Store.open(database) as store:
            stored = {f"{row.config.digest} {row.kind}" for row in rows_of(store, [LARGE])}
            assert shown <= stored
            check_rows(store, [LARGE, SMALL])
    assert len(shown) >= 19
    done = subprocess.run(command, env=environ(mark), capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    assert not shown & set(done.stdout.splitlines())
    with Store.open(database) as store:
        check_rows(store, [LARGE, SMALL])
        rows = rows_of(store, [LARGE])
        assert len({row.config for row in rows}) == 60
        for workload in (LARGE, SMALL):
            (tuned,) = store.tuned(None, workload)
            costs = [row.cost for row in rows_of(store, [workload]) if row.cost is not None]
            assert tuned.cost == min(costs)
    assert wait_until_gone(mark) == {}


@pytest.mark.parametrize(
    ("special", "reason"),
    [
        ({"time": {"job": "segfault"}}, "crashed: ended by signal SIGSEGV"),
        ({"time": {"job": "fail", "error": "ValueError", "text": "odd\nand more"}}, "rejected: odd; and more"),
        ({"time": NO_ROOM}, "environment_fault: [Errno 28] No space left on device"),
        ({"wrong": True}, "wrong_result: failed its check: 3 elements differ"),
    ],
    ids=["crash", "rejected", "machine", "wrong"],
)
@pytest.mark.parametrize("parallel", [1, 3])
def test_a_default_that_fails_ends_the_run(
    store: Store, pool: TrialPool, special: dict[str, Any], reason: str, parallel: int
) -> None:
    backend = StandIn(only(DEFAULT, **special))
    for _ in range(2):  # a second run says the same
        with pytest.raises(DefaultFailedError) as caught:
            tune(store, pool, backend, parallel=parallel)
        assert str(caught.value) == f"the default configuration of {LARGE} cannot be measured ({reason})"
        assert pool.running == 0
    assert store.tuned(None, LARGE) == []


def test_an_illegal_default_ends_the_run_before_anything_is_measured(store: Store, pool: TrialPool) -> None:
    backend = StandIn()
    workload = Workload(PfaShape(b=2, s2=8192, block_size=96))
    with pytest.raises(
        DefaultFailedError, match=r"illegal here: unroll_list makes one step of 8448 tokens, limit 8192"
    ):
        tune(store, pool, backend, [workload])
    assert backend.timed == []


def test_where_nothing_is_faster_the_default_itself_is_served(store: Store, pool: TrialPool) -> None:
    result = tune(store, pool, StandIn(only(DEFAULT, factor=0.01)))
    assert [(tuned.measurement.config, tuned.speedup) for tuned in result.tuned] == [(DEFAULT, 1.0)]
    assert result.progress.speedup == 1.0


def test_among_equals_the_default_is_served(store: Store, pool: TrialPool) -> None:
    equal = starts(LARGE)[1]
    factor = cost_of(DEFAULT, LARGE) / cost_of(equal, LARGE)
    special = {DEFAULT: {"factor": 1}, equal: {"factor": factor}}
    backend = StandIn(lambda config: special.get(config, {"factor": 1000}))
    result = tune(store, pool, backend)
    assert [row.cost for row in rows_of(store, [LARGE]) if row.config == equal] == [cost_of(DEFAULT, LARGE)]
    assert [(tuned.measurement.config, tuned.speedup) for tuned in result.tuned] == [(DEFAULT, 1.0)]


@pytest.mark.parametrize("parallel", [0, -1])
def test_at_least_one_trial_at_a_time(store: Store, pool: TrialPool, parallel: int) -> None:
    with pytest.raises(ValueError, match=f"parallel is {parallel}: give at least 1"):
        tune(store, pool, parallel=parallel)


def test_no_workload_is_refused(store: Store, pool: TrialPool) -> None:
    with pytest.raises(ValueError, match="0 families"):
        tune(store, pool, workloads=[])


def test_the_time_left_is_guessed_from_the_pace() -> None:
    progress = Progress((LARGE,), "us", Budget(20))
    assert progress.seconds_left is None
    progress.known, progress.trials, progress.elapsed = 4, 8, 10.0
    assert progress.seconds_left == pytest.approx(30)
    progress.budget = Budget(20, 12.0)
    assert progress.seconds_left == pytest.approx(2)
    progress.elapsed = 40.0
    assert progress.seconds_left == 0
