"""The tuned configurations of a family as a grid of b and s2."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from urllib.parse import urlencode

from ...db.records import Environment
from ...kernel.ladder import Entry
from ...kernel.shapes import PfaFamily, PfaShape
from ..http.problems import invalid
from .tuned import Families, FamilyTuned
from .words import cost, family_key, ratio, shape_query, when

MOST = 30  # rows and columns of one page
MOST_FAMILIES = 200  # that can be chosen from
STEPS = 24  # of the colour scale, as many as the stylesheet has
STEPS_AN_OCTAVE = 8
_LEGEND_EVERY = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One tuned shape: ``step`` is its colour, ``title`` what is known of it."""

    query: str
    step: int
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one b, None where nothing is tuned."""

    b: int
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """The part of an axis that is shown; ``before`` and ``after`` are the queries of the parts beside it."""

    name: str
    values: tuple[int, ...]
    all: int
    before: str | None
    after: str | None

    @property
    def is_whole(self) -> bool:
        return len(self.values) == self.all


@dataclass(frozen=True, slots=True)
class Grid:
    """A family's grid, or the part of it that fits on a page."""

    tuned: FamilyTuned
    rows: tuple[Row, ...]
    b: Axis
    s2: Axis


def step_of(speedup: float) -> int:
    """The colour of a speed-up, from 0: the same distance for the same factor."""
    # A tiny bit more, so that 2.0 falls on its own mark.
    return max(0, min(STEPS - 1, math.floor(math.log2(speedup) * STEPS_AN_OCTAVE + 1e-9)))


def legend() -> list[tuple[int, str]]:
    """Every colour, with the lowest speed-up that has it where that is to be written."""
    return [(step, ratio(2 ** (step / STEPS_AN_OCTAVE)) if step % _LEGEND_EVERY == 0 else "") for step in range(STEPS)]


def family_of(key: str | None, families: Families) -> PfaFamily | None:
    """The family that a query names, else the one of most shapes; None where there is none.

    Raises:
        ProblemError: the query names none.
    """
    if key is None:
        return next(iter(families), None)
    numbers = [int(part) for part in key.split(",") if part.isascii() and part.isdigit() and len(part) < 6]
    if len(numbers) != len(PfaFamily.__slots__) or numbers.count(0):
        raise invalid("family", f"family is {key[:100]!r}: give s1,nq,nkv,qd,block_size, such as 1,12,1,128,128")
    return PfaFamily(*numbers)


def grid_of(tuned: FamilyTuned, environment: Environment, b_from: int, s2_from: int) -> Grid:
    """The grid from the given b and s2 on."""
    base = {"environment": environment.digest, "family": family_key(tuned.family)}
    bs, b_axis = _window("b", tuned.batches, b_from, {**base, "s2_from": s2_from})
    s2s, s2_axis = _window("s2", tuned.lengths, s2_from, {**base, "b_from": b_from})
    rows = []
    for b in bs:
        cells = tuple(_cell(tuned.family, environment, b, s2, tuned.get(b, s2)) for s2 in s2s)
        rows.append(Row(b, cells))
    return Grid(tuned, tuple(rows), b_axis, s2_axis)


def _window(
    name: str, values: tuple[int, ...], start: int, query: dict[str, str | int]
) -> tuple[tuple[int, ...], Axis]:
    place = min(bisect_left(values, start), len(values) - 1)
    shown = values[place : place + MOST]

    def link(at: int) -> str:
        given = {**query, f"{name}_from": values[at]}
        return urlencode({key: value for key, value in given.items() if value})

    before = link(max(0, place - MOST)) if place else None
    after = link(place + MOST) if place + MOST < len(values) else None
    return shown, Axis(name, shown, len(values), before, after)


def _cell(family: PfaFamily, environment: Environment, b: int, s2: int, entry: Entry | None) -> Cell | None:
    if entry is None:
        return None
    speedup = entry.default_cost / entry.cost
    unit = environment.unit
    parts = [
        f"b={b} s2={s2}: {cost(entry.cost, unit)}",
        f"default {cost(entry.default_cost, unit)}",
        f"configuration {entry.config.digest}",
    ]
    if entry.verified_at:
        parts.append(f"verified {when(entry.verified_at)}")
    if not entry.full:
        parts.append("measured with shorter sequences")
    static = family.to_json()
    return Cell(shape_query(PfaShape(b, s2, **static)), step_of(speedup), f"{speedup:.2f}", "; ".join(parts))
