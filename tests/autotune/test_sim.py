"""The embedded worker with the real compiler, cost model and interpreter, on small problems."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trial_tools import HERE, MIB

from pfatune.autotune import sim
from pfatune.autotune.progress import Budget
from pfatune.autotune.sim import SimBackend
from pfatune.autotune.trial import TrialPool, TrialResult
from pfatune.autotune.tuner import Tuner
from pfatune.db import Kind, Store
from pfatune.kernel.config import KernelConfig, PfaTileShapeConfig, canonical, default_config
from pfatune.kernel.legality import violations
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950DT, ASCEND_950PR

pytestmark = pytest.mark.sim

#: Kept from run to run: the interpreter takes a minute to build.
CACHE = Path(os.environ.get("PFATUNE_CACHE") or Path.home() / ".cache" / "pfatune")
AT_ONCE = 2

FAMILY = PfaFamily()
WORKLOADS = (
    Workload(PfaShape(b=2, s2=1024)),
    Workload(PfaShape(b=4, s2=512)),
    Workload(PfaShape(b=3, s2=700), (700, 1, 387)),
)
#: Every tile as large as its tensor or smaller, in two passes of the loop and a rest.
CONFIG = KernelConfig(
    tile=PfaTileShapeConfig(
        g_tile=12,
        s2_tile=256,
        c1_tile_shape=((16, 16), (128, 128), (256, 256)),
        v1_tile_shape=(12, 128),
        c2_tile_shape=((16, 16), (256, 256), (128, 128)),
        v2_tile_shape=(12, 128),
    ),
    unroll_list=(2, 1),
    cube_l1_reuse_setting=((-1, 8),),
    vec_nbuffer_setting=((-1, 4),),
    cube_nbuffer_setting=((-1, 4),),
    stitch_function_max_num=128,
)


def with_tile(config: KernelConfig, **changed: Any) -> KernelConfig:
    return replace(config, tile=replace(config.tile, **changed))


#: Other spellings of CONFIG: sizes beyond a tensor, L1 sizes that nobody reads, lists in another order.
SPELLINGS = {
    "c1": with_tile(CONFIG, c1_tile_shape=((128, 128), (256, 256), (256, 256))),
    "c2": with_tile(CONFIG, c2_tile_shape=((128, 128), (256, 512), (256, 256))),
    "l1": with_tile(
        CONFIG,
        c1_tile_shape=((16, 64), (128, 128), (512, 512)),
        c2_tile_shape=((16, 32), (256, 256), (128, 256)),
    ),
    "vector": with_tile(CONFIG, v1_tile_shape=(64, 128), v2_tile_shape=(128, 256)),
    "unroll": replace(CONFIG, unroll_list=(1, 2, 2)),
    "stitch": replace(CONFIG, stitch_function_max_num=512),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def backend(home: Path) -> Iterator[SimBackend]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        patch.setattr(sim, "JOBS", "sim_jobs")
        yield SimBackend(ASCEND_950PR, CACHE)


@pytest.fixture(scope="module")
def pool(backend: SimBackend) -> Iterator[TrialPool]:
    with backend.pool() as made:
        yield made


def run(pool: TrialPool, *jobs: dict[str, Any]) -> list[TrialResult]:
    """The results of the jobs, in their order."""
    waiting, order, done = list(jobs), list[int](), dict[int, TrialResult]()
    while waiting or pool.running:
        while waiting and pool.running < AT_ONCE:
            order.append(pool.submit(waiting.pop(0)))
        done |= {result.trial: result for result in pool.wait()}
    return [done[trial] for trial in order]


def costs(result: TrialResult) -> list[int]:
    assert (result.kind, result.message) == (Kind.OK, "")
    assert result.reply is not None
    return [item["cost"] for item in result.reply["results"]]


@pytest.fixture(scope="module")
def one_by_one(backend: SimBackend, pool: TrialPool) -> list[int]:
    """Cycles of CONFIG on each workload, each in a process that knows no other."""
    return [costs(result)[0] for result in run(pool, *(backend.time_job(CONFIG, [one]) for one in WORKLOADS))]


def test_one_trial_times_many_workloads_as_trials_of_their_own_would(
    backend: SimBackend, pool: TrialPool, one_by_one: list[int]
) -> None:
    (result,) = run(pool, backend.time_job(CONFIG, WORKLOADS))
    assert costs(result) == one_by_one
    assert len(set(one_by_one)) == len(WORKLOADS)
    rows = backend.measurements(CONFIG, WORKLOADS, result, study="s")
    assert [(row.workload, row.cost, row.kind, row.study) for row in rows] == [
        (workload, cost, Kind.OK, "s") for workload, cost in zip(WORKLOADS, one_by_one, strict=True)
    ]
    assert sum(row.seconds for row in rows) == pytest.approx(result.seconds)
    for row in rows:
        assert 0 < row.run_seconds < row.seconds
        assert 0 < row.compile_seconds < result.seconds
        assert 50 * MIB < row.peak_bytes == result.peak_bytes


def test_what_is_canonically_equal_takes_the_same_cycles(
    backend: SimBackend, pool: TrialPool, one_by_one: list[int]
) -> None:
    assert canonical(CONFIG, FAMILY) == CONFIG
    assert violations(CONFIG, FAMILY, ASCEND_950PR) == []
    for spelling in SPELLINGS.values():
        assert spelling != CONFIG
        assert canonical(spelling, FAMILY) == CONFIG
    results = run(pool, *(backend.time_job(spelling, WORKLOADS[:1]) for spelling in SPELLINGS.values()))
    cycles = {name: costs(result) for name, result in zip(SPELLINGS, results, strict=True)}
    assert cycles == dict.fromkeys(SPELLINGS, one_by_one[:1])


def small(family: PfaFamily, **changed: Any) -> KernelConfig:
    """One pass of one page, unless changed: the least that can be compiled and checked."""
    config = replace(default_config(PfaShape(b=1, s2=128, nq=family.nq, nkv=family.nkv)), unroll_list=(1,))
    return with_tile(config, **changed)


def test_right_numbers_pass(backend: SimBackend, pool: TrialPool) -> None:
    several = PfaFamily(s1=2, nq=12, nkv=2)
    checks = [
        (default_config(PfaShape(b=2, s2=1024)), FAMILY),
        (replace(small(FAMILY, g_tile=4), unroll_list=(2, 1)), FAMILY),
        (small(several, g_tile=3, s2_tile=256, v2_tile_shape=(1, 64)), several),
        (
            small(FAMILY, s2_tile=1024, v1_tile_shape=(12, 1024), c2_tile_shape=((16, 16), (128, 1024), (128, 128))),
            FAMILY,
        ),
    ]
    checks = [(canonical(config, family), family) for config, family in checks]
    results = run(pool, *(backend.verify_job(config, family) for config, family in checks))
    for (config, family), result in zip(checks, results, strict=True):
        assert violations(config, family, ASCEND_950PR) == []
        verdict = backend.verification(config, family, result)
        assert (verdict.passed, verdict.max_abs_diff, verdict.message) == (True, 0.0, "")
        assert result.reply is not None
        assert len(result.reply["stages"]) == 2


def test_wrong_numbers_do_not_pass(backend: SimBackend, pool: TrialPool) -> None:
    config = canonical(small(FAMILY), FAMILY)
    job = backend.verify_job(config, FAMILY)
    drops_the_rest = replace(with_tile(config, s2_tile=256), unroll_list=(2,))
    jobs = {
        "softmax scale": {**job, "job": "verify_wrong", "wrong": {"softmax_scale": 1.001 * 128**-0.5}},
        "scale of P": {**job, "job": "verify_wrong", "wrong": {"quant_max": 100.0}},
        "rounding of P": {**job, "job": "verify_other_golden", "wrong": {"round_to_whole": False}},
        "unroll without 1": backend.verify_job(drops_the_rest, FAMILY),
    }
    for name, result in zip(jobs, run(pool, *jobs.values()), strict=True):
        verdict = backend.verification(config, FAMILY, result)
        assert (name, result.kind, verdict.passed) == (name, Kind.OK, False)
        assert "differs from golden" in verdict.message
        assert verdict.max_abs_diff is None or verdict.max_abs_diff > 0


def test_what_the_compiler_refuses_says_why(backend: SimBackend, pool: TrialPool) -> None:
    config = canonical(small(FAMILY, v2_tile_shape=(12, 40)), FAMILY)
    assert [violation.field for violation in violations(config, FAMILY, ASCEND_950PR)] == ["v2_tile_shape"]
    (result,) = run(pool, backend.time_job(config, WORKLOADS[:1]))
    assert result.kind in {Kind.REJECTED, Kind.CRASHED}
    assert "align" in result.message.lower()
    rows = backend.measurements(config, WORKLOADS, result)
    assert [(row.kind, row.cost) for row in rows] == [(result.kind, None)] * len(WORKLOADS)


def test_a_run_of_the_loop_serves_what_was_measured_and_checked(
    backend: SimBackend, pool: TrialPool, tmp_path: Path
) -> None:
    workloads = [Workload(PfaShape(b=2, s2=512)), Workload(PfaShape(b=3, s2=300), (300, 2, 130))]
    with Store.open(tmp_path / "tuned.db") as store:
        result = Tuner(store, backend, pool, workloads, budget=Budget(3), parallel=AT_ONCE).run()
        assert result.progress.kinds == {Kind.OK: 3}
        for workload, tuned in zip(workloads, result.tuned, strict=True):
            assert store.tuned(None, workload) == [tuned]
            assert tuned.default.config == canonical(default_config(workload.shape), FAMILY)
            assert tuned.verification.passed
            assert tuned.speedup >= 1


def test_chips_are_environments_of_their_own(backend: SimBackend) -> None:
    other = SimBackend(ASCEND_950DT, CACHE)
    assert other.environment.digest != backend.environment.digest
    assert (backend.environment.soc, other.environment.soc) == ("950PR", "950DT")
    assert backend.environment.unit == other.environment.unit == "cycles"
    assert SimBackend(ASCEND_950PR, CACHE).environment == backend.environment


def test_private_names_are_there(pool: TrialPool) -> None:
    (result,) = run(pool, {"job": "missing_names"})
    assert result.reply == {"missing": []}


def test_nothing_is_left_on_disk(backend: SimBackend, home: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with backend.pool() as pool:
            place, timed, checked = run(
                pool,
                {"job": "where"},
                backend.time_job(CONFIG, WORKLOADS[:1]),
                backend.verify_job(canonical(small(FAMILY), FAMILY), FAMILY),
            )
            assert place.reply is not None
            folder = Path(place.reply["folder"]).parent
            assert folder.parent == (CACHE / "runs").resolve()
            assert {path.name for path in folder.iterdir()} <= {"lock", "log", "pypto", "server.log"}
            assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MIB
    assert not folder.exists()
    assert list(home.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    assert timed.peak_bytes > 50 * MIB
    assert checked.peak_bytes > 50 * MIB
