"""Records to put into stores, and what the tests do to stores from other processes."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path

from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload

SHAPE = PfaShape(b=2, s2=1024)
WORKLOAD = Workload(SHAPE)
SIM = Environment("sim", "Ascend950PR", "0.2.0", "2.13.0", "k" * 16, "m" * 16)
NPU = Environment("npu", "Ascend950PR", "0.2.0", "2.13.0", "k" * 16, "", "2.13.0", "9.1", "25.5")


def config(stitch: int = 512, shape: PfaShape = SHAPE) -> KernelConfig:
    return replace(canonical(default_config(shape), shape.family), stitch_function_max_num=stitch)


def measured(cost: float | None = 100.0, *, workload: Workload = WORKLOAD, stitch: int = 512) -> Measurement:
    kind = Kind.REJECTED if cost is None else Kind.OK
    return Measurement(workload, config(stitch, workload.shape), kind, cost)


def verified(*, passed: bool = True, shape: PfaShape = SHAPE, stitch: int = 512) -> Verification:
    return Verification(shape.family, config(stitch, shape), passed, 0.001, (shape,))


def write_until_killed(target: str) -> None:
    """Print the ids of every batch once the store has acknowledged it."""
    with Store.open(target) as store:
        env_id = store.environment_id(SIM)
        for number in count(1):
            ids = store.add(env_id, [measured(number), measured(None)])
            print(*ids, flush=True)


def open_at_once(barrier: Barrier, paths: list[Path]) -> None:
    for path in paths:
        barrier.wait(20)
        with Store.open(path) as store:
            store.add(store.environment_id(SIM), [measured()])


if __name__ == "__main__":
    write_until_killed(sys.argv[1])
