"""The kernel's search space as candidates: points for strategies, canonical configurations for the worker."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..kernel.config import KernelConfig
from .candidates import Field, Point
from .space import Space

_DRAWS = 8  # whose canonical form may lie outside the space


class KernelCandidates:
    """The legal, canonical configurations of a space: every point stands for one, and each for one point."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.fields: tuple[Field, ...] = tuple(Field(name, tuple(values)) for name, values in space.choices.items())
        self._index = [{value: at for at, value in enumerate(field.values)} for field in self.fields]

    def config(self, point: Point) -> KernelConfig:
        """The configuration of a point, as its fields say."""
        pairs = zip(self.fields, point, strict=True)
        return self.space.config({field.name: self.space.choices[field.name][at] for field, at in pairs})

    def point(self, config: KernelConfig) -> Point | None:
        """The point of a canonical configuration; None if it lies outside the space."""
        params = self.space.params(config)
        if params is None:
            return None
        return tuple(index[params[field.name]] for field, index in zip(self.fields, self._index, strict=True))

    def draw(self, rng: random.Random) -> Point | None:
        for _ in range(_DRAWS):
            config = self.space.random(rng)
            if config is None:
                return None
            point = self.point(config)
            if point is not None:
                return point
        return None

    def neighbours(self, point: Point) -> Iterator[Point]:
        for config in self.space.neighbours(self.config(point)):
            other = self.point(config)
            if other is not None and other != point:
                yield other

    def nearest(self, point: Point) -> Point | None:
        config = self.config(point)
        return self.point(config) if self.space.legal(config) else None
