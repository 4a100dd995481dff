"""What every search strategy is: it proposes points one after another and learns what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .candidates import Candidates, Point

DEFAULT = "model"
NAMES = (DEFAULT, "local", "random", "tpe", "gp")


class Strategy(Protocol):
    """A search under way over the candidates it was made for.

    A point is proposed once: it counts as being measured until ``learn`` or ``forget`` is called
    with it, in whatever order, so that any number may be in flight.
    """

    @property
    def promise(self) -> float | None:
        """What the last proposal is expected to gain: mean log of cost over the workloads; None if not known."""

    def propose(self) -> Point | None:
        """A point to measure next; None if nothing new is left."""

    def reserve(self, point: Point) -> None:
        """Take a point as being measured that somebody else chose."""

    def learn(self, point: Point, costs: Sequence[float] | None, seconds: float) -> None:
        """What a point cost on each workload, all above 0, or None where it failed, and the trial's seconds.

        Points that were not proposed are taken in as well; one that is learnt again is replaced.
        """

    def believe(self, point: Point, costs: Sequence[float]) -> None:
        """What a point may cost, judged by measurements taken elsewhere; it is still to be measured."""

    def forget(self, point: Point) -> None:
        """Take back a proposal that was not measured."""


#: Makes a strategy: candidates, weight of each workload, seed.
StrategyFactory = Callable[[Candidates, Sequence[float], int], Strategy]
