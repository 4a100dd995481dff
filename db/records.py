"""What the store takes in and gives out: plain data, with no database in sight."""

from __future__ import annotations

import enum
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from datetime import datetime

from ..kernel.config import KernelConfig
from ..kernel.shapes import PfaFamily, PfaShape, Workload

UNITS = {"sim": "cycles", "npu": "us"}
MAX_BYTES = 2**63 - 1  # a signed 64-bit column


class Kind(enum.StrEnum):
    """How a measurement ended. Only ``ok`` has a cost; ``environment_fault`` says nothing of its configuration."""

    OK = "ok"
    ILLEGAL = "illegal"
    REJECTED = "rejected"
    DOES_NOT_FIT = "does_not_fit"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_RESULT = "wrong_result"
    ENVIRONMENT_FAULT = "environment_fault"


@dataclass(frozen=True, slots=True)
class Environment:
    """Where measurements were taken. Those of two environments are never compared or mixed.

    Raises:
        ValueError: the backend is neither ``sim`` nor ``npu``.
    """

    backend: str
    soc: str
    pypto: str
    torch: str
    kernel_digest: str
    model_digest: str
    torch_npu: str = ""
    cann: str = ""
    driver: str = ""

    def __post_init__(self) -> None:
        if self.backend not in UNITS:
            raise ValueError(f"backend is {self.backend!r}: use one of {', '.join(UNITS)}")

    @property
    def unit(self) -> str:
        """Unit of every cost measured here: ``cycles`` or ``us`` (microseconds)."""
        return UNITS[self.backend]

    @property
    def digest(self) -> str:
        """Identity of the environment: 16 hexadecimal digits."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One configuration on one workload in one environment.

    ``config`` is the canonical form. ``cost`` and ``samples`` are in the environment's unit;
    ``seconds`` is this workload's share of the trial's wall time, of which ``compile_seconds``
    and ``run_seconds`` are parts. ``study`` names the tuning run, freely. ``id`` and
    ``created_at`` (UTC, by the database's clock) are the store's to give. Characters that no
    database takes (NUL, lone surrogates) are replaced in ``message`` and ``study``.

    Raises:
        ValueError: a cost without kind ``ok`` or the reverse, or a number no clock could give.
    """

    workload: Workload
    config: KernelConfig
    kind: Kind
    cost: float | None
    samples: tuple[float, ...] = ()
    seconds: float = 0
    compile_seconds: float = 0
    run_seconds: float = 0
    peak_bytes: int = 0
    message: str = ""
    study: str = ""
    id: int | None = None
    created_at: datetime | None = None

    def __post_init__(self) -> None:
        if (self.kind is Kind.OK) != (self.cost is not None):
            raise ValueError(f"kind is {self.kind} and cost is {self.cost!r}: give a cost with kind ok, and only then")
        if self.cost is not None and not (math.isfinite(self.cost) and self.cost > 0):
            raise ValueError(f"cost is {self.cost!r}: give a finite number above 0")
        if not all(math.isfinite(sample) for sample in self.samples):
            raise ValueError(f"samples are {self.samples!r}: give finite numbers")
        for name in ("seconds", "compile_seconds", "run_seconds"):
            _check_seconds(name, getattr(self, name))
        if not 0 <= self.peak_bytes <= MAX_BYTES:
            raise ValueError(f"peak_bytes is {self.peak_bytes!r}: give a whole number from 0 to {MAX_BYTES}")
        object.__setattr__(self, "message", storable(self.message))
        object.__setattr__(self, "study", storable(self.study))


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a configuration's numbers agree with the golden, for the family it compiles for.

    ``shapes`` are the problems it was checked on: small ones, which may have fewer heads.
    ``max_abs_diff`` is the largest difference from the golden, in the output's own scale; None
    when there was no output to compare or the difference is not finite.

    Raises:
        ValueError: ``seconds`` is not a time.
    """

    family: PfaFamily
    config: KernelConfig
    passed: bool
    max_abs_diff: float | None
    shapes: tuple[PfaShape, ...]
    message: str = ""
    seconds: float = 0
    id: int | None = None
    created_at: datetime | None = None

    def __post_init__(self) -> None:
        _check_seconds("seconds", self.seconds)
        if self.max_abs_diff is not None and not math.isfinite(self.max_abs_diff):
            object.__setattr__(self, "max_abs_diff", None)
        object.__setattr__(self, "message", storable(self.message))


@dataclass(frozen=True, slots=True)
class TunedConfig:
    """The configuration to serve for a workload in an environment, with all the evidence for it.

    ``default`` is the measurement of the kernel's own configuration that ``measurement`` was
    compared with. ``superseded_at`` is None while the row is current.
    """

    workload: Workload
    environment: Environment
    measurement: Measurement
    default: Measurement
    verification: Verification
    id: int
    created_at: datetime
    superseded_at: datetime | None = None

    def __post_init__(self) -> None:
        _known_cost("measurement", self.measurement)
        _known_cost("default", self.default)

    @property
    def cost(self) -> float:
        """What was measured, in the environment's unit."""
        return _known_cost("measurement", self.measurement)

    @property
    def default_cost(self) -> float:
        """What the default was measured at, in the environment's unit."""
        return _known_cost("default", self.default)

    @property
    def speedup(self) -> float:
        """Default's cost over this cost: 2.0 is twice as fast."""
        return self.default_cost / self.cost


def _known_cost(name: str, measurement: Measurement) -> float:
    if measurement.cost is None:
        raise ValueError(f"the {name} of a tuned configuration is of kind {measurement.kind}: give one of kind ok")
    return measurement.cost


def _check_seconds(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value!r}: give finite seconds from 0")


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which a crashed child's output may well hold."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
