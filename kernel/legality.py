"""Which configurations the compiler can be given: rules in closed form, no compiler needed.

A configuration is judged in its canonical form, since that is what is compiled. Sizes are in
elements unless they end in ``bytes``. Each rule says where it comes from: PyPTO's documentation,
or measured on PyPTO 0.2.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .config import CubeDim, CubeTile, KernelConfig, Setting, VecTile, canonical
from .shapes import PfaFamily
from .soc import Soc

MAX_S2_TILE = 4096  # tokens
MAX_UNROLL = 64
MAX_UNROLL_FACTORS = 6
#: Tokens of one step of the unrolled loop. Measured on PyPTO 0.2.0: 8192 may take 40 s and 6 GB
#: to compile, 16384 more than 8 GB.
MAX_STEP = 8192
MAX_NBUFFER = 64
MAX_L1_REUSE = 64
MAX_STITCH = 1024  # PyPTO's documentation; the canonical form holds less
MAX_SCHED_MODE = 3  # PyPTO's documentation
CUBE_M_ALIGN = 16  # elements
CUBE_FP8_ALIGN = 32  # elements of k and n; also what a dimension occupies in a buffer
V1_ALIGN = 8  # columns of FP32: a row fills whole 32-byte blocks
V2_ALIGN = 16  # columns of BF16, the output: the same

_FP32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a configuration breaks.

    ``field`` is the configuration's field, ``value`` and ``limit`` what it holds or needs and
    what is allowed, in the unit that ``message`` names. The message is one line, and says what
    to do.
    """

    field: str
    value: int
    limit: int
    message: str


def violations(config: KernelConfig, family: PfaFamily, soc: Soc) -> list[Violation]:
    """Every rule that a configuration breaks for a family on a chip; empty if it is legal.

    Any whole numbers may be given; nothing is raised. The canonical form of a configuration is
    legal exactly if the configuration is.
    """
    found = list(_loop_tiles(config, family))
    found += _range("stitch_function_max_num", config.stitch_function_max_num, 1, MAX_STITCH)
    if config.tile.g_tile < 1 or config.tile.s2_tile < 1:
        return found
    config = canonical(config, family)
    tile = config.tile
    found += _cube("c1_tile_shape", tile.c1_tile_shape, soc)
    found += list(_vec("v1_tile_shape", tile.v1_tile_shape, V1_ALIGN)) or list(
        _softmax(tile.v1_tile_shape, tile.s2_tile, soc)
    )
    found += _cube("c2_tile_shape", tile.c2_tile_shape, soc)
    found += list(_vec("v2_tile_shape", tile.v2_tile_shape, V2_ALIGN)) or list(_output(tile.v2_tile_shape, soc))
    found += _unroll(config.unroll_list, tile.s2_tile)
    found += _setting("cube_l1_reuse_setting", config.cube_l1_reuse_setting, 0, MAX_L1_REUSE)
    found += _setting("vec_nbuffer_setting", config.vec_nbuffer_setting, 1, MAX_NBUFFER)
    found += _setting("cube_nbuffer_setting", config.cube_nbuffer_setting, 1, MAX_NBUFFER)
    found += _range("device_sched_mode", config.device_sched_mode, 0, MAX_SCHED_MODE)
    return found


def _range(field: str, value: int, low: int, high: int, what: str = "") -> Iterator[Violation]:
    if not low <= value <= high:
        limit = low if value < low else high
        name = f"{field} {what}" if what else field
        yield Violation(field, value, limit, f"{name} is {value}: give {low} to {high}")


def _loop_tiles(config: KernelConfig, family: PfaFamily) -> Iterator[Violation]:
    """The kernel's own loops: whole tiles of heads, whole pages of tokens."""
    g_tile, s2_tile = config.tile.g_tile, config.tile.s2_tile
    if g_tile < 1 or family.group % g_tile:
        yield Violation(
            "g_tile",
            g_tile,
            family.group,
            f"g_tile is {g_tile}, which does not divide the {family.group} query heads of a KV head: give a divisor",
        )
    if s2_tile < 1 or s2_tile % family.block_size:
        yield Violation(
            "s2_tile",
            s2_tile,
            family.block_size,
            f"s2_tile is {s2_tile} tokens, not whole pages of {family.block_size} tokens: give a multiple of that",
        )
    if s2_tile > MAX_S2_TILE:
        yield Violation("s2_tile", s2_tile, MAX_S2_TILE, f"s2_tile is {s2_tile} tokens, limit {MAX_S2_TILE}: give less")


