"""The ladder: which rung answers, that the nearest is the nearest, and that a million entries stay quick."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ladder_tools import FAMILIES, batches, config, entry, ladder_of, ladders, lengths, shape_of, small_ladder
from strategies import shapes

from pfatune.kernel.buckets import bucket
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.ladder import MAX_DISTANCE, Answer, Entry, Ladder
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaFamily, PfaShape

SIZES = st.lists(st.tuples(batches(), lengths(1), st.booleans()), max_size=12)


def ratio(one: tuple[int, ...], other: tuple[int, ...]) -> Fraction:
    """Two to the power of the distance between two sizes, each number counting alike."""
    found = Fraction(1)
    for first, second in zip(one, other, strict=True):
        found *= Fraction(max(first, second), min(first, second))
    return found


def test_an_entry_of_the_very_shape_comes_first() -> None:
    shape = PfaShape(3, 1000)
    ladder = ladder_of([(bucket(shape), entry(1)), (shape, entry(2)), (PfaShape(3, 1001), entry(3))])
    assert ladder.lookup(shape) == Answer(config(2), "exact", shape, entry(2))


def test_the_bucket_comes_before_a_nearer_entry() -> None:
    shape = PfaShape(3, 1000)
    ladder = ladder_of([(bucket(shape), entry(1)), (PfaShape(3, 1001), entry(2))])
    assert ladder.lookup(shape) == Answer(config(1), "bucket", bucket(shape), entry(1))


def test_an_entry_measured_with_short_requests_is_never_exact_nor_a_bucket() -> None:
    shape = PfaShape(3, 1000)
    short = ladder_of([(shape, entry(1, full=False)), (bucket(shape), entry(2, full=False))])
    assert short.lookup(shape) == Answer(config(1), "nearest", shape, entry(1, full=False))
    with_bucket = ladder_of([(shape, entry(1, full=False)), (bucket(shape), entry(2))])
    assert with_bucket.lookup(shape).provenance == "bucket"


def test_a_full_entry_stays_before_one_that_is_not() -> None:
    shape = PfaShape(2, 1024)
    ladder = ladder_of([(shape, entry(1)), (shape, entry(2, full=False))])
    assert ladder.lookup(shape).entry == entry(1)
    ladder.add(shape, entry(3))
    assert ladder.lookup(shape).entry == entry(3)
    assert len(ladder) == 1


def test_nothing_farther_than_a_factor_of_four_is_nearest() -> None:
    ladder = ladder_of([(PfaShape(4, 1024), entry(1))])
    assert 2**MAX_DISTANCE == 4
    assert ladder.lookup(PfaShape(16, 1024)).provenance == "nearest"
    assert ladder.lookup(PfaShape(17, 1024)).provenance == "default"
    assert ladder.lookup(PfaShape(4, 4096)).provenance == "nearest"
    assert ladder.lookup(PfaShape(4, 4097)).provenance == "default"
    assert ladder.lookup(PfaShape(8, 2048)).provenance == "nearest"
    assert ladder.lookup(PfaShape(8, 2049)).provenance == "default"


def test_other_families_are_no_neighbours() -> None:
    ladder = ladder_of([(PfaShape(2, 1024, nkv=2), entry(1, PfaFamily(nkv=2)))])
    assert ladder.lookup(PfaShape(2, 1024)).provenance == "default"


@given(SIZES, batches(), lengths(1))
def test_the_nearest_is_the_nearest(sizes: list[tuple[int, int, bool]], b: int, s2: int) -> None:
    ladder = ladder_of((PfaShape(*size), entry(n + 1, full=full)) for n, (*size, full) in enumerate(sizes))
    answer = ladder.lookup(PfaShape(b, s2))
    full = {(b, s2) for b, s2, full in sizes if full}
    target = bucket(PfaShape(b, s2))
    within = [(b2, s22) for b2, s22, _ in sizes if ratio((b, s2), (b2, s22)) <= 4]
    if (b, s2) in full:
        assert (answer.provenance, answer.shape) == ("exact", PfaShape(b, s2))
    elif (target.b, target.s2) in full:
        assert (answer.provenance, answer.shape) == ("bucket", target)
    elif within:
        best = min(within, key=lambda size: (ratio((b, s2), size), -size[1], -size[0]))
        assert (answer.provenance, answer.shape) == ("nearest", PfaShape(*best))
    else:
        assert answer == Answer(canonical(default_config(PfaShape(b, s2)), PfaFamily()), "default")
    if answer.shape is not None:
        assert dict(ladder)[answer.shape] == answer.entry
        assert answer.entry is not None
        assert answer.config == answer.entry.config


@given(SIZES, SIZES, st.lists(st.tuples(batches(), lengths(1)), min_size=1, max_size=4))
def test_answers_depend_on_the_entries_and_not_on_when_they_came(
    first: list[tuple[int, int, bool]], second: list[tuple[int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    entries = [(PfaShape(b, s2), entry(n + 1)) for n, (b, s2, _) in enumerate(first + second)]
    at_once = ladder_of(entries)
    in_two = ladder_of(entries[: len(first)])
    for size in asked:
        in_two.lookup(PfaShape(*size))
    for one in entries[len(first) :]:
        in_two.add(*one)
    for size in asked:
        assert in_two.lookup(PfaShape(*size)) == at_once.lookup(PfaShape(*size))


@given(st.lists(st.tuples(batches(), lengths(1)), min_size=1, max_size=6, unique=True), batches(), lengths(1))
def test_a_portfolio_answers_with_its_nearest_member(members: list[tuple[int, int]], b: int, s2: int) -> None:
    ladder = Ladder()
    ladder.set_portfolio(PfaFamily(), [(*size, config(n + 1)) for n, size in enumerate(members)])
    best = min(members, key=lambda size: (ratio((b, s2, s2), (*size, size[1])), -size[1], -size[0]))
    assert ladder.lookup(PfaShape(b, s2)) == Answer(config(members.index(best) + 1), "portfolio")


def test_a_portfolio_comes_after_what_is_near_and_can_be_taken_back() -> None:
    ladder = small_ladder()
    ladder.set_portfolio(PfaFamily(), [(1, 128, config(7))])
    assert ladder.lookup(PfaShape(2, 1025)).provenance == "nearest"
    assert ladder.lookup(PfaShape(1024, MAX_S2)) == Answer(config(7), "portfolio")
    ladder.set_portfolio(PfaFamily(), [])
    assert ladder.lookup(PfaShape(1024, MAX_S2)).provenance == "default"


@given(shapes())
def test_an_empty_ladder_gives_the_default_in_canonical_form(shape: PfaShape) -> None:
    assert Ladder().lookup(shape) == Answer(canonical(default_config(shape), shape.family), "default")


@given(ladders(), shapes())
def test_a_lookup_never_fails(ladder: Ladder, shape: PfaShape) -> None:
    for asked in (shape, *(shape_of(family, shape.b, max(shape.s2, family.s1)) for family in FAMILIES)):
        ladder.lookup(asked)


@given(SIZES)
def test_every_entry_is_counted_and_listed_once(sizes: list[tuple[int, int, bool]]) -> None:
    ladder = ladder_of((PfaShape(b, s2), entry(1, full=full)) for b, s2, full in sizes)
    assert len(ladder) == len({size[:2] for size in sizes})
    assert {(shape.b, shape.s2) for shape, _ in ladder} == {size[:2] for size in sizes}


@pytest.mark.parametrize(
    ("b", "s2"), [(1, 1), (MAX_BATCH, MAX_S2), (1, MAX_S2), (MAX_BATCH, 1), (MAX_BATCH - 1, MAX_S2 - 1)]
)
def test_the_largest_and_smallest_sizes_are_kept_apart(b: int, s2: int) -> None:
    ladder = ladder_of([(PfaShape(b, s2), entry(1))])
    assert [shape for shape, _ in ladder] == [PfaShape(b, s2)]
    assert ladder.lookup(PfaShape(b, s2)).provenance == "exact"


@pytest.mark.slow
def test_a_large_family_is_neither_walked_through_nor_sorted_again_for_a_lookup() -> None:
    chance = random.Random(1)
    one = entry(1)
    ladder = Ladder()
    entries = [(chance.randint(1, 64), s2, one) for s2 in range(1, MAX_S2 + 1)]
    chance.shuffle(entries)
    ladder.add_all(PfaFamily(), entries)
    ladder.settle()
    asked = [PfaShape(chance.randint(1, 64), chance.randint(1, MAX_S2)) for _ in range(2000)]
    start = time.monotonic()
    for shape in asked:
        ladder.add(shape, one)
        ladder.lookup(PfaShape(MAX_BATCH if shape.b == 1 else shape.b - 1, shape.s2))
    # Walking through the family, or sorting all of it, takes minutes.
    assert time.monotonic() - start < 10


def test_an_entry_takes_part_in_sets_and_comparisons() -> None:
    assert len({entry(1), entry(1), entry(2)}) == 2
    assert Entry(config(1), 1.0, 2.0, 0, "").full
