"""Which configuration to run for a shape: one ladder for tuner, service, command line and engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from .buckets import bucket_sizes
from .config import KernelConfig, canonical, default_config
from .shapes import PfaFamily, PfaShape

Provenance = Literal["exact", "bucket", "nearest", "portfolio", "default"]

#: How far the nearest entry may be: |log2(b/b')| + |log2(s2/s2')|.
MAX_DISTANCE = 2.0
_MAX_RATIO = int(2**MAX_DISTANCE)
_B_BITS = 11  # MAX_BATCH fits

#: A member of a portfolio: b, s2 in tokens, and the configuration.
Member = tuple[int, int, KernelConfig]
_FamilyKey = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """What is served for one shape, with its evidence.

    ``config`` is the canonical form. The costs are in the environment's unit. ``measurement`` is
    an id of the store, 0 if unknown; ``verified_at`` is ISO 8601 in UTC, '' if unknown. ``full``
    means measured with every request at s2 tokens.
    """

    config: KernelConfig
    cost: float
    default_cost: float
    measurement: int
    verified_at: str
    full: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """A configuration, in canonical form, and where it comes from.

    ``shape`` is the one that ``entry`` was tuned at; both are None for a portfolio and for the default.
    """

    config: KernelConfig
    provenance: Provenance
    shape: PfaShape | None = None
    entry: Entry | None = None


class Ladder:
    """Tuned shapes, and the answer for any shape: exact, bucket, nearest, portfolio or default.

    The first of these that there is:

    - exact: an entry of that very shape, measured with full requests;
    - bucket: such an entry of the shape's bucket;
    - nearest: the entry of the family with the least |log2(b/b')| + |log2(s2/s2')|, full or not,
      at most ``MAX_DISTANCE`` away; of equally near ones that of the larger s2, then b;
    - portfolio: its member with the least |log2(b/b')| + 2 · |log2(s2/s2')|, however far; of equally
      near ones that of the larger s2, then b;
    - default: what the kernel itself ships.

    Lookups from several threads are safe once ``settle`` was called after the last change.
    """

    def __init__(self) -> None:
        self._families: dict[_FamilyKey, _Family] = {}
        self._size = 0

    def add(self, shape: PfaShape, entry: Entry) -> None:
        """Serve an entry for a shape, in place of what was served; a full one stays before one that is not."""
        self._size += self._family(_key(shape)).add(shape.b, shape.s2, entry)

    def add_all(self, family: PfaFamily, entries: Sequence[tuple[int, int, Entry]]) -> None:
        """``add`` for many (b, s2, entry) of one family, whose sizes are known to be legal."""
        members = self._family(_key(family))
        for b, s2, entry in entries:
            self._size += members.add(b, s2, entry)

    def set_portfolio(self, family: PfaFamily, portfolio: Sequence[Member]) -> None:
        """Serve a few (b, s2, canonical configuration) where nothing tuned is near; empty: none.

        Of a size given twice, the last counts.
        """
        self._family(_key(family)).portfolio = tuple({member[:2]: member for member in portfolio}.values())

    def portfolios(self) -> Iterator[tuple[PfaFamily, tuple[Member, ...]]]:
        """The portfolio of every family that has one."""
        for key, members in self._families.items():
            if members.portfolio:
                yield PfaFamily(*key), members.portfolio

    def settle(self) -> None:
        """Sort what was added, so that lookups change nothing."""
        for members in self._families.values():
            members.settle()

    def lookup(self, shape: PfaShape) -> Answer:
        """What to run for a shape. Nothing is raised."""
        members = self._families.get(_key(shape))
        if members is not None:
            found = members.find(shape.b, shape.s2, shape.block_size)
            if found is not None:
                provenance, b, s2, entry = found
                tuned_at = shape if provenance == "exact" else members.shape(b, s2, shape)
                return Answer(entry.config, provenance, tuned_at, entry)
            if members.portfolio:
                return Answer(nearest_member(members.portfolio, shape.b, shape.s2), "portfolio")
        return Answer(_canonical_default(default_config(shape), shape.family), "default")

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[PfaShape, Entry]]:
        for key, members in self._families.items():
            for number, entry in members.entries.items():
                b, s2 = _sizes(number)
                yield PfaShape(b, s2, *key), entry

    def _family(self, key: _FamilyKey) -> _Family:
        members = self._families.get(key)
        if members is None:
            members = self._families[key] = _Family()
        return members


@dataclass(slots=True)
class _Family:
    """Entries by size. A size is one number, and each b has its own list of s2: both keep a million small."""

    entries: dict[int, Entry] = field(default_factory=dict)
    portfolio: tuple[Member, ...] = ()
    lengths: dict[int, list[int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    unsorted: set[int] = field(default_factory=set)
    shapes: dict[int, PfaShape] = field(default_factory=dict)  # of entries that were found for other shapes
    distinct: list[int] = field(default_factory=list)  # every s2 once, sorted

    def add(self, b: int, s2: int, entry: Entry) -> bool:
        """Whether the size is new."""
        number = _number(b, s2)
        old = self.entries.get(number)
        if old is not None:
            if entry.full or not old.full:
                self.entries[number] = entry
            return False
        self.entries[number] = entry
        place = bisect_left(self.distinct, s2)
        if self.distinct[place : place + 1] != [s2]:
            self.distinct.insert(place, s2)
        row = self.lengths.get(b)
        if row is None:
            self.lengths[b] = [s2]
            self.batches = sorted(self.lengths)
        else:
            if row[-1] > s2:
                self.unsorted.add(b)
            row.append(s2)
        return True

    def shape(self, b: int, s2: int, of: PfaShape) -> PfaShape:
        """The shape of an entry; making one takes longer than finding it."""
        number = _number(b, s2)
        found = self.shapes.get(number)
        if found is None:
            found = self.shapes[number] = PfaShape(b, s2, of.s1, of.nq, of.nkv, of.qd, of.block_size)
        return found

    def settle(self) -> None:
        if self.unsorted:
            for b in self.unsorted:
                self.lengths[b].sort()
            self.unsorted = set()

    def find(self, b: int, s2: int, block_size: int) -> tuple[Provenance, int, int, Entry] | None:
        entry = self.entries.get(_number(b, s2))
        if entry is not None and entry.full:
            return "exact", b, s2, entry
        bucket_b, bucket_s2 = bucket_sizes(b, s2, block_size)
        entry = self.entries.get(_number(bucket_b, bucket_s2))
        if entry is not None and entry.full:
            return "bucket", bucket_b, bucket_s2, entry
        nearest = self.nearest(b, s2)
        if nearest is None:
            return None
        return "nearest", *nearest, self.entries[_number(*nearest)]

    def nearest(self, b: int, s2: int) -> tuple[int, int] | None:
        """The sizes of the nearest entry within ``MAX_DISTANCE``.

        Distances are compared as fractions, so that ties are ties. The walk is over b, of which
        there are at most ``MAX_BATCH``, outward until b, with the s2 that is nearest at any b, is
        farther than the best.
        """
        if not self.distinct:
            return None
        nearest_over, nearest_under = self._nearest_s2(s2)
        if self.unsorted:
            self.settle()
        best, over, under = (0, 0), _MAX_RATIO, 1
        batches = self.batches
        start = bisect_left(batches, b)
        for walk in (range(start, len(batches)), range(start - 1, -1, -1)):
            for index in walk:
                near_b = batches[index]
                b_over, b_under = (near_b, b) if near_b > b else (b, near_b)
                if b_over * nearest_over * under > over * b_under * nearest_under:
                    break
                row = self.lengths[near_b]
                place = bisect_left(row, s2)
                for near_s2 in row[max(place - 1, 0) : place + 1]:
                    s2_over, s2_under = (near_s2, s2) if near_s2 > s2 else (s2, near_s2)
                    farther = b_over * s2_over * under - over * b_under * s2_under
                    if farther < 0 or (farther == 0 and (near_s2, near_b) > best):
                        best, over, under = (near_s2, near_b), b_over * s2_over, b_under * s2_under
        return (best[1], best[0]) if best[0] else None

    def _nearest_s2(self, s2: int) -> tuple[int, int]:
        """The least distance of any entry's s2, whatever its b, as a fraction."""
        place = bisect_left(self.distinct, s2)
        if place == len(self.distinct):
            return s2, self.distinct[-1]
        over, under = self.distinct[place], s2
        if place and s2 * under < over * self.distinct[place - 1]:
            over, under = s2, self.distinct[place - 1]
        return over, under


