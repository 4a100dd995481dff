"""The preloaded shortcuts change what a trial costs, never what it finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pfatune.api.settings import Settings
from pfatune.autotune import shortcuts
from pfatune.autotune.sim import JOBS, SimBackend
from pfatune.autotune.trial import TrialPool
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR


def configs(shape: PfaShape) -> list[KernelConfig]:
    """The default, and one whose vector cores gather V in many small copies."""
    default = canonical(default_config(shape), shape.family)
    tile = replace(
        default.tile,
        s2_tile=512,
        v1_tile_shape=(12, 512),
        c2_tile_shape=(default.tile.c2_tile_shape[0], (128, 512), (128, 128)),
    )
    return [default, canonical(replace(default, tile=tile), shape.family)]


@pytest.mark.sim
def test_the_cycles_and_the_lanes_are_those_without_them(tmp_path: Path) -> None:
    backend = SimBackend(ASCEND_950PR, Settings().cache_folder)
    with_shortcuts = backend.environ()
    assert "shortcuts-" in with_shortcuts["LD_PRELOAD"]
    without = {name: value for name, value in with_shortcuts.items() if name != "LD_PRELOAD"}
    workloads = [Workload(PfaShape(b=3, s2=1300)), Workload(PfaShape(b=1, s2=4096))]
    found = []
    for environ in (with_shortcuts, without):
        with TrialPool(environ, JOBS, folder=tmp_path) as pool:
            for config in configs(workloads[0].shape):
                pool.submit(backend.time_job(config, workloads, trace=True))
                (result,) = pool.wait()
                assert result.reply is not None, result.message
                found.append([(item["cost"], item["swimlane"]) for item in result.reply["results"]])
    assert found[:2] == found[2:]


def test_another_release_runs_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts.importlib.metadata, "version", lambda name: "0.3.0")
    assert shortcuts.shortcuts_library(tmp_path, "g++") is None
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_fails_costs_time_only(tmp_path: Path) -> None:
    assert shortcuts.shortcuts_library(tmp_path, "false") is None
