"""Traces of what is served and of its default: taken once, kept if they are of the run that was measured."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in import LARGE, NO_ROOM, SMALL, StandIn, default, rows_of, stand_in_pool

from pfatune.autotune.progress import Budget, Progress, TuneResult
from pfatune.autotune.sim import SimBackend
from pfatune.autotune.swimlane import Swimlane
from pfatune.autotune.trial import TrialPool
from pfatune.autotune.tuner import Tuner
from pfatune.db import Measurement, Store
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR


class Tracing(StandIn):
    """The stand-in with traces: whole cycles, and what was asked for in ``traced``."""

    traces = True

    def __init__(self, special: Callable[[KernelConfig], dict[str, Any]] = lambda config: {}) -> None:
        super().__init__(lambda config: {"whole": True, **special(config)})
        self.traced: list[tuple[KernelConfig, int]] = []

    def time_job(self, config: KernelConfig, workloads: Any, *, trace: bool = False) -> dict[str, Any]:
        if trace:
            self.traced.append((config, len(workloads)))
        return super().time_job(config, workloads, trace=trace)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuned.db") as opened:
        yield opened


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[TrialPool]:
    with stand_in_pool(tmp_path / "runs", tmp_path) as made:
        yield made
        assert made.running == 0


def tune(store: Store, backend: StandIn, pool: TrialPool, *workloads: Workload, **options: Any) -> TuneResult:
    return Tuner(store, backend, pool, workloads or (LARGE,), budget=Budget(12), **options).run()


def makespan(store: Store, row: Measurement) -> int | None:
    data = store.traces.get(row.id or 0)
    return None if data is None else Swimlane.from_json(json.loads(gzip.decompress(data))).makespan


def check_traced(store: Store, result: TuneResult) -> None:
    assert result.tuned
    for tuned in result.tuned:
        for row in (tuned.measurement, tuned.default):
            assert makespan(store, row) == row.cost


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_what_is_served_and_its_default_are_traced_once(store: Store, pool: TrialPool, parallel: int) -> None:
    backend = Tracing()
    seen: list[int] = []

    def watch(progress: Progress) -> None:
        seen.append(progress.tracing)
        assert progress.running >= progress.tracing + progress.verifying
        assert progress.to_json()["tracing"] == progress.tracing

    result = tune(store, backend, pool, LARGE, SMALL, parallel=parallel, watch=watch)
    check_traced(store, result)
    assert max(seen) >= 1
    assert (seen[-1], result.progress.trials) == (0, 12)  # a trace is no measurement
    assert len(rows_of(store, [LARGE, SMALL])) == 24
    served = {tuned.measurement.config for tuned in result.tuned}
    assert sorted(config.digest for config, _ in backend.traced) == sorted(
        config.digest for config in served | {default(LARGE), default(SMALL)}
    )
    again = Tracing()
    tune(store, again, pool, LARGE, SMALL)
    assert again.traced == []


@pytest.mark.slow
def test_only_what_is_new_is_traced(store: Store, pool: TrialPool) -> None:
    Tuner(store, Tracing(), pool, [LARGE], budget=Budget(1)).run()
    backend = Tracing()
    result = tune(store, backend, pool)
    check_traced(store, result)
    assert [config for config, _ in backend.traced] == [result.tuned[0].measurement.config]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("special", "warning"),
    [
        ({"trace": {"job": "segfault"}}, "was not traced (crashed: ended by signal SIGSEGV)"),
        ({"trace": NO_ROOM}, "was not traced (environment_fault: [Errno 28] No space left on device)"),
        ({"traced": 1}, "was not kept: it took"),
    ],
    ids=["crash", "machine", "other run"],
)
def test_a_trace_that_fails_is_only_told(store: Store, pool: TrialPool, special: dict[str, Any], warning: str) -> None:
    warnings: list[str] = []
    bad = default(LARGE)
    backend = Tracing(lambda config: special if config == bad else {})
    (tuned,) = tune(store, backend, pool, warn=warnings.append).tuned
    assert len(warnings) == 1
    assert warning in warnings[0]
    assert store.traces.get(tuned.default.id or 0) is None
    assert makespan(store, tuned.measurement) == tuned.cost
    # The next run tries once more.
    check_traced(store, tune(store, Tracing(), pool))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["drain", "cancel", "interrupt"])
def test_asked_to_stop_it_takes_no_trace(store: Store, pool: TrialPool, how: str) -> None:
    def watch(progress: Progress) -> None:
        if progress.tracing:
            if how == "interrupt":
                raise KeyboardInterrupt
            getattr(tuner, how)()

    backend = Tracing(lambda config: {"trace": {"job": "hang"}})
    tuner = Tuner(store, backend, pool, [LARGE], budget=Budget(12), watch=watch)
    result = tuner.run()
    assert len(backend.traced) == 1
    assert result.progress.drained == (how == "drain")
    assert result.progress.interrupted == (how != "drain")
    assert len(result.tuned) == 1
    assert store.traces.has(row.id or 0 for row in rows_of(store, [LARGE])) == set()
    check_traced(store, tune(store, Tracing(), pool))


@pytest.mark.sim
def test_the_embedded_worker_s_traces_are_of_the_runs_that_were_measured(tmp_path: Path) -> None:
    cache = Path(os.environ.get("PFATUNE_CACHE") or Path.home() / ".cache" / "pfatune")
    backend = SimBackend(ASCEND_950PR, cache)
    workload = Workload(PfaShape(b=1, s2=128))
    warnings: list[str] = []
    with Store.open(tmp_path / "tuned.db") as store, backend.pool() as pool:
        result = Tuner(store, backend, pool, [workload], budget=Budget(1), warn=warnings.append).run()
        check_traced(store, result)
        assert store.traces.has([result.tuned[0].default.id or 0])
    assert warnings == []
