"""Entries and ladders for tests: configurations that are legal for every family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.ladder import Entry, Ladder
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaFamily, PfaShape

FAMILIES = (PfaFamily(), PfaFamily(nkv=2), PfaFamily(s1=2, nq=48, nkv=8))
VERIFIED = "2026-03-01T12:00:00+00:00"


def config(number: int = 100, family: PfaFamily = FAMILIES[0]) -> KernelConfig:
    """The default with a stitch_function_max_num of its own, 1 to 128."""
    default = canonical(default_config(PfaShape(1, 1024, *family.to_json().values())), family)
    return KernelConfig.from_json({**default.to_json(), "stitch_function_max_num": number})


def entry(number: int = 100, family: PfaFamily = FAMILIES[0], *, full: bool = True) -> Entry:
    return Entry(config(number, family), 1000.0 + number, 2000.0, number, VERIFIED, full)


def shape_of(family: PfaFamily, b: int, s2: int) -> PfaShape:
    return PfaShape(b=b, s2=s2, **family.to_json())


def ladder_of(entries: Iterable[tuple[PfaShape, Entry]]) -> Ladder:
    ladder = Ladder()
    for shape, one in entries:
        ladder.add(shape, one)
    return ladder


def small_ladder(number: int = 100, sizes: Sequence[tuple[int, int]] = ((2, 1024), (16, 8192))) -> Ladder:
    return ladder_of((PfaShape(b, s2), entry(number)) for b, s2 in sizes)


def batches() -> st.SearchStrategy[int]:
    """Small ones and powers of two often, so that neighbours and ties turn up."""
    return st.integers(1, MAX_BATCH) | st.integers(1, 8) | st.sampled_from([2**k for k in range(11)])


def lengths(least: int = 2) -> st.SearchStrategy[int]:
    return st.integers(least, MAX_S2) | st.integers(least, 12) | st.sampled_from([2**k for k in range(1, 18)])


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    ladder = Ladder()
    for family in draw(st.lists(st.sampled_from(FAMILIES), unique=True)):
        for b, s2 in draw(st.lists(st.tuples(batches(), lengths()), max_size=8)):
            ladder.add(shape_of(family, b, s2), entry(draw(st.integers(1, 128)), family, full=draw(st.booleans())))
        if draw(st.booleans()):
            members = draw(st.lists(st.tuples(batches(), lengths(), st.integers(1, 128)), max_size=3))
            ladder.set_portfolio(family, [(b, s2, config(number, family)) for b, s2, number in members])
    return ladder
