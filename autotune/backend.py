"""What the tuning loop needs of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..db.records import Environment, Measurement, Verification
from ..kernel.config import KernelConfig
from ..kernel.shapes import PfaFamily, Workload
from ..kernel.soc import Soc
from .trial import TrialResult


class Backend(Protocol):
    """Makes trials and reads their results; ``sim.SimBackend`` is one.

    ``traces`` says whether a timing trial can be asked for its swim lanes.
    """

    name: str
    soc: Soc
    environment: Environment
    verify_timeout: float
    traces: bool

    def time_job(
        self, config: KernelConfig, workloads: Sequence[Workload], *, trace: bool = False
    ) -> dict[str, Any]: ...

    def verify_job(self, config: KernelConfig, family: PfaFamily, *, seed: int = 0) -> dict[str, Any]: ...

    def measurements(
        self, config: KernelConfig, workloads: Sequence[Workload], result: TrialResult, *, study: str = ""
    ) -> list[Measurement]: ...

    def verification(self, config: KernelConfig, family: PfaFamily, result: TrialResult) -> Verification: ...
