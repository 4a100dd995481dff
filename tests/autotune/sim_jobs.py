"""The embedded worker's trials, and some with a kernel that is made wrong on purpose."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pypto

from pfatune.autotune import pypto_private, sim_worker

Job = dict[str, Any]


def verify_wrong(job: Job, folder: Path) -> Job:
    """Check a kernel that was built with other options, ``wrong``, than the golden knows of."""
    build = sim_worker.build_kernel
    sim_worker.build_kernel = lambda *args, **options: build(*args, **{**options, **job["wrong"]})
    return sim_worker.verify_config(job, folder)


def verify_other_golden(job: Job, folder: Path) -> Job:
    """Check against a golden that is given other arguments than the kernel."""
    sim_worker.flash_attention = partial(_merge, sim_worker.flash_attention, job["wrong"])
    return sim_worker.verify_config(job, folder)


def _merge(function: Any, changed: Job, *args: Any, **options: Any) -> Any:
    return function(*args, **{**options, **changed})


def where(job: Job, folder: Path) -> Job:
    return {"folder": str(folder)}


def missing_names(job: Job, folder: Path) -> Job:
    """The private names of PyPTO that ``pypto_private`` uses and that are not there."""
    wrapper = pypto_private.entry.JitCallableWrapper
    manager = pypto_private.BuildOnlineManager()
    wanted = {
        wrapper: ["_run_with_cpu", "_convert_tensors_with_metadata", "_set_config_option", "_setup_verify_data"],
        pypto_private.entry: ["_pto_to_tensor_data"],
        pypto_private.pypto_impl: ["SetVerifyData", "ResetLog"],
        pypto_private._pto_verify_datas: ["get_data"],
        manager: ["calculator_loaded", "build_and_load_calculator"],
        pypto: ["options", "get_verify_options", "set_verify_golden_data", "CompStage", "RunMode"],
    }
    missing = [(owner, name) for owner, names in wanted.items() for name in names if not hasattr(owner, name)]
    return {"missing": [f"{owner}.{name}" for owner, name in missing]}


JOBS = {
    **sim_worker.JOBS,
    **{function.__name__: function for function in (verify_wrong, verify_other_golden, where, missing_names)},
}
