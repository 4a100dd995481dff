"""Buckets: the laws that let one tuned shape stand for its neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import shapes

from pfatune.kernel.buckets import bucket, bucket_sizes
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaShape


@given(shapes())
def test_a_bucket_is_its_own_bucket(shape: PfaShape) -> None:
    assert bucket(bucket(shape)) == bucket(shape)


@given(shapes())
def test_a_bucket_covers_the_shape_and_stays_in_its_family(shape: PfaShape) -> None:
    found = bucket(shape)
    assert found.family == shape.family
    assert shape.b <= found.b <= MAX_BATCH
    assert max(shape.s2, shape.block_size) <= found.s2 <= MAX_S2


@given(shapes())
def test_a_bucket_is_less_than_twice_and_one_and_a_half_times_as_large(shape: PfaShape) -> None:
    found = bucket(shape)
    assert found.b < 2 * shape.b
    assert 2 * found.s2 < 3 * max(shape.s2, shape.block_size)


@given(shapes(), st.integers(1, MAX_BATCH), st.integers(1, MAX_S2))
def test_a_larger_shape_has_no_smaller_bucket(shape: PfaShape, b: int, s2: int) -> None:
    larger = replace(shape, b=max(b, shape.b), s2=max(s2, shape.s2))
    assert bucket(larger).b >= bucket(shape).b
    assert bucket(larger).s2 >= bucket(shape).s2


def test_lengths_are_powers_of_two_and_the_middles_between_them() -> None:
    lengths = sorted({bucket(PfaShape(b=1, s2=s2)).s2 for s2 in range(1, 1025)})
    assert lengths == [128, 192, 256, 384, 512, 768, 1024]
    assert sorted({bucket(PfaShape(b=b, s2=1024)).b for b in range(1, 1025)}) == [2**k for k in range(11)]


@pytest.mark.parametrize(("tokens", "expected"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16)])
def test_the_smallest_lengths(tokens: int, expected: int) -> None:
    assert bucket_sizes(1, tokens, 1) == (1, expected)
