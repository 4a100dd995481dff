"""What a strategy chooses from: points of a space of named fields, whatever kernel they belong to.

A point is the index of each field's value. Strategies know nothing else of a space, so that the
same code searches the kernel's own space and any recorded one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: A value of a field; lists and automatic settings are spelled as text.
Value = int | float | str | bool
#: The index of each field's value, in the order of the fields.
Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter and its values, in ascending order where they have one."""

    name: str
    values: tuple[Value, ...]


class Candidates(Protocol):
    """The points that may be proposed: legal ones in canonical form."""

    fields: tuple[Field, ...]

    def draw(self, rng: random.Random) -> Point | None:
        """A point at random, evenly over the values; None if none was found."""

    def neighbours(self, point: Point) -> Iterable[Point]:
        """Points that differ from this one in one field, the nearest values of it first."""

    def nearest(self, point: Point) -> Point | None:
        """The point itself if it may be proposed, else its canonical form, else None."""


class Table:
    """A space that is known as a whole: just these points.

    Raises:
        ValueError: there is no point, or one does not fit the fields.
    """

    def __init__(self, fields: Sequence[Field], points: Iterable[Point]) -> None:
        self.fields = tuple(fields)
        self.points = tuple(dict.fromkeys(points))
        if not self.points:
            raise ValueError("a space without points: give at least one")
        for point in self.points:
            if len(point) != len(self.fields) or not all(
                0 <= index < len(field.values) for index, field in zip(point, self.fields, strict=True)
            ):
                raise ValueError(f"the point {point} does not fit the fields {', '.join(f.name for f in self.fields)}")
        self._known = frozenset(self.points)

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Value]], names: Sequence[str]) -> Table:
        """The table of these rows; a field's values are those that occur, numbers in ascending order.

        Fields of one value are left out.
        """
        fields = []
        for name in names:
            values = tuple(sorted({row[name] for row in rows}, key=_order))
            if len(values) > 1:
                fields.append(Field(name, values))
        index = {field.name: {value: i for i, value in enumerate(field.values)} for field in fields}
        return cls(fields, (tuple(index[f.name][row[f.name]] for f in fields) for row in rows))

    def point(self, row: Mapping[str, Value]) -> Point:
        """The point of a row.

        Raises:
            ValueError: a value does not occur in its field.
        """
        return tuple(field.values.index(row[field.name]) for field in self.fields)

    def draw(self, rng: random.Random) -> Point | None:
        return rng.choice(self.points)

    def neighbours(self, point: Point) -> Iterator[Point]:
        for distance in range(1, max((len(field.values) for field in self.fields), default=0)):
            for at in range(len(self.fields)):
                for index in (point[at] - distance, point[at] + distance):
                    other = (*point[:at], index, *point[at + 1 :])
                    if other in self._known:
                        yield other

    def nearest(self, point: Point) -> Point | None:
        return point if point in self._known else None


def _order(value: Value) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
