"""What is tuned: the tile shapes and options of one kernel, and what the compiler makes of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .shapes import PfaFamily, PfaShape

#: (L0, L1) of one matmul dimension, in elements.
CubeDim = tuple[int, int]
#: The three dimensions of a matmul tile: m, k, n.
CubeTile = tuple[CubeDim, CubeDim, CubeDim]
#: Rows and columns of a vector tile, in elements.
VecTile = tuple[int, int]
#: Root functions that PyPTO 0.2.0 can keep in one device task on a 950. It accepts a
#: stitch_function_max_num of up to 1024, but keeps the mixed tasks of DAV_3510 in lists of 128
#: entries and writes past their end: a 129th function ends in a segmentation fault.
MAX_STITCHED = 128
#: A pass option by subgraph id, -1 meaning all; empty means that the compiler chooses.
Setting = tuple[tuple[int, int], ...]


class ConfigError(ValueError):
    """A configuration that cannot be read: a field is missing, unknown or of the wrong form."""


@dataclass(frozen=True, slots=True)
class PfaTileShapeConfig:
    """Tile shapes of the kernel, in elements, under PyPTO's names.

    ``g_tile`` query heads and ``s2_tile`` KV tokens are worked on at a time. c1 and c2 are
    the cube tiles of Q·Kᵀ and P·V, v1 and v2 the vector tiles of the softmax and of the
    output.
    """

    g_tile: int
    s2_tile: int
    c1_tile_shape: CubeTile
    v1_tile_shape: VecTile
    c2_tile_shape: CubeTile
    v2_tile_shape: VecTile


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Everything that decides how the kernel compiles and runs."""

    tile: PfaTileShapeConfig
    unroll_list: tuple[int, ...]
    cube_l1_reuse_setting: Setting
    vec_nbuffer_setting: Setting
    cube_nbuffer_setting: Setting
    stitch_function_max_num: int
    device_sched_mode: int = 0

    @property
    def pass_options(self) -> dict[str, dict[int, int]]:
        """``pass_options`` of ``pypto.frontend.jit``."""
        return {
            "cube_l1_reuse_setting": dict(self.cube_l1_reuse_setting),
            "vec_nbuffer_setting": dict(self.vec_nbuffer_setting),
            "cube_nbuffer_setting": dict(self.cube_nbuffer_setting),
        }

    @property
    def runtime_options(self) -> dict[str, int]:
        """``runtime_options`` of ``pypto.frontend.jit``, without the run mode."""
        return {
            "stitch_function_max_num": self.stitch_function_max_num,
            "device_sched_mode": self.device_sched_mode,
        }

    @property
    def digest(self) -> str:
        """Identity of this very configuration: 16 hexadecimal digits.

        Take it of the canonical form, so that two spellings of one kernel share it.
        """
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain data; ``from_json`` reads it back."""
        tile = self.tile
        return {
            "g_tile": tile.g_tile,
            "s2_tile": tile.s2_tile,
            "c1_tile_shape": [list(dim) for dim in tile.c1_tile_shape],
            "v1_tile_shape": list(tile.v1_tile_shape),
            "c2_tile_shape": [list(dim) for dim in tile.c2_tile_shape],
            "v2_tile_shape": list(tile.v2_tile_shape),
            "unroll_list": list(self.unroll_list),
            "cube_l1_reuse_setting": _setting_to_json(self.cube_l1_reuse_setting),
            "vec_nbuffer_setting": _setting_to_json(self.vec_nbuffer_setting),
            "cube_nbuffer_setting": _setting_to_json(self.cube_nbuffer_setting),
            "stitch_function_max_num": self.stitch_function_max_num,
            "device_sched_mode": self.device_sched_mode,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelConfig:
        """The configuration that ``to_json`` wrote.

        Raises:
            ConfigError: a field is missing, unknown, or not of the form shown by ``to_json``.
        """
        missing = [name for name in FIELD_NAMES if name not in data and name != "device_sched_mode"]
        unknown = [name for name in data if name not in FIELD_NAMES]
        if missing or unknown:
            what = f"lacks {', '.join(missing)}" if missing else f"has the unknown field {unknown[0]!r}"
            raise ConfigError(f"the configuration {what}: its fields are {', '.join(FIELD_NAMES)}")
        return cls(
            tile=PfaTileShapeConfig(
                g_tile=_whole("g_tile", data["g_tile"]),
                s2_tile=_whole("s2_tile", data["s2_tile"]),
                c1_tile_shape=_cube_tile("c1_tile_shape", data["c1_tile_shape"]),
                v1_tile_shape=_pair("v1_tile_shape", data["v1_tile_shape"]),
                c2_tile_shape=_cube_tile("c2_tile_shape", data["c2_tile_shape"]),
                v2_tile_shape=_pair("v2_tile_shape", data["v2_tile_shape"]),
            ),
            unroll_list=tuple(_whole("unroll_list", n) for n in _sequence("unroll_list", data["unroll_list"])),
            cube_l1_reuse_setting=_setting("cube_l1_reuse_setting", data["cube_l1_reuse_setting"]),
            vec_nbuffer_setting=_setting("vec_nbuffer_setting", data["vec_nbuffer_setting"]),
            cube_nbuffer_setting=_setting("cube_nbuffer_setting", data["cube_nbuffer_setting"]),
            stitch_function_max_num=_whole("stitch_function_max_num", data["stitch_function_max_num"]),
            device_sched_mode=_whole("device_sched_mode", data.get("device_sched_mode", 0)),
        )


#: Fields of a configuration as plain data, in the order in which they are shown.
FIELD_NAMES: tuple[str, ...] = tuple(f.name for f in fields(PfaTileShapeConfig)) + tuple(
    f.name for f in fields(KernelConfig) if f.name != "tile"
)


def default_config(shape: PfaShape) -> KernelConfig:
    """What the kernel's own ``create_config`` ships for a shape.

    g_tile is the whole group; s2_tile is 1024 where s2 is exactly 8192 and 128 elsewhere. That
    description knows blocks of 128 only; for others s2_tile is rounded up to whole blocks.
    """
    dim = (128, 128)
    return KernelConfig(
        tile=PfaTileShapeConfig(
            g_tile=shape.group,
            s2_tile=_round_up(1024 if shape.s2 == 8192 else 128, shape.block_size),
            c1_tile_shape=(dim, dim, dim),
            v1_tile_shape=(128, 128),
            c2_tile_shape=(dim, dim, dim),
            v2_tile_shape=(128, 256),
        ),
        unroll_list=(8, 4, 2, 1),
        cube_l1_reuse_setting=((-1, 8),),
        vec_nbuffer_setting=((-1, 4),),
        cube_nbuffer_setting=((-1, 4),),
        stitch_function_max_num=512,
    )


def canonical(config: KernelConfig, family: PfaFamily) -> KernelConfig:
    """The configuration as the compiler sees it: two spellings of one kernel become equal.

    Tiles are clipped to their tensors; m (always one L0 tile high, since m is g_tile) and
    the L1 sizes that PyPTO does not read are set to what it uses. The unroll list is sorted,
    without repeats, and ends in 1: without it PyPTO drops what is left of a loop (measured).
    stitch_function_max_num is capped at what PyPTO survives, see ``MAX_STITCHED``; below that
    many functions a larger number gives the same cycles.
    """
    tile = config.tile
    return replace(
        config,
        tile=replace(
            tile,
            c1_tile_shape=_canonical_cube(tile.c1_tile_shape, m=tile.g_tile, k=family.qd, n=tile.s2_tile),
            v1_tile_shape=(min(tile.v1_tile_shape[0], tile.g_tile), min(tile.v1_tile_shape[1], tile.s2_tile)),
            c2_tile_shape=_canonical_cube(tile.c2_tile_shape, m=tile.g_tile, k=tile.s2_tile, n=family.qd),
            v2_tile_shape=(min(tile.v2_tile_shape[0], tile.g_tile), min(tile.v2_tile_shape[1], family.qd)),
        ),
        unroll_list=tuple(sorted({*config.unroll_list, 1}, reverse=True)),
        cube_l1_reuse_setting=tuple(sorted(config.cube_l1_reuse_setting)),
        vec_nbuffer_setting=tuple(sorted(config.vec_nbuffer_setting)),
        cube_nbuffer_setting=tuple(sorted(config.cube_nbuffer_setting)),
        stitch_function_max_num=min(config.stitch_function_max_num, MAX_STITCHED),
    )


def _canonical_cube(tile: CubeTile, *, m: int, k: int, n: int) -> CubeTile:
    (m_l0, _), (k_l0, k_l1), (n_l0, _) = tile
    m_l0 = min(m_l0, _round_up(m, 16))
    k_l0 = min(k_l0, k)
    k_l1 = min(k_l1, _round_up(k, k_l0)) if k_l0 > 0 else k_l1
    n_l0 = min(n_l0, n)
    return ((m_l0, m_l0), (k_l0, k_l1), (n_l0, n_l0))


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _setting_to_json(setting: Setting) -> dict[str, int]:
    return {str(key): value for key, value in setting}


def _whole(name: str, value: object) -> int:
    if type(value) is not int:
        raise ConfigError(f"{name} holds {value!r}: give a whole number")
    return value


def _sequence(name: str, value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{name} is {value!r}: give a list")
    return value


def _pair(name: str, value: object) -> tuple[int, int]:
    items = _sequence(name, value)
    if len(items) != 2:
        raise ConfigError(f"{name} is {value!r}: give two whole numbers")
    return (_whole(name, items[0]), _whole(name, items[1]))


def _cube_tile(name: str, value: object) -> CubeTile:
    dims = _sequence(name, value)
    if len(dims) != 3:
        raise ConfigError(f"{name} is {value!r}: give [L0, L1] for each of m, k and n")
    return (_pair(name, dims[0]), _pair(name, dims[1]), _pair(name, dims[2]))


def _setting(name: str, value: object) -> Setting:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name} is {value!r}: give an object such as {{"-1": 4}}, or {{}} for automatic')
    pairs = []
    for key, number in value.items():
        try:
            subgraph = int(key)
        except (TypeError, ValueError):
            raise ConfigError(f'{name} holds {key!r}: give subgraph ids such as "-1", which means all') from None
        pairs.append((subgraph, _whole(name, number)))
    return tuple(sorted(pairs))
