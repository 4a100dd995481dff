"""What is tuned, by family: read from the ladders in memory, of which there may be a million entries."""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from ...kernel.ladder import Entry, Ladder
from ...kernel.shapes import MAX_S2, PfaFamily
from ..http.problems import ProblemError

_S2_BITS = MAX_S2.bit_length()
_TRIES = 10
_KEPT = 20.0  # times as long as it took to make


@dataclass(frozen=True, slots=True)
class FamilyTuned:
    """The tuned shapes of one family, ordered by b and s2.

    ``speedup`` is the geometric mean, ``best`` the highest.
    """

    family: PfaFamily
    sizes: array[int]
    entries: list[Entry]
    speedup: float
    best: float
    batches: tuple[int, ...]
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, b: int, s2: int) -> Entry | None:
        """What is served for a size; None where it is not tuned itself."""
        size = _size(b, s2)
        place = bisect_left(self.sizes, size)
        return self.entries[place] if place < len(self.sizes) and self.sizes[place] == size else None


Families = dict[PfaFamily, FamilyTuned]


class TunedIndex:
    """The families of every environment, each read anew after a while that grows with its size."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Families]] = {}
        self._busy = threading.Lock()

    def families(self, environment: str, ladder: Ladder) -> Families:
        """The families of the environment of that digest, the largest first. Takes seconds for a million entries.

        Raises:
            ProblemError: the ladder changes too fast to be read.
        """
        with self._busy:
            until, found = self._known.get(environment, (0.0, {}))
            started = time.monotonic()
            if started >= until:
                found = _read(ladder)
                now = time.monotonic()
                self._known[environment] = now + _KEPT * (now - started), found
            return found


def _read(ladder: Ladder) -> Families:
    for _ in range(_TRIES):
        members: dict[PfaFamily, list[tuple[int, Entry]]] = {}
        try:
            for shape, entry in ladder:
                members.setdefault(shape.family, []).append((_size(shape.b, shape.s2), entry))
        except RuntimeError:  # what is served has changed meanwhile
            continue
        made = [_family(family, rows) for family, rows in members.items()]
        made.sort(key=lambda one: (-len(one), one.family))
        return {one.family: one for one in made}
    text = "what is served changes too fast to be listed: try again in a moment"
    raise ProblemError(503, "busy", "The list cannot be had now", text, headers={"Retry-After": "1"})


def _family(family: PfaFamily, rows: list[tuple[int, Entry]]) -> FamilyTuned:
    rows.sort(key=lambda row: row[0])
    sizes = array("Q", (size for size, _ in rows))
    speedups = [entry.default_cost / entry.cost for _, entry in rows]
    return FamilyTuned(
        family,
        sizes,
        [entry for _, entry in rows],
        math.exp(sum(map(math.log, speedups)) / len(rows)),
        max(speedups),
        tuple(sorted({size >> _S2_BITS for size in sizes})),
        tuple(sorted({size & (1 << _S2_BITS) - 1 for size in sizes})),
    )


def _size(b: int, s2: int) -> int:
    return b << _S2_BITS | s2
