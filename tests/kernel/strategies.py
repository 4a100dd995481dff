"""Legal shapes, and configurations of the right form, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from pfatune.kernel.config import CubeTile, KernelConfig, PfaTileShapeConfig, Setting, VecTile
from pfatune.kernel.shapes import (
    FP8_ALIGN,
    MAX_BATCH,
    MAX_BLOCK_SIZE,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_S1,
    MAX_S2,
    PfaShape,
    Workload,
)

_sizes = st.integers(1, 2048)


@st.composite
def shapes(draw: st.DrawFn) -> PfaShape:
    s2 = draw(st.integers(1, MAX_S2) | st.sampled_from([1, 128, 1024, 8192, 8195, MAX_S2]))
    nkv = draw(st.integers(1, 16))
    return PfaShape(
        b=draw(st.integers(1, MAX_BATCH)),
        s1=draw(st.integers(1, min(MAX_S1, s2))),
        s2=s2,
        nq=nkv * draw(st.integers(1, MAX_HEADS // nkv)),
        nkv=nkv,
        qd=FP8_ALIGN * draw(st.integers(1, MAX_HEAD_DIM // FP8_ALIGN)),
        block_size=FP8_ALIGN * draw(st.integers(1, MAX_BLOCK_SIZE // FP8_ALIGN)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    shape = draw(shapes().filter(lambda shape: shape.b <= 32))
    lengths = st.lists(st.integers(shape.s1, shape.s2), min_size=shape.b, max_size=shape.b).map(tuple)
    return Workload(shape, draw(st.none() | lengths))


def configs() -> st.SearchStrategy[KernelConfig]:
    """Configurations that can be written down, legal or not."""
    return st.builds(
        KernelConfig,
        tile=st.builds(
            PfaTileShapeConfig,
            g_tile=_sizes,
            s2_tile=_sizes,
            c1_tile_shape=_cube_tiles(),
            v1_tile_shape=_vec_tiles(),
            c2_tile_shape=_cube_tiles(),
            v2_tile_shape=_vec_tiles(),
        ),
        unroll_list=st.lists(st.integers(1, 64), max_size=6).map(tuple),
        cube_l1_reuse_setting=_settings(),
        vec_nbuffer_setting=_settings(),
        cube_nbuffer_setting=_settings(),
        stitch_function_max_num=st.integers(1, 1024),
        device_sched_mode=st.integers(0, 3),
    )


def _cube_tiles() -> st.SearchStrategy[CubeTile]:
    dim = st.tuples(_sizes, _sizes)
    return st.tuples(dim, dim, dim)


def _vec_tiles() -> st.SearchStrategy[VecTile]:
    return st.tuples(_sizes, _sizes)


def _settings() -> st.SearchStrategy[Setting]:
    """In the order in which plain data is read back: by subgraph id."""
    return st.dictionaries(st.integers(-1, 99), st.integers(0, 16), max_size=3).map(
        lambda setting: tuple(sorted(setting.items()))
    )
