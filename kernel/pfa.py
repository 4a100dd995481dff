"""The FP8 paged flash attention kernel in PyPTO.

Written from the published description of page_attention_quant_fp8 (PyPTO-Gym): K and V live
in pages found through a block table, Q, K and P carry a scale per token and V one per channel,
the softmax runs online in FP32 over tiles of ``s2_tile`` tokens, and the output is BF16.

Three things differ from that description in form, not in result:

* Each tile is normalised by its own maximum and merged into the running sums afterwards, so
  that the tiles of an unrolled loop do not wait for each other.
* The largest P of a tile is then exactly 1, so the per-token scale of P is the constant
  ``quant_max``. It is folded into the exponent, and cancels when the output is divided by the
  row sum, which carries it too. V's scale, constant over a sequence, is applied once at the end.
* The tensors arrive flattened to two dimensions (see ``flatten``): a reshape inside the kernel
  costs control tasks that every tile waits for.
"""

# No postponed annotations here: PyPTO reads the kernel's as objects.
import math
from typing import Any

import pypto
import torch

from .config import KernelConfig
from .shapes import PfaFamily

QUANT_MAX = 448.0  #: the largest finite E4M3 value

_F8 = pypto.DT_FP8E4M3
_F32 = pypto.DT_FP32


def flatten(tensors: list[torch.Tensor], family: PfaFamily) -> list[torch.Tensor]:
    """The kernel's arguments as it wants them, sharing memory with ``tensors``.

    Takes q [b·s1, nq, qd], q_scale [b·s1, nq, 1], k and v [blocks, block_size, nkv, qd],
    k_scale [blocks, block_size, nkv, 1], v_scale [b, nkv, qd], block_table [b, blocks per
    query], kv_act_seqs [b] and atten_out [b·s1, nq, qd]. With one KV head the scales of a page
    form one row; with several, one column for each head.
    """
    q, q_scale, k, k_scale, v, v_scale, block_table, kv_act_seqs, atten_out = tensors
    row = family.nkv * family.qd
    scale_row = family.block_size if family.nkv == 1 else family.nkv
    return [
        q.view(-1, family.qd),
        q_scale.view(-1, 1),
        k.view(-1, row),
        k_scale.view(-1, scale_row),
        v.view(-1, row),
        v_scale.view(-1, family.qd),
        block_table,
        kv_act_seqs,
        atten_out,
    ]


def _within(part: int, tile: int, size: int) -> bool:
    """Whether pieces of ``part`` never span two of the ``tile``s that ``size`` is cut into."""
    return tile >= size or tile % part == 0


