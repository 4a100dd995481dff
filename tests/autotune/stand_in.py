"""A backend for a made-up NPU, whose trials are real processes, and what its tests look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trial_tools import MIB, environ
from tuner_jobs import cost

from pfatune.autotune.search import starting_points
from pfatune.autotune.sim import SimBackend
from pfatune.autotune.space import space_for
from pfatune.autotune.trial import TrialPool
from pfatune.db import Environment, Kind, Measurement, Store
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR

Special = Callable[[KernelConfig], dict[str, Any]]

LARGE = Workload(PfaShape(b=16, s2=8192))
SMALL = Workload(PfaShape(b=2, s2=1024))
RAGGED = Workload(PfaShape(b=3, s2=4096), (4096, 77, 1000))
NO_ROOM = {"job": "fail", "error": "OSError", "text": "[Errno 28] No space left on device"}


def default(workload: Workload) -> KernelConfig:
    return canonical(default_config(workload.shape), workload.shape.family)


def starts(workload: Workload) -> list[KernelConfig]:
    """What is tried first: the default, then what a search for this workload alone starts with."""
    space = space_for([workload], ASCEND_950PR, backend="npu")
    return list(dict.fromkeys(filter(space.legal, starting_points(space, default_config(workload.shape)))))


def cost_of(config: KernelConfig, workload: Workload) -> float:
    return cost(config.to_json(), workload.to_json())


class StandIn(SimBackend):
    """Reads replies as the embedded worker does; ``special`` says what to do with a configuration."""

    name = "npu"
    verify_timeout = 10.0
    traces = False

    def __init__(self, special: Special = lambda config: {}) -> None:
        self.soc = ASCEND_950PR
        self.environment = Environment("npu", "950PR", "0.2.0", "2.13.0", "k" * 16, "", "2.13.0", "9.1", "25.5")
        self.special = special
        self.timed: list[KernelConfig] = []
        self.verified: list[KernelConfig] = []
        self._interpreter = Path("none")

    def time_job(self, config: KernelConfig, workloads: Sequence[Workload], *, trace: bool = False) -> dict[str, Any]:
        self.timed.append(config)
        return {**super().time_job(config, workloads, trace=trace), "special": self.special(config)}

    def verify_job(self, config: KernelConfig, family: PfaFamily, *, seed: int = 0) -> dict[str, Any]:
        self.verified.append(config)
        return {**super().verify_job(config, family, seed=seed), "special": self.special(config)}


def stand_in_pool(
    folder: Path, mark: Path | str, *, timeout: float = 20, pool: type[TrialPool] = TrialPool
) -> TrialPool:
    return pool(environ(mark), "tuner_jobs", folder=folder, timeout=timeout, memory=150 * MIB)


def rows_of(store: Store, workloads: Sequence[Workload]) -> list[Measurement]:
    """Everything measured of the workloads on the stand-in, oldest first."""
    env_id = store.environment_id(StandIn().environment)
    rows = [row for workload in workloads for row in store.measurements(env_id, workload=workload)]
    return sorted(rows, key=lambda row: row.id or 0)


def check_rows(store: Store, workloads: Sequence[Workload]) -> None:
    """Nothing was measured twice, and every configuration on every workload or on none."""
    rows = rows_of(store, workloads)
    good = Counter((row.config, row.workload) for row in rows if row.kind is Kind.OK)
    assert set(good.values()) <= {1}
    for kind in Kind:
        for config in {row.config for row in rows if row.kind is kind}:
            assert {row.workload for row in rows if (row.config, row.kind) == (config, kind)} == set(workloads)
    store.check()
