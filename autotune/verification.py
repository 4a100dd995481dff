"""The problem on which a configuration's numbers are checked."""

from __future__ import annotations

from ..kernel.config import KernelConfig
from ..kernel.shapes import PfaFamily, PfaShape, Workload

#: Tokens that the interpreter may spend on one pass of an unrolled body: it needs about 2 ms each.
_UNROLLED_TOKENS = 4096


def verification_workload(config: KernelConfig, family: PfaFamily) -> Workload:
    """A small problem that exercises a configuration's tiles.

    Two requests: one long enough for a pass of an unrolled loop body, a further tile and an
    unaligned tail, one shorter than a tile. At most two KV heads stand for all, since the kernel
    treats every head alike but writes one head differently from several; likewise s1.
    """
    s2_tile = config.tile.s2_tile
    factor = max(n for n in config.unroll_list if n == 1 or n * s2_tile <= _UNROLLED_TOKENS or n == 2)
    nkv = min(family.nkv, 2)
    s1 = min(family.s1, 2)
    tail = s2_tile // 2 + family.block_size // 4 + 5
    long = (factor + 1) * s2_tile + tail
    short = max(s1, s2_tile // 3 + 1)
    shape = PfaShape(b=2, s2=long, s1=s1, nq=family.group * nkv, nkv=nkv, qd=family.qd, block_size=family.block_size)
    return Workload(shape, (long, short))