def _key(of: PfaShape | PfaFamily) -> _FamilyKey:
    return of.s1, of.nq, of.nkv, of.qd, of.block_size


def _number(b: int, s2: int) -> int:
    return s2 << _B_BITS | b


def _sizes(number: int) -> tuple[int, int]:
    return number & (1 << _B_BITS) - 1, number >> _B_BITS


def nearest_member(portfolio: Sequence[Member], b: int, s2: int) -> KernelConfig:
    """The configuration of the member with the least |log2(b/b')| + 2 · |log2(s2/s2')| to a size.

    Of equally near ones that of the larger s2, then b. Lengths count double: the tile along s2 is what
    a configuration is most particular about, and more requests are but more of the same tasks.
    """
    best = portfolio[0]
    over, under = _ratio(best, b, s2)
    for member in portfolio[1:]:
        member_over, member_under = _ratio(member, b, s2)
        farther = member_over * under - over * member_under
        if farther < 0 or (farther == 0 and (member[1], member[0]) > (best[1], best[0])):
            best, over, under = member, member_over, member_under
    return best[2]


def _ratio(member: Member, b: int, s2: int) -> tuple[int, int]:
    """Two to the power of the distance, as a fraction."""
    return max(member[0], b) * max(member[1], s2) ** 2, min(member[0], b) * min(member[1], s2) ** 2


@lru_cache(maxsize=1024)
def _canonical_default(config: KernelConfig, family: PfaFamily) -> KernelConfig:
    return canonical(config, family)