def _cube(field: str, tile: CubeTile, soc: Soc) -> Iterator[Violation]:
    """A matmul's tiles: PyPTO's documentation of cube tiling, for FP8."""
    sound = True
    for name, dim, align in (
        ("m", tile[0], CUBE_M_ALIGN),
        ("k", tile[1], CUBE_FP8_ALIGN),
        ("n", tile[2], CUBE_FP8_ALIGN),
    ):
        broken = list(_cube_dim(field, name, dim, align))
        sound = sound and not broken
        yield from broken
    if not sound:
        return
    (m_l0, _), (k_l0, k_l1), (n, _) = tile
    m = _round_up(m_l0, CUBE_FP8_ALIGN)
    for name, needed, limit, remedy in (
        ("L0A", m * k_l0, soc.l0a_bytes, "make m or k L0 smaller"),
        ("L0B", k_l0 * n, soc.l0b_bytes, "make k or n L0 smaller"),
        ("L0C", m * n * _FP32, soc.l0c_bytes, "make m or n L0 smaller"),
        ("L1", (m + n) * k_l1, soc.l1_bytes, "make k L1 or n L0 smaller"),
    ):
        if needed > limit:
            yield Violation(
                field, needed, limit, f"{field} needs {needed} bytes of {name}, limit {limit} bytes: {remedy}"
            )


def _cube_dim(field: str, name: str, dim: CubeDim, align: int) -> Iterator[Violation]:
    l0, l1 = dim
    if l0 < 1 or l0 % align:
        yield Violation(field, l0, align, f"{field} has {name} L0 {l0}: give a positive multiple of {align}")
    elif l1 < 1 or l1 % l0:
        yield Violation(field, l1, l0, f"{field} has {name} L1 {l1}: give a positive multiple of its L0, {l0}")


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _vec(field: str, tile: VecTile, align: int) -> Iterator[Violation]:
    rows, columns = tile
    if rows < 1:
        yield Violation(field, rows, 1, f"{field} has {rows} rows: give at least 1")
    if columns < 1 or columns % align:
        yield Violation(field, columns, align, f"{field} has {columns} columns: give a positive multiple of {align}")


def _softmax(tile: VecTile, s2_tile: int, soc: Soc) -> Iterator[Violation]:
    """What the softmax holds in UB at once, measured: two FP32 tiles where v1 is as wide as
    s2_tile, and otherwise three and one row of K's scales.
    """
    rows, columns = tile
    tiles = 2 * rows * columns if columns >= s2_tile else (3 * rows + 1) * columns
    yield from _ub("v1_tile_shape", tiles, rows, soc)


def _output(tile: VecTile, soc: Soc) -> Iterator[Violation]:
    """What the merge and the output hold in UB at once, measured: two FP32 tiles."""
    rows, columns = tile
    yield from _ub("v2_tile_shape", 2 * rows * columns, rows, soc)


def _ub(field: str, elements: int, rows: int, soc: Soc) -> Iterator[Violation]:
    """``elements`` of tiles, and a column of one element for each row."""
    needed = _FP32 * (elements + _round_up(rows, V1_ALIGN))
    if needed > soc.ub_bytes:
        yield Violation(
            field,
            needed,
            soc.ub_bytes,
            f"{field} needs {needed} bytes of UB, limit {soc.ub_bytes} bytes: give fewer rows or columns",
        )


def _unroll(factors: tuple[int, ...], s2_tile: int) -> Iterator[Violation]:
    """The canonical list, which always holds 1."""
    broken = [violation for factor in factors for violation in _range("unroll_list", factor, 1, MAX_UNROLL, "factor")]
    yield from broken
    if len(factors) > MAX_UNROLL_FACTORS:
        yield Violation(
            "unroll_list",
            len(factors),
            MAX_UNROLL_FACTORS,
            f"unroll_list has {len(factors)} factors, limit {MAX_UNROLL_FACTORS}: each one is compiled; give fewer",
        )
    tokens = max(factors) * s2_tile
    if not broken and s2_tile <= MAX_S2_TILE and tokens > MAX_STEP:
        yield Violation(
            "unroll_list",
            tokens,
            MAX_STEP,
            f"unroll_list makes one step of {tokens} tokens, limit {MAX_STEP}: unroll less or make s2_tile smaller",
        )


def _setting(field: str, setting: Setting, low: int, high: int) -> Iterator[Violation]:
    for key, value in setting:
        if key < -1:
            yield Violation(field, key, -1, f"{field} has the subgraph {key}: give -1 for all, or an id from 0")
        yield from _range(field, value, low, high, f"of subgraph {key}")
