"""Reading recorded spaces: Kernel Tuner's cache files and pfatune's own landscapes.

Kernel Tuner writes the times of a configuration in milliseconds and, for one that failed, the
name of the error in place of its cost
(https://github.com/KernelTuner/kernel_tuner, ``kernel_tuner/schema/cache``).
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .candidates import Table
from .landscape import FORMAT, Landscape, LandscapeError
from .replay import Outcome, RecordedSpace
from .space import values_of

_TIMES = ("compile_time", "benchmark_time", "verification_time")  # milliseconds


class RecordedSpaceError(ValueError):
    """A file that holds no recorded space."""


def read_space(path: Path) -> RecordedSpace:
    """The space recorded in a file, gzipped or not: of either format.

    Raises:
        RecordedSpaceError: the file holds none, or a part of it is missing or malformed.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    try:
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (EOFError, ValueError, OSError, RecursionError) as error:
        raise RecordedSpaceError(f"{path.name} holds no recorded space: it is not JSON ({error})") from None
    name = path.name.removesuffix(".gz").removesuffix(".json")
    try:
        if isinstance(data, Mapping) and data.get("format") == FORMAT:
            return of_landscape(Landscape.from_json(data), name)
        return _of_kernel_tuner(data, name)
    except (LandscapeError, RecordedSpaceError) as error:
        raise RecordedSpaceError(f"{path.name}: {error}") from None


def of_landscape(landscape: Landscape, name: str) -> RecordedSpace:
    """The space of a landscape's configurations.

    Raises:
        RecordedSpaceError: no configuration succeeded.
    """
    rows = [values_of(point.config) for point in landscape.points]
    table = Table.of(rows, list(rows[0]) if rows else [])
    outcomes = {
        table.point(row): Outcome(point.costs or None, point.seconds, point.run_seconds)
        for row, point in zip(rows, landscape.points, strict=True)
    }
    workloads = tuple(str(workload) for workload in landscape.workloads)
    return _space(name, table, outcomes, workloads, landscape.environment.unit)


def _of_kernel_tuner(data: Any, name: str) -> RecordedSpace:
    try:
        names, rows = list(data["tune_params_keys"]), list(data["cache"].values())
        objective = data.get("objective", "time")
        table = Table.of(rows, names)
        outcomes = {table.point(row): Outcome(_cost(row[objective]), _seconds(row)) for row in rows}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordedSpaceError(
            f"it is neither a landscape nor a Kernel Tuner cache ({type(error).__name__}: {error})"
        ) from None
    return _space(name, table, outcomes, ("",), "ms" if objective == "time" else objective)


def _space(
    name: str, table: Table, outcomes: dict[tuple[int, ...], Outcome], workloads: tuple[str, ...], unit: str
) -> RecordedSpace:
    if all(outcome.costs is None for outcome in outcomes.values()):
        raise RecordedSpaceError("no configuration of it succeeded")
    return RecordedSpace(name, table, outcomes, workloads, unit)


def _cost(value: Any) -> tuple[float] | None:
    if isinstance(value, (str, bool)) or not math.isfinite(value) or value <= 0:
        return None
    return (float(value),)


def _seconds(row: Mapping[str, Any]) -> float:
    return sum(float(row.get(name) or 0) for name in _TIMES) / 1000
