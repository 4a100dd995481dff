"""The search space: every tunable of the kernel as a named choice, and the way to a configuration and back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..kernel.config import KernelConfig, PfaTileShapeConfig, Setting, canonical, default_config
from ..kernel.legality import MAX_S2_TILE, violations
from ..kernel.shapes import PfaFamily, Workload
from ..kernel.soc import Soc

#: A value of one parameter; lists and automatic settings are spelled as text, as Optuna stores them.
Choice = int | str
Params = dict[str, Choice]

AUTOMATIC = "auto"
_REUSE: tuple[Choice, ...] = (AUTOMATIC, 1, 2, 4, 8, 16)
_NBUFFER: tuple[Choice, ...] = (AUTOMATIC, 1, 2, 4, 8, 16)
_STITCH: tuple[Choice, ...] = (16, 32, 64, 96, 128)  # more is capped, see kernel.config.MAX_STITCHED
_UNROLL: tuple[Choice, ...] = ("1", "2,1", "4,1", "4,2,1", "8,1", "8,4,1", "8,4,2,1", "16,1", "16,4,1", "16,8,4,2,1")
_SCHED_MODES: tuple[Choice, ...] = (0, 1, 2, 3)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)  # elements of a tile along s2
_MAX_CUBE_N = 512
_MAX_CUBE_K = 1024
_MAX_CUBE_M = 128  # the default's; a group is seldom larger


@dataclass(frozen=True, slots=True)
class Space:
    """The choices for one family on one chip, for sequences of up to ``s2`` tokens.

    ``choices`` lists the values of each parameter in ascending order, so that neighbours in
    the list are neighbours in the space. Not every combination is legal; ``candidates`` of a
    space are those that are.
    """

    family: PfaFamily
    soc: Soc
    choices: Mapping[str, tuple[Choice, ...]]

    def config(self, params: Mapping[str, Choice]) -> KernelConfig:
        """The canonical configuration that the choices stand for; it may be illegal."""
        p = params
        g_tile, s2_tile = _int(p["g_tile"]), _int(p["s2_tile"])
        m = (min(-(-g_tile // 16) * 16, _MAX_CUBE_M),) * 2
        config = KernelConfig(
            tile=PfaTileShapeConfig(
                g_tile=g_tile,
                s2_tile=s2_tile,
                c1_tile_shape=(m, (_int(p["c1_k_l0"]), _int(p["c1_k_l1"])), (_int(p["c1_n"]), _int(p["c1_n"]))),
                v1_tile_shape=(_int(p["v1_m"]), _int(p["v1_n"])),
                c2_tile_shape=(m, (_int(p["c2_k_l0"]), _int(p["c2_k_l1"])), (_int(p["c2_n"]), _int(p["c2_n"]))),
                v2_tile_shape=(_int(p["v2_m"]), _int(p["v2_n"])),
            ),
            unroll_list=tuple(int(n) for n in str(p["unroll_list"]).split(",")),
            cube_l1_reuse_setting=_setting(p["cube_l1_reuse"]),
            vec_nbuffer_setting=_setting(p["vec_nbuffer"]),
            cube_nbuffer_setting=_setting(p["cube_nbuffer"]),
            stitch_function_max_num=_int(p["stitch"]),
            device_sched_mode=_int(p.get("device_sched_mode", 0)),
        )
        return canonical(config, self.family)

    def params(self, config: KernelConfig) -> Params | None:
        """The choices that give a canonical configuration, or None if it lies outside the space."""
        params = {name: value for name, value in values_of(config).items() if name in self.choices}
        for name, value in params.items():
            if value not in self.choices[name]:
                return None
        return params if self.config(params) == config else None

    def legal(self, config: KernelConfig) -> bool:
        """Whether the closed form lets the configuration through."""
        return not violations(config, self.family, self.soc)

    def neighbours(self, config: KernelConfig) -> Iterator[KernelConfig]:
        """Legal configurations that differ in one parameter, the nearest values of it first."""
        params = self.params(config)
        if params is None:
            return
        seen = {config}
        for distance in range(1, max(map(len, self.choices.values()))):
            for name, values in self.choices.items():
                at = values.index(params[name])
                for index in (at - distance, at + distance):
                    if 0 <= index < len(values):
                        other = self.config({**params, name: values[index]})
                        if other not in seen and self.legal(other):
                            seen.add(other)
                            yield other

    def random(self, rng: random.Random, attempts: int = 1000) -> KernelConfig | None:
        """A legal configuration drawn evenly over the choices; None if ``attempts`` draws found none."""
        for _ in range(attempts):
            config = self.config({name: rng.choice(values) for name, values in self.choices.items()})
            if self.legal(config):
                return config
        return None


def space_for(workloads: Sequence[Workload], soc: Soc, *, backend: str = "sim") -> Space:
    """The space for workloads of one family; the default of each is in it.

    ``device_sched_mode`` is in it on an NPU only.

    Raises:
        ValueError: no workload, or workloads of several families.
    """
    families = {workload.shape.family for workload in workloads}
    if len(families) != 1:
        raise ValueError(f"{len(families)} families at once: tune shapes of one family together")
    family = families.pop()
    defaults = [canonical(default_config(workload.shape), family) for workload in workloads]
    longest = max(max(workload.lengths) for workload in workloads)
    blocks = _doubling(1, min(-(-longest // family.block_size), MAX_S2_TILE // family.block_size))
    s2_tiles = {n * family.block_size for n in blocks} | {config.tile.s2_tile for config in defaults}
    # And what clipping makes of them: 64 is 32 where s2_tile is, and 160 tokens in pieces of 64 take 192.
    widths = {min(n, s2_tile) for n in _WIDTHS for s2_tile in s2_tiles}
    cube = {n for n in widths if n <= _MAX_CUBE_N}
    whole = {-(-s2_tile // n) * n for s2_tile in s2_tiles for n in cube}
    head = _divisors(family.qd, multiple_of=32)
    rows = _divisors(family.group)
    tiles: dict[str, Iterable[int]] = {
        "g_tile": rows,
        "s2_tile": (n for n in s2_tiles if n <= MAX_S2_TILE),
        "c1_k_l0": head,
        "c1_k_l1": head,
        "c1_n": cube,
        "v1_m": rows,
        "v1_n": widths,
        "c2_k_l0": cube,
        "c2_k_l1": (min(n, tokens) for n in widths if n <= _MAX_CUBE_K for tokens in whole),
        "c2_n": head,
        "v2_m": rows,
        "v2_n": head,
    }
    choices: dict[str, tuple[Choice, ...]] = {
        name: tuple(sorted({*values, *(_int(values_of(config)[name]) for config in defaults)}))
        for name, values in tiles.items()
    }
    choices |= {
        "unroll_list": _UNROLL,
        "cube_l1_reuse": _REUSE,
        "vec_nbuffer": _NBUFFER,
        "cube_nbuffer": _NBUFFER,
        "stitch": _STITCH,
    }
    if backend == "npu":
        choices["device_sched_mode"] = _SCHED_MODES
    return Space(family, soc, choices)


def values_of(config: KernelConfig) -> Params:
    """Every parameter of a configuration by its name, whether a choice of some space or not."""
    tile = config.tile
    return {
        "g_tile": tile.g_tile,
        "s2_tile": tile.s2_tile,
        "c1_k_l0": tile.c1_tile_shape[1][0],
        "c1_k_l1": tile.c1_tile_shape[1][1],
        "c1_n": tile.c1_tile_shape[2][0],
        "c2_k_l0": tile.c2_tile_shape[1][0],
        "c2_k_l1": tile.c2_tile_shape[1][1],
        "c2_n": tile.c2_tile_shape[2][0],
        "v1_m": tile.v1_tile_shape[0],
        "v1_n": tile.v1_tile_shape[1],
        "v2_m": tile.v2_tile_shape[0],
        "v2_n": tile.v2_tile_shape[1],
        "unroll_list": ",".join(map(str, config.unroll_list)),
        "cube_l1_reuse": _choice(config.cube_l1_reuse_setting),
        "vec_nbuffer": _choice(config.vec_nbuffer_setting),
        "cube_nbuffer": _choice(config.cube_nbuffer_setting),
        "stitch": config.stitch_function_max_num,
        "device_sched_mode": config.device_sched_mode,
    }


def _doubling(start: int, stop: int) -> tuple[int, ...]:
    """start, 2·start, … up to the first that is not below ``stop``."""
    values = [start]
    while values[-1] < stop:
        values.append(values[-1] * 2)
    return tuple(values)


def _divisors(number: int, multiple_of: int = 1) -> tuple[int, ...]:
    return tuple(n for n in range(multiple_of, number + 1, multiple_of) if number % n == 0)


def _setting(choice: Choice) -> Setting:
    return () if choice == AUTOMATIC else ((-1, _int(choice)),)


def _choice(setting: Setting) -> Choice:
    if not setting:
        return AUTOMATIC
    return setting[0][1] if len(setting) == 1 and setting[0][0] == -1 else str(setting)


def _int(choice: Choice) -> int:
    return int(choice)
