"""Trials of a device that is made up: a cost for every configuration, and all that can go wrong with one.

``job["special"]`` may hold ``time`` and ``verify``, each a job of ``fault_jobs`` to do instead of
what was asked for; with ``once``, a path, only where that does not exist yet. ``wrong`` makes the
numbers wrong, ``factor`` multiplies the cost, ``seconds`` is how long a measurement takes. A traced
run takes whole cycles, ``traced`` more than it should; ``trace`` is a job to do instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fault_jobs

Job = dict[str, Any]


def cost(config: Mapping[str, Any], workload: Mapping[str, Any]) -> float:
    """Smaller with fewer, larger tiles, as long as an eighth of the sequence is left for each."""
    shape = workload["shape"]
    lengths = workload.get("actual_seq") or [shape["s2"]] * shape["b"]
    away = abs(math.log2(config["s2_tile"]) - math.log2(max(lengths) / 8))
    heads = math.log2(shape["nq"] // shape["nkv"] / config["g_tile"])
    buffers = abs(math.log2(config["vec_nbuffer_setting"].get("-1", 4)) - 3)
    return sum(lengths) * (1 + away + heads + 0.3 * buffers) / 100


def time_config(job: Job, folder: Path) -> Job:
    special = job["special"]
    time.sleep(special.get("seconds", 0))
    _go_wrong(special.get("time"), folder)
    factor = special.get("factor", 1)
    costs = [factor * cost(job["config"], workload) for workload in job["workloads"]]
    if special.get("whole"):
        costs = [math.ceil(cost) for cost in costs]
    results: list[Job] = [{"cost": cost, "run_seconds": 0.0001} for cost in costs]
    if job["trace"]:
        _go_wrong(special.get("trace"), folder)
        for result in results:
            lanes = [["AIC", 0, [7, result["cost"] + special.get("traced", 0), 1, 0, 0]]]
            result["swimlane"] = {"format": 1, "unit": "cycles", "lanes": lanes}
    return {"compile_seconds": 0.001, "results": results}


def verify_config(job: Job, folder: Path) -> Job:
    special = job["special"]
    _go_wrong(special.get("verify"), folder)
    if special.get("wrong"):
        return {"passed": False, "max_abs_diff": 0.5, "message": "3 elements differ"}
    return {"passed": True, "max_abs_diff": 0.0, "message": ""}


def _go_wrong(fault: Job | None, folder: Path) -> None:
    if fault is None:
        return
    if "once" in fault:
        mark = Path(fault["once"])
        if mark.exists():
            return
        mark.touch()
    fault_jobs.JOBS[fault["job"]](fault, folder)


JOBS = {"time": time_config, "verify": verify_config}
