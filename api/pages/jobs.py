"""A job as people want to see it."""

from __future__ import annotations

from dataclasses import dataclass

from ...db.job_records import Job
from ...kernel.shapes import PfaShape, Workload
from ..http.jobs import job_document
from ..http.models import JobOut

MOST_SHAPES = 300  # of one job that are listed


@dataclass(frozen=True, slots=True)
class ShapeLine:
    """How far one shape of a job is; costs are None until measured."""

    workload: Workload
    default_cost: float | None
    best_cost: float | None

    @property
    def speedup(self) -> float | None:
        if self.default_cost is None or self.best_cost is None:
            return None
        return self.default_cost / self.best_cost


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with what is worked out from its progress; ``done`` is the share of its budget that is spent."""

    job: JobOut
    shapes: tuple[ShapeLine, ...]
    shape_count: int
    done: float | None
    title: str

    @property
    def is_open(self) -> bool:
        return self.job.state in ("queued", "running")


def job_view(job: Job) -> JobView:
    """What the list and the page of a job show."""
    document = job_document(job)
    progress = document.progress
    workloads = job.request.workloads
    # A worker reports every shape in the order of the request, once it has begun.
    costs = [(one.default_cost, one.best_cost) for one in progress.shapes]
    if len(costs) != len(workloads):
        costs = [(None, None)] * len(workloads)
    lines = tuple(
        ShapeLine(workload, default, best)
        for workload, (default, best) in zip(workloads[:MOST_SHAPES], costs, strict=False)
    )
    return JobView(document, lines, len(workloads), _done(document), _title([w.shape for w in workloads]))


def _done(job: JobOut) -> float | None:
    if job.state == "done":
        return 1.0
    progress = job.progress
    shares = []
    if progress.budget_trials:
        shares.append(progress.trials / progress.budget_trials)
    if job.seconds:
        shares.append(progress.elapsed_seconds / job.seconds)
    return min(1.0, max(shares)) if shares else None


def _title(shapes: list[PfaShape]) -> str:
    first = f"b={shapes[0].b} s2={shapes[0].s2}"
    return first if len(shapes) == 1 else f"{first} and {len(shapes) - 1} more"
