"""The embedded 950 worker: PyPTO's compiler, its cost model and its interpreter on this CPU.

Costs are cycles of the cost model, good for ranking and nothing else. They are deterministic.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..db.records import Environment, Kind, Measurement, Verification
from ..kernel.config import KernelConfig
from ..kernel.shapes import PfaFamily, Workload
from ..kernel.soc import Soc
from ..kernel.source import kernel_digest
from . import interpreter, platform, toolchain
from .trial import DEFAULT_MEMORY, DEFAULT_TIMEOUT, TrialPool, TrialResult
from .verification import verification_workload

JOBS = "pfatune.autotune.sim_worker"
VERIFY_TIMEOUT = 600.0  # seconds; the interpreter needs some 2 ms a token


class SimBackend:
    """Times configurations on the cost model of one chip and checks them on the interpreter.

    ``cache`` is the folder for what outlives a run: overlay, interpreter, ccache. Making one
    builds what is missing, the interpreter being 30 to 90 s the first time.

    Raises:
        WorkerSetupError: a tool is missing, the build failed, or ``cache`` cannot be written.
    """

    name = "sim"
    verify_timeout = VERIFY_TIMEOUT
    traces = True

    def __init__(self, soc: Soc, cache: Path) -> None:
        toolchain.require_tools()
        self.soc = soc
        self._cache = cache
        self._platform = platform.prepare(soc, cache)
        self._environ = toolchain.compiler_environ(self._platform.environ(os.environ), cache)
        self._environ["OMP_NUM_THREADS"] = "1"
        self._interpreter = interpreter.ensure_interpreter(cache, self._environ)
        self.environment = Environment(
            backend=self.name,
            soc=soc.name,
            pypto=importlib.metadata.version("pypto"),
            torch=importlib.metadata.version("torch"),
            kernel_digest=kernel_digest(),
            model_digest=self._platform.digest,
        )

    def environ(self) -> dict[str, str]:
        """The environment that this backend's processes run in."""
        return dict(self._environ)

    def pool(self, *, timeout: float = DEFAULT_TIMEOUT, memory: int = DEFAULT_MEMORY) -> TrialPool:
        """A pool that runs this backend's trials; ``timeout`` in seconds, ``memory`` in bytes, for each."""
        # PyPTO makes a folder there when it is imported; relative, it goes with the run's.
        environ = {**self._environ, "PYPTO_HOME": "pypto"}
        return TrialPool(environ, JOBS, folder=self._cache / "runs", timeout=timeout, memory=memory)

    def time_job(self, config: KernelConfig, workloads: Sequence[Workload], *, trace: bool = False) -> dict[str, Any]:
        """A trial that compiles ``config`` once and times it on each of ``workloads``, of one family."""
        return {
            "job": "time",
            "config": config.to_json(),
            "workloads": [workload.to_json() for workload in workloads],
            "trace": trace,
        }

    def verify_job(self, config: KernelConfig, family: PfaFamily, *, seed: int = 0) -> dict[str, Any]:
        """A trial that checks ``config`` against the golden on a small problem of its own."""
        return {
            "job": "verify",
            "config": config.to_json(),
            "workload": verification_workload(config, family).to_json(),
            "interpreter": str(self._interpreter),
            "seed": seed,
        }

    def measurements(
        self, config: KernelConfig, workloads: Sequence[Workload], result: TrialResult, *, study: str = ""
    ) -> list[Measurement]:
        """What a timing trial measured: one row for each workload, whether it succeeded or not."""
        if result.reply is None:
            return [
                Measurement(
                    workload,
                    config,
                    result.kind,
                    None,
                    seconds=result.seconds / len(workloads),
                    peak_bytes=result.peak_bytes,
                    message=result.message,
                    study=study,
                )
                for workload in workloads
            ]
        results: list[Mapping[str, Any]] = result.reply["results"]
        shared = (result.seconds - sum(float(item["run_seconds"]) for item in results)) / len(results)
        return [
            Measurement(
                workload,
                config,
                Kind.OK,
                float(item["cost"]),
                samples=(float(item["cost"]),),
                seconds=shared + float(item["run_seconds"]),
                compile_seconds=float(result.reply["compile_seconds"]),
                run_seconds=float(item["run_seconds"]),
                peak_bytes=result.peak_bytes,
                study=study,
            )
            for workload, item in zip(workloads, results, strict=True)
        ]

    def verification(self, config: KernelConfig, family: PfaFamily, result: TrialResult) -> Verification:
        """What a verification trial found. A trial that failed to finish has not passed."""
        workload = verification_workload(config, family)
        reply = result.reply
        return Verification(
            family,
            config,
            passed=bool(reply and reply["passed"]),
            max_abs_diff=float(reply["max_abs_diff"]) if reply else None,
            shapes=(workload.shape,),
            message=str(reply["message"]) if reply else f"{result.kind}: {result.message}",
            seconds=result.seconds,
        )
