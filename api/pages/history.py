"""The history of an optimisation as a plot: every measurement in its order, and the best so far.

Positions across are percent of the width and positions down are pixels, so that one drawing
fits any screen without shrinking its text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...db.records import Kind, Measurement
from .words import cost

MOST_POINTS = 600
_TOP, _PLOT_HEIGHT, _LANE_HEIGHT, _BOTTOM = 14.0, 250.0, 30.0, 40.0
_LEFT, _RIGHT = 1.0, 99.0
_LOG_FROM = 3.0  # highest over lowest cost from which the scale is logarithmic


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement that has a cost. ``wrong``: its numbers turned out wrong later."""

    x: float
    y: float
    title: str
    wrong: bool


@dataclass(frozen=True, slots=True)
class FailureLane:
    """The failures of one kind, as ticks."""

    kind: str
    count: int
    y: float
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class History:
    """What the template draws. ``best`` are lines of x1, y1, x2, y2; ``left_out`` counts points that are not drawn."""

    unit: str
    height: float
    axis_y: float
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    points: tuple[Point, ...]
    best: tuple[tuple[float, float, float, float], ...]
    default_y: float | None
    lanes: tuple[FailureLane, ...]
    is_log: bool
    left_out: int
    text: str


def history(rows: Sequence[Measurement], unit: str, default_cost: float | None, first: int = 1) -> History | None:
    """The plot of measurements, oldest first; None where nothing has a cost.

    ``first`` is the number of the first one, if older ones are left out. Faults of the environment
    are not shown: they say nothing of a configuration.
    """
    rows = [row for row in rows if row.kind is not Kind.ENVIRONMENT_FAULT]
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return None
    if default_cost is not None:
        costs.append(default_cost)
    down, y_ticks, is_log = _scale(min(costs), max(costs))

    def across(index: int) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (index + 0.5) / len(rows), 2)

    wrong = {row.config.digest for row in rows if row.kind is Kind.WRONG_RESULT}
    improved, best = _best_line(rows, wrong, across, down)
    drawn = _thinned([index for index, row in enumerate(rows) if row.cost is not None], improved)
    points = tuple(
        Point(across(index), down(row.cost), _title(row, index + first, unit), row.config.digest in wrong)
        for index, row in enumerate(rows)
        if index in drawn and row.cost is not None
    )
    axis_y = _TOP + _PLOT_HEIGHT
    lanes = _lanes(rows, across, axis_y, first)
    bottom = axis_y + _LANE_HEIGHT * len(lanes)
    return History(
        unit=unit,
        height=bottom + _BOTTOM,
        axis_y=bottom,
        y_ticks=y_ticks,
        x_ticks=_x_ticks(len(rows), first, across),
        points=points,
        best=best,
        default_y=None if default_cost is None else down(default_cost),
        lanes=lanes,
        is_log=is_log,
        left_out=sum(row.cost is not None for row in rows) - len(points),
        text=_text(rows, unit, default_cost, wrong),
    )


def _scale(lowest: float, highest: float) -> tuple[Callable[[float], float], tuple[tuple[float, str], ...], bool]:
    """Where a cost stands, the marks of the axis, and whether it is logarithmic."""
    is_log = highest / lowest > _LOG_FROM
    change: Callable[[float], float] = math.log if is_log else float
    low, high = change(lowest), change(highest)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin

    def down(value: float) -> float:
        return round(_TOP + _PLOT_HEIGHT * (high - change(value)) / (high - low), 1)

    values = _log_ticks(math.exp(low), math.exp(high)) if is_log else _even_ticks(low, high)
    return down, tuple((down(value), f"{value:,.10g}") for value in values), is_log


def _even_ticks(low: float, high: float, most: int = 6) -> list[float]:
    step = _round_step((high - low) / most)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1) if n > 0]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 1000 else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in values if low <= value <= high]


def _x_ticks(count: int, first: int, across: Callable[[int], float]) -> tuple[tuple[float, str], ...]:
    step = max(1, int(_round_step(count / 6)) if count > 6 else 1)
    numbers = [n for n in range(first, first + count) if n % step == 0] or [first]
    return tuple((across(n - first), str(n)) for n in numbers)


def _best_line(
    rows: Sequence[Measurement], wrong: set[str], across: Callable[[int], float], down: Callable[[float], float]
) -> tuple[set[int], tuple[tuple[float, float, float, float], ...]]:
    """Which measurements were the best so far, and the steps through them to the right edge."""
    steps: list[tuple[int, float]] = []
    for index, row in enumerate(rows):
        if row.cost is not None and row.config.digest not in wrong and (not steps or row.cost < steps[-1][1]):
            steps.append((index, row.cost))
    lines = []
    for place, (index, value) in enumerate(steps):
        x, y = across(index), down(value)
        following = steps[place + 1] if place + 1 < len(steps) else None
        end = across(following[0]) if following else _RIGHT
        lines.append((x, y, end, y))
        if following:
            lines.append((end, y, end, down(following[1])))
    return {index for index, _ in steps}, tuple(lines)


def _thinned(indices: list[int], kept: set[int]) -> set[int]:
    """At most ``MOST_POINTS`` of the indices, evenly, and those that are to be kept."""
    if len(indices) <= MOST_POINTS:
        return set(indices)
    step = len(indices) / MOST_POINTS
    return kept | {indices[int(n * step)] for n in range(MOST_POINTS)}


def _lanes(
    rows: Sequence[Measurement], across: Callable[[int], float], top: float, first: int
) -> tuple[FailureLane, ...]:
    found: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.cost is None:
            found.setdefault(row.kind.value, []).append(index)
    return tuple(
        FailureLane(
            kind.replace("_", " "),
            len(indices),
            top + _LANE_HEIGHT * place,
            tuple((across(index), f"#{index + first} {kind}") for index in sorted(_thinned(indices, set()))),
        )
        for place, (kind, indices) in enumerate(sorted(found.items()))
    )


def _title(row: Measurement, place: int, unit: str) -> str:
    assert row.cost is not None
    return f"#{place}: {cost(row.cost, unit)}, configuration {row.config.digest}"


def _text(rows: Sequence[Measurement], unit: str, default_cost: float | None, wrong: set[str]) -> str:
    """The plot in words."""
    good = [row.cost for row in rows if row.cost is not None and row.config.digest not in wrong]
    failed = sum(row.cost is None for row in rows)
    parts = [f"{len(rows)} measurements, {failed} of them failed"]
    if good:
        parts.append(f"the first costs {cost(good[0], unit)}, the best {cost(min(good), unit)}")
    if default_cost is not None:
        parts.append(f"the default {cost(default_cost, unit)}")
    return "; ".join(parts)
