"""What the job queue takes in and gives out: plain data, with no database in sight."""

from __future__ import annotations

import enum
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from ..kernel.shapes import Workload
from ..kernel.soc import soc
from .records import UNITS

MAX_WORKLOADS = 1000
MAX_TRIALS = 100_000
MAX_SECONDS = 30 * 86400.0
MAX_PRIORITY = 100


class JobState(enum.StrEnum):
    """Where a job stands. The last three are final: a job in one of them never changes again."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


OPEN_STATES = (JobState.QUEUED, JobState.RUNNING)
FINAL_STATES = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is to be tuned, and how much of it: ``trials`` configurations, ``seconds`` of wall time, or both.

    With both, the tuning ends at whichever comes first. A workload named twice counts once.
    A higher ``priority`` is claimed earlier.

    Raises:
        ValueError: there is no workload or no end to the tuning, or a value is out of its range.
    """

    workloads: tuple[Workload, ...]
    trials: int | None = 40
    seconds: float | None = None
    priority: int = 0
    soc: str = "950PR"
    backend: str = "sim"

    def __post_init__(self) -> None:
        object.__setattr__(self, "workloads", tuple(dict.fromkeys(self.workloads)))
        count = len(self.workloads)
        if not 1 <= count <= MAX_WORKLOADS:
            raise ValueError(f"workloads are {count}: give from 1 to {MAX_WORKLOADS}")
        if self.trials is None and self.seconds is None:
            raise ValueError("trials and seconds are both None: give one of them, or the tuning never ends")
        if self.trials is not None and not (type(self.trials) is int and 1 <= self.trials <= MAX_TRIALS):
            raise ValueError(f"trials is {self.trials!r}: give a whole number from 1 to {MAX_TRIALS}, or None")
        if self.seconds is not None:
            if type(self.seconds) not in (int, float) or not 0 < self.seconds <= MAX_SECONDS:
                raise ValueError(
                    f"seconds is {self.seconds!r}: give a number above 0, at most {MAX_SECONDS:g}, or None"
                )
            object.__setattr__(self, "seconds", float(self.seconds))
        if type(self.priority) is not int or abs(self.priority) > MAX_PRIORITY:
            raise ValueError(
                f"priority is {self.priority!r}: give a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        for name in ("soc", "backend"):
            value = getattr(self, name)
            if type(value) is not str:
                raise ValueError(f"{name} is {value!r}: give a text")
        soc(self.soc)
        if self.backend not in UNITS:
            raise ValueError(f"backend is {self.backend!r}: use one of {', '.join(UNITS)}")

    @property
    def digest(self) -> str:
        """Identity of what is asked, however urgently: 16 hexadecimal digits."""
        data = self.to_json()
        del data["priority"]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "workloads": [workload.to_json() for workload in self.workloads],
            "trials": self.trials,
            "seconds": self.seconds,
            "priority": self.priority,
            "soc": self.soc,
            "backend": self.backend,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRequest:
        """The request with the given fields; fields left out take their defaults.

        Raises:
            ValueError: an unknown or missing field, or a value out of its range.
        """
        known = [one.name for one in fields(cls)]
        for name in data:
            if name not in known:
                raise ValueError(f"{name!r} is no field of a job request: use {', '.join(known)}")
        if "workloads" not in data:
            raise ValueError("workloads is missing: give a list of at least one")
        try:
            workloads = tuple(Workload.from_json(workload) for workload in data["workloads"])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"workloads cannot be read ({error!r}): give a list of {{'shape': {{…}}, 'actual_seq': […]}}"
            ) from error
        return cls(**{**data, "workloads": workloads})


@dataclass(frozen=True, slots=True)
class Job:
    """A request in the queue, and what became of it.

    ``attempts`` counts the claims that used up a worker; ``fence`` counts all claims, and tells
    the current holder of the lease from earlier ones. ``started_at`` is the time of the last
    claim. ``progress`` is JSON, as its worker last reported it; ``reason`` says why the job is
    not done. Times are UTC, by the database's clock.
    """

    id: int
    request: JobRequest
    state: JobState
    attempts: int
    fence: int
    owner: str
    progress: dict[str, Any] = field(repr=False)
    reason: str
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lease_expires_at: datetime | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job, for as long as no later claim has a higher ``fence``."""

    job_id: int
    owner: str
    fence: int


def check_span(name: str, value: float, *, above_zero: bool = False) -> None:
    """Refuse what is no span of time in seconds.

    Raises:
        ValueError: it is negative, not finite, longer than ``MAX_SECONDS``, or 0 where that means nothing.
    """
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS) or (above_zero and value == 0):
        lowest = "above 0" if above_zero else "from 0"
        raise ValueError(f"{name} is {value!r}: give seconds {lowest}, at most {MAX_SECONDS:g}")
