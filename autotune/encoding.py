"""Points as codes with a table of distances for each field, and for products of fields that act together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .candidates import Field, Point, Value

Array = NDArray[np.float64]
Codes = NDArray[np.intp]


class Encoding:
    """Points as rows of codes, and how far apart the values of each code are.

    The first ``plain`` codes are the fields themselves. The others are products of two sizes along the
    same axis, told by a part of the name in common, as of ``block_size_x`` and ``tile_size_x``:
    what a kernel pays for is often the product. ``distances[c]`` is (values, values).
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.distances = [distances(field) for field in self.fields]
        self.plain = len(self.distances)
        self._pairs = [
            (one, other)
            for one, other in combinations(range(self.plain), 2)
            if _has_sizes(self.fields[one]) and _has_sizes(self.fields[other])
            if set(self.fields[one].name.split("_")) & set(self.fields[other].name.split("_"))
        ]
        self.distances += [_product(self.fields[one], self.fields[other]) for one, other in self._pairs]

    def codes(self, points: Sequence[Point]) -> Codes:
        """The codes of points: (points, codes)."""
        base = np.array(points, dtype=np.intp).reshape(len(points), self.plain)
        products = [base[:, one] * len(self.fields[other].values) + base[:, other] for one, other in self._pairs]
        return np.column_stack([base, *products]) if products else base


def _has_sizes(field: Field) -> bool:
    return len(field.values) > 2 and all(isinstance(v, (int, float)) and v > 0 for v in field.values)


def _product(one: Field, other: Field) -> Array:
    sizes = [np.log2(np.array([float(value) for value in field.values])) for field in (one, other)]
    total = (sizes[0][:, None] + sizes[1][None, :]).ravel()
    return np.asarray(np.abs(total[:, None] - total[None, :]) / np.ptp(total))


def distances(field: Field) -> Array:
    """How far apart the values of a field are, from 0 to about 1: (values, values)."""
    places = coordinates(field)
    return np.asarray(np.sqrt(((places[:, None, :] - places[None, :, :]) ** 2).sum(-1)))


def coordinates(field: Field) -> Array:
    """The place of each value of a field, each axis from 0 to 1: (values, axes).

    Positive numbers lie on a logarithmic axis, others on a plain one. Where how often a number can be halved
    says something else than its size, that is an axis too: tiles of whole powers of two are a kind of their own.
    Lists of numbers lie by their largest and by their length. Other texts stand apart from everything else.
    """
    axes = [_sizes(field.values), [_halvings(value) for value in field.values]]
    axes.append([_length(value) for value in field.values])
    axes += [[float(other == value) for other in field.values] for value in field.values if _is_word(value)]
    scaled = [_scaled(np.array(axis)) for axis in axes]
    if len(field.values) <= 4 or abs(_correlation(scaled[0], scaled[1])) > 0.95:
        scaled[1] = np.zeros(len(field.values))
    kept = [axis for axis in scaled if np.ptp(axis) > 0]
    return np.stack(kept, axis=1) if kept else np.zeros((len(field.values), 1))


def _sizes(values: Sequence[Value]) -> list[float]:
    largest = [max(_numbers(value), default=None) for value in values]
    known = [size for size in largest if size is not None]
    if all(size > 0 for size in known):
        return [math.log2(size) if size is not None else 0.0 for size in largest]
    return [size if size is not None else 0.0 for size in largest]


def _halvings(value: Value) -> float:
    numbers = _numbers(value)
    largest = max(numbers, default=0.0)
    if largest <= 0 or largest != int(largest):
        return 0.0
    whole = int(largest)
    return float((whole & -whole).bit_length() - 1)


def _length(value: Value) -> float:
    return float(len(_numbers(value))) if isinstance(value, str) and not _is_word(value) else 1.0


def _is_word(value: Value) -> bool:
    return isinstance(value, str) and not _numbers(value)


def _numbers(value: Value) -> list[float]:
    if not isinstance(value, str):
        return [float(value)]
    try:
        return [float(part) for part in value.split(",")]
    except ValueError:
        return []


def _scaled(axis: Array) -> Array:
    width = float(np.ptp(axis))
    return (axis - axis.min()) / width if width > 0 else np.zeros_like(axis)


def _correlation(one: Array, other: Array) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 1.0
    return float(np.corrcoef(one, other)[0, 1])
