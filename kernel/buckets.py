"""Shapes that stand for their neighbours, so that a few tuned shapes serve many."""

from __future__ import annotations

from .shapes import MAX_BATCH, MAX_S2, PfaShape


def bucket(shape: PfaShape) -> PfaShape:
    """The representative of a shape: of the same family, never smaller, and its own representative.

    ``b`` goes up to a power of two, ``s2`` (tokens) to 2^k or 3·2^(k-1) and to at least one page.
    """
    b, s2 = bucket_sizes(shape.b, shape.s2, shape.block_size)
    return PfaShape(b, s2, shape.s1, shape.nq, shape.nkv, shape.qd, shape.block_size)


def bucket_sizes(b: int, s2: int, block_size: int) -> tuple[int, int]:
    """``b`` and ``s2`` of the bucket, for a lookup that has no time to make a shape."""
    tokens = max(s2, block_size)
    power = _power_of_two(tokens)
    between = power // 4 * 3
    return min(_power_of_two(b), MAX_BATCH), min(between if tokens <= between else power, MAX_S2)


def _power_of_two(value: int) -> int:
    """The smallest power of two that is not below ``value``."""
    return 1 << (value - 1).bit_length()