def build_kernel(
    config: KernelConfig,
    family: PfaFamily,
    *,
    run_mode: pypto.RunMode,
    softmax_scale: float | None = None,
    quant_max: float = QUANT_MAX,
    **jit_options: Any,
) -> Any:
    """The kernel for one configuration and family; call it with the tensors of ``flatten``.

    ``config`` is compiled as it is: give the canonical form, as it is stored and served. Without
    it, an unroll list that lacks 1 computes wrong numbers, and a stitch above ``MAX_STITCHED``
    crashes PyPTO 0.2.0.

    It compiles at its first call and serves every b and s2. ``softmax_scale`` defaults to
    1/√qd. ``quant_max`` is the value that the largest P is quantised to. Further keywords go to
    ``pypto.frontend.jit``.
    """
    tile = config.tile
    g_tile, s2_tile = tile.g_tile, tile.s2_tile
    c1, v1 = [list(dim) for dim in tile.c1_tile_shape], tile.v1_tile_shape
    c2, v2 = [list(dim) for dim in tile.c2_tile_shape], tile.v2_tile_shape
    unroll_list = list(config.unroll_list)
    nq, nkv, d, block_size = family.nq, family.nkv, family.qd, family.block_size
    group = family.group
    blocks = s2_tile // block_size
    k_scale_row = block_size if nkv == 1 else nkv
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    log_quant_max = math.log(quant_max)
    # Forcing the merge into one task needs its inputs whole; otherwise PyPTO pulls the matmul in and fails.
    whole = v1[0] >= g_tile and _within(v2[0], c2[0][0], g_tile) and _within(v2[1], c2[2][0], d)
    merge_scope = 2 if whole else -1

    @pypto.frontend.jit(
        pass_options=config.pass_options,
        runtime_options={**config.runtime_options, "run_mode": run_mode},
        **jit_options,
    )
    def pfa_kernel(
        q: pypto.Tensor([pypto.DYNAMIC, d], _F8),
        q_scale: pypto.Tensor([pypto.DYNAMIC, 1], _F32),
        k: pypto.Tensor([pypto.DYNAMIC, nkv * d], _F8),
        k_scale: pypto.Tensor([pypto.DYNAMIC, k_scale_row], _F32),
        v: pypto.Tensor([pypto.DYNAMIC, nkv * d], _F8),
        v_scale: pypto.Tensor([pypto.DYNAMIC, d], _F32),
        block_table: pypto.Tensor([pypto.DYNAMIC, pypto.DYNAMIC], pypto.DT_INT32),
        kv_act_seqs: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
        atten_out: pypto.Tensor([pypto.DYNAMIC, nq, d], pypto.DT_BF16),
    ):
        pypto.experimental.set_operation_options(combine_axis=True)
        b = kv_act_seqs.shape[0]
        s1 = q.shape[0] // (b * nq)
        for b_idx in pypto.loop(b, name="LOOP_b", idx_name="b_idx"):
            for s1_idx in pypto.loop(s1, name="LOOP_s1", idx_name="s1_idx"):
                cur_seq = kv_act_seqs[b_idx] - (s1 - 1 - s1_idx)
                s2_tiles = (cur_seq + s2_tile - 1) // s2_tile
                for n2_idx in pypto.loop(nkv, name="LOOP_n2", idx_name="n2_idx"):
                    for g_idx in pypto.loop(group // g_tile, name="LOOP_g", idx_name="g_idx"):
                        max_update = pypto.tensor([g_tile, 1], _F32, "max_update")
                        sum_update = pypto.tensor([g_tile, 1], _F32, "sum_update")
                        oi_update = pypto.tensor([g_tile, d], _F32, "oi_update")
                        for s2_idx in pypto.loop(s2_tiles, name="LOOP_s2", idx_name="s2_idx", unroll_list=unroll_list):
                            valid = (cur_seq - s2_idx * s2_tile).min(s2_tile)
                            row = (b_idx * s1 + s1_idx) * nq + n2_idx * group + g_idx * g_tile

                            # The pages of the tile. Copies want whole pages, whatever v1 is.
                            pypto.set_vec_tile_shapes(block_size, d)
                            qi = pypto.view(q, [g_tile, d], [row, 0])
                            qi_scale = pypto.view(q_scale, [g_tile, 1], [row, 0])
                            kj = pypto.tensor([s2_tile, d], _F8, "kj")
                            vj = pypto.tensor([s2_tile, d], _F8, "vj")
                            kj_scales = []
                            for i in range(blocks):
                                column = (s2_idx * blocks + i).min(block_table.shape[1] - 1)
                                block = block_table[b_idx, column].max(0)
                                page = block * block_size
                                kj[i * block_size : (i + 1) * block_size, 0:] = pypto.view(
                                    k, [block_size, d], [page, n2_idx * d]
                                )
                                vj[i * block_size : (i + 1) * block_size, 0:] = pypto.view(
                                    v, [block_size, d], [page, n2_idx * d]
                                )
                                if nkv == 1:
                                    kj_scales.append(pypto.view(k_scale, [1, block_size], [block, 0]))
                                else:
                                    scales = pypto.view(k_scale, [block_size, 1], [page, n2_idx])
                                    kj_scales.append(pypto.transpose(scales, 0, 1))
                            kj = pypto.view(kj, [s2_tile, d], [0, 0], valid_shape=[s2_tile, d])
                            vj = pypto.view(vj, [s2_tile, d], [0, 0], valid_shape=[valid, d])

                            # MM1 and softmax of the tile by its own maximum.
                            pypto.set_cube_tile_shapes(c1[0], c1[1], c1[2])
                            sij = pypto.matmul(qi, kj, _F32, b_trans=True)
                            sij = pypto.view(sij, [g_tile, s2_tile], [0, 0], valid_shape=[g_tile, valid])
                            pypto.set_vec_tile_shapes(v1[0], v1[1])
                            pypto.set_pass_options(sg_set_scope=1)
                            kj_scale = kj_scales[0] if blocks == 1 else pypto.concat(kj_scales, 1)
                            kj_scale = pypto.view(kj_scale, [1, s2_tile], [0, 0], valid_shape=[1, valid])
                            sij = pypto.mul(pypto.mul(pypto.mul(sij, kj_scale), qi_scale), scale)
                            max_tile = pypto.amax(sij, -1, True)
                            pij = pypto.exp(pypto.sub(sij, pypto.sub(max_tile, log_quant_max)))
                            sum_tile = pypto.sum(pij, -1, True)
                            pij_fp8 = pypto.cast(pij, _F8)
                            pypto.set_pass_options(sg_set_scope=-1)

                            # MM2 and merge.
                            pypto.set_cube_tile_shapes(c2[0], c2[1], c2[2])
                            oi_tile = pypto.matmul(pij_fp8, vj, _F32)
                            pypto.set_vec_tile_shapes(v2[0], v2[1])
                            if pypto.is_loop_begin(s2_idx):
                                max_update[:] = max_tile
                                sum_update[:] = sum_tile
                                oi_update[:] = oi_tile
                            else:
                                pypto.set_pass_options(sg_set_scope=merge_scope)
                                max_new = pypto.maximum(max_update, max_tile)
                                weight_old = pypto.exp(pypto.sub(max_update, max_new))
                                weight_tile = pypto.exp(pypto.sub(max_tile, max_new))
                                sum_update[:] = sum_update * weight_old + sum_tile * weight_tile
                                oi_update[:] = oi_update * weight_old + oi_tile * weight_tile
                                max_update[:] = max_new
                                pypto.set_pass_options(sg_set_scope=-1)
                            if pypto.is_loop_end(s2_idx):
                                vi_scale = pypto.view(v_scale, [1, d], [b_idx * nkv + n2_idx, 0])
                                oi = pypto.mul(pypto.div(oi_update, sum_update), vi_scale)
                                oi = pypto.cast(oi, pypto.DT_BF16)
                                pypto.set_vec_tile_shapes(1, v2[0], v2[1])
                                oi = pypto.reshape(oi, [1, g_tile, d])
                                ofs = [b_idx * s1 + s1_idx, n2_idx * group + g_idx * g_tile, 0]
                                pypto.assemble(oi, ofs, atten_out)

    return pfa_kernel
