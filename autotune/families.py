"""Workloads by family: each family is tuned by itself, one after another."""

from __future__ import annotations

from collections.abc import Iterable

from ..kernel.shapes import PfaFamily, Workload


def by_family(workloads: Iterable[Workload]) -> list[tuple[Workload, ...]]:
    """The workloads of each family, in the order in which they were given."""
    groups: dict[PfaFamily, list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.shape.family, []).append(workload)
    return [tuple(group) for group in groups.values()]


def share_of_seconds(seconds: float | None, spent: float, families_left: int) -> float | None:
    """What one of the families that are left may take: an even share of the seconds that are left, never nothing."""
    return None if seconds is None else max(0.1, seconds - spent) / families_left
