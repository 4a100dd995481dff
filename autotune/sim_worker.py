"""What a trial on the embedded worker does, inside its own process: compile, simulate, or check numbers.

Runs under the platform overlay, in a process that ends with the trial. Takes and returns plain
data; see ``trial.py`` for the protocol.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pypto
import torch

from ..kernel.config import KernelConfig
from ..kernel.golden import ATOL, RTOL, flash_attention
from ..kernel.inputs import empty_inputs, make_inputs
from ..kernel.pfa import build_kernel, flatten
from ..kernel.shapes import Workload
from . import pypto_private, swimlane
from .classify import InterpreterError, NoOutputError

#: What the interpreter's inputs and P are quantised to: it saturates E4M3 at 240, and reads
#: values from 208 on as 448.
INTERPRETER_QUANT_MAX = 128.0


def time_config(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compile one configuration once and simulate it on each workload of ``job``.

    Reply: ``compile_seconds`` and, for each workload, its ``cost`` in cycles of the cost model,
    ``run_seconds`` and, if asked for with ``trace``, its swimlane.
    """
    config = KernelConfig.from_json(job["config"])
    workloads = [Workload.from_json(item) for item in job["workloads"]]
    family = workloads[0].shape.family
    kernel = build_kernel(config, family, run_mode=pypto.RunMode.SIM)
    compile_seconds = 0.0
    results = []
    for index, workload in enumerate(workloads):
        tensors = flatten(empty_inputs(workload).tensors(), family)
        if index == 0:
            compile_seconds, run_seconds = pypto_private.compile_and_run(kernel, tensors)
        else:
            run_seconds = pypto_private.run_again(kernel, tensors)
        lanes = _take_swimlane(folder)
        result: dict[str, Any] = {"cost": lanes.makespan, "run_seconds": run_seconds}
        if job.get("trace"):
            result["swimlane"] = lanes.to_json()
        results.append(result)
    return {"compile_seconds": compile_seconds, "results": results}


def _take_swimlane(folder: Path) -> swimlane.Swimlane:
    """The newest simulation's swimlane; its output folder, tens of MB, is deleted at once."""
    found = sorted(folder.glob("out/o/*/CostModelSimulationOutput/_simulate.swim.json"), key=os.path.getmtime)
    if not found:
        raise NoOutputError("the simulation left no swimlane")
    lanes = swimlane.parse(found[-1].read_bytes())
    shutil.rmtree(found[-1].parents[1], ignore_errors=True)
    return lanes


def verify_config(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Check one configuration's numbers on PyPTO's interpreter against the golden.

    The interpreter runs the tensor graph, and again the graph after tile expansion, on
    ``job["workload"]``. Reply: ``passed``, ``max_abs_diff`` and ``stages``, the graphs compared.
    """
    config = KernelConfig.from_json(job["config"])
    workload = Workload.from_json(job["workload"])
    pypto_private.load_interpreter(Path(job["interpreter"]))
    pypto_private.verify_on_cpu()
    # The interpreter writes its verdict when the process that ran it exits.
    error_file = folder / "interpreter_error"
    child = os.fork()
    if child == 0:
        try:
            _interpret(config, workload, job.get("seed", 0))
        except BaseException as error:
            error_file.write_text(f"{type(error).__name__}: {error}")
        pypto_private.exit_flushing(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)  # end as the interpreter ended
    if error_file.exists():
        raise InterpreterError(error_file.read_text()[:4000])
    rows = [row for name in folder.glob("out/o/*/verify_*/verify_result_brief.csv") for row in _rows(name)]
    return judge(rows)


def _interpret(config: KernelConfig, workload: Workload, seed: int) -> None:
    inputs = make_inputs(workload, seed=seed, quant_max=INTERPRETER_QUANT_MAX)
    golden = flash_attention(
        inputs,
        workload,
        s2_tile=config.tile.s2_tile,
        quant_max=INTERPRETER_QUANT_MAX,
        round_to_whole=True,
    )
    family = workload.shape.family
    kernel = build_kernel(
        config,
        family,
        run_mode=pypto.RunMode.SIM,
        quant_max=INTERPRETER_QUANT_MAX,
        host_options={"compile_stage": pypto.CompStage.TILE_GRAPH},
        verify_options={
            "enable_pass_verify": True,
            "pass_verify_pass_filter": ["ExpandFunction"],
            "pass_verify_error_tol": [RTOL, ATOL],
        },
    )
    tensors = flatten(inputs.tensors(), family)
    pypto.set_verify_golden_data(goldens=[None] * (len(tensors) - 1) + [golden])
    kernel(*tensors)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def judge(rows: list[dict[str, str]]) -> dict[str, Any]:
    """The verdict over the interpreter's comparisons.

    Passed means that the output was compared with the golden, that no element of it was out
    of tolerance, and that every graph agreed with the one before. PyPTO itself raises nothing.

    Raises:
        NoOutputError: the output was never compared.
    """
    output = [row for row in rows if row["referPassName"] == "golden"]
    if not output:
        raise NoOutputError("the interpreter compared no output with the golden")
    failed = [row for row in rows if row["verifyResult"] != "PASS"]
    diffs = [float(row["maxAbsDiff"]) for row in output]
    return {
        "passed": not failed,
        "max_abs_diff": max(diffs),
        "stages": sorted({row["passName"] for row in rows}),
        "compared": len(rows),
        "message": "" if not failed else _failure(failed[0]),
    }


def _failure(row: Mapping[str, str]) -> str:
    return (
        f"{row['passName']} differs from {row['referPassName']} in {row['errorCount']} elements, "
        f"by up to {row['maxAbsDiff']} (tolerance {RTOL:g} relative, {ATOL:g} absolute)"
    )


torch.set_num_threads(1)

JOBS = {"time": time_config, "verify": verify_config}
