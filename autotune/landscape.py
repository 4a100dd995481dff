"""A recorded landscape: many configurations of one family, each compiled once and timed on the same workloads.

It is a file that searches are replayed over, portfolios are judged by, and people plot. The
format is JSON, gzipped where the name ends in ``.gz``; version 1 is what ``Landscape.to_json``
writes.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..db.records import Environment, Kind, Measurement
from ..kernel.config import ConfigError, KernelConfig
from ..kernel.shapes import PfaFamily, ShapeError, Workload

FORMAT = "pfatune landscape"
VERSION = 1


class LandscapeError(ValueError):
    """A file that is no landscape, or not one of a version that this release reads."""


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration of a landscape.

    ``costs`` and ``run_seconds`` have one entry for each workload of the landscape, in its
    order; they are empty unless ``kind`` is ok. ``compile_seconds`` is spent once, whatever
    the number of workloads, ``seconds`` is the whole trial from its start to its end.
    """

    config: KernelConfig
    kind: Kind
    costs: tuple[float, ...] = ()
    run_seconds: tuple[float, ...] = ()
    compile_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0
    message: str = ""

    def seconds_for(self, workloads: Sequence[int]) -> float:
        """Seconds of a trial on the workloads of these indices only: what failed costs what it cost."""
        if self.kind is not Kind.OK:
            return self.seconds
        return self.seconds - sum(self.run_seconds) + sum(self.run_seconds[i] for i in workloads)


@dataclass(frozen=True, slots=True)
class Landscape:
    """Measurements of one family in one environment; costs in the environment's unit."""

    family: PfaFamily
    environment: Environment
    workloads: tuple[Workload, ...]
    points: tuple[Point, ...]

    @property
    def hours(self) -> float:
        """Hours of all trials together, as if one had run after another."""
        return sum(point.seconds for point in self.points) / 3600

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``from_json`` reads it back."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "unit": self.environment.unit,
            "environment": self.environment.to_json(),
            "workloads": [workload.to_json() for workload in self.workloads],
            "trial_hours": round(self.hours, 3),
            "points": [
                {
                    "config": point.config.to_json(),
                    "kind": str(point.kind),
                    "costs": [int(cost) if cost == int(cost) else cost for cost in point.costs],
                    "run_seconds": [round(s, 3) for s in point.run_seconds],
                    "compile_seconds": round(point.compile_seconds, 3),
                    "seconds": round(point.seconds, 3),
                    "peak_bytes": point.peak_bytes,
                    "message": point.message,
                }
                for point in self.points
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> Landscape:
        """The landscape that ``to_json`` wrote.

        Raises:
            LandscapeError: it is not one, is of another version, or a part of it is missing or malformed.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise LandscapeError(f'this is no landscape: its "format" is not "{FORMAT}"')
        if data.get("version") != VERSION:
            raise LandscapeError(f"the landscape is of version {data.get('version')!r}: this release reads {VERSION}")
        try:
            workloads = tuple(Workload.from_json(item) for item in data["workloads"])
            families = {workload.shape.family for workload in workloads}
            if len(families) != 1:
                raise LandscapeError(f"the landscape's workloads are of {len(families)} families: one is needed")
            points = tuple(_point(item, len(workloads)) for item in data["points"])
            return cls(families.pop(), Environment(**data["environment"]), workloads, points)
        except (AttributeError, KeyError, TypeError, ConfigError, ShapeError) as error:
            raise LandscapeError(f"the landscape is malformed: {type(error).__name__}: {error}") from None

    @classmethod
    def of(cls, environment: Environment, workloads: Sequence[Workload], rows: Iterable[Measurement]) -> Landscape:
        """What was measured on all of the workloads, in the order of the rows; others are left out."""
        order = tuple(workloads)
        found: dict[KernelConfig, dict[Workload, Measurement]] = {}
        for row in rows:
            if row.kind is not Kind.ENVIRONMENT_FAULT and row.workload in order:
                found.setdefault(row.config, {})[row.workload] = row
        complete = (
            (config, [timed[w] for w in order]) for config, timed in found.items() if all(w in timed for w in order)
        )
        points = tuple(_point_of(config, timed) for config, timed in complete)
        return cls(order[0].shape.family, environment, order, points)


def read(path: Path) -> Landscape:
    """The landscape in a file.

    Raises:
        LandscapeError: the file holds none.
        OSError: it cannot be read.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        data = json.loads(content)
    except (EOFError, ValueError, gzip.BadGzipFile) as error:
        raise LandscapeError(f"{path} is no landscape: {error}") from None
    return Landscape.from_json(data)


def write(landscape: Landscape, path: Path) -> None:
    """Write a landscape; the same one gives the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    content = (json.dumps(landscape.to_json(), separators=(",", ":")) + "\n").encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _point(data: Mapping[str, Any], workloads: int) -> Point:
    point = Point(
        KernelConfig.from_json(data["config"]),
        Kind(data["kind"]),
        tuple(float(cost) for cost in data["costs"]),
        tuple(float(s) for s in data["run_seconds"]),
        float(data["compile_seconds"]),
        float(data["seconds"]),
        int(data["peak_bytes"]),
        str(data["message"]),
    )
    expected = workloads if point.kind is Kind.OK else 0
    if len(point.costs) != expected or len(point.run_seconds) != expected:
        raise LandscapeError(f"a point of kind {point.kind} has {len(point.costs)} costs: {expected} are needed")
    if not all(math.isfinite(cost) and cost > 0 for cost in point.costs):
        raise LandscapeError(f"a point has the costs {list(point.costs)}: finite numbers above 0 are needed")
    return point


def _point_of(config: KernelConfig, rows: Sequence[Measurement]) -> Point:
    failed = next((row for row in rows if row.kind is not Kind.OK), None)
    seconds = sum(row.seconds for row in rows)
    peak = max(row.peak_bytes for row in rows)
    if failed is not None:
        return Point(config, failed.kind, seconds=seconds, peak_bytes=peak, message=failed.message)
    return Point(
        config,
        Kind.OK,
        tuple(row.cost or math.nan for row in rows),
        tuple(row.run_seconds for row in rows),
        max(row.compile_seconds for row in rows),
        seconds,
        peak,
    )
