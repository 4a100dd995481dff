"""What the kernel should compute, twice over, and how close an output must come to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import E4M3_MAX, PfaInputs, check_quant_max
from .shapes import PfaShape, Workload

#: Tolerances of the kernel's own test. RTOL is one unit in the last place of bfloat16.
RTOL = 1 / 128
ATOL = 1e-4

# Stands for -inf where a difference of two maxima must not be NaN.
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close an output came: ``passed`` if every element is within ATOL + RTOL * |expected|.

    The differences are the largest among finite elements (0 if there are none), so that
    they can be stored as plain numbers; elements that are not finite count as mismatched.
    """

    passed: bool
    max_abs_diff: float
    max_rel_diff: float
    mismatched: int
    total: int


def compare(actual: Tensor, expected: Tensor) -> Agreement:
    """Measure an output against a golden of the same shape, of any float dtype and device.

    NaN and infinity never pass, not even where both have them; nor does an empty tensor.

    Raises:
        ValueError: the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(
            f"the output has shape {list(actual.shape)} and the golden {list(expected.shape)}: compare like with like"
        )
    # float64, so that the difference of two float32 numbers is not rounded.
    got, want = actual.cpu().double(), expected.cpu().double()
    diff = (got - want).abs()
    within = diff <= ATOL + RTOL * want.abs()
    finite = got.isfinite() & want.isfinite()
    mismatched = int((~(within & finite)).sum())
    return Agreement(
        passed=mismatched == 0 and diff.numel() > 0,
        max_abs_diff=_largest(diff[finite]),
        max_rel_diff=_largest((diff / want.abs())[finite & (want != 0)]),
        mismatched=mismatched,
        total=diff.numel(),
    )


def dense_attention(inputs: PfaInputs, workload: Workload) -> Tensor:
    """Softmax attention in FP32 over the dequantised, gathered cache: [b*s1, nq, qd] float32.

    What the kernel approximates. Query token i of a request with L cached tokens sees the
    first L - (s1 - 1 - i) of them. The softmax scale is qd ** -0.5, as in the kernel's
    published description (PyPTO-Gym, page_attention_quant_fp8).
    """
    shape = workload.shape
    q = _by_kv_head(inputs.q.float() * inputs.q_scale, shape)
    token = torch.arange(shape.s1, device=q.device)
    outputs = []
    for request, length in enumerate(inputs.kv_act_seqs.tolist()):
        pages = inputs.block_table[request, : -(-length // shape.block_size)].long()
        k = (inputs.k[pages].float() * inputs.k_scale[pages]).flatten(0, 1)[:length]
        v = inputs.v[pages].float().flatten(0, 1)[:length] * inputs.v_scale[request]
        scores = torch.einsum("shgd,thd->shgt", q[request], k) * shape.qd**-0.5
        last_seen = length - shape.s1 + token
        hidden = torch.arange(length, device=q.device) > last_seen[:, None]
        weights = scores.masked_fill(hidden[:, None, None, :], -torch.inf).softmax(-1)
        outputs.append(torch.einsum("shgt,thd->shgd", weights, v))
    return torch.stack(outputs).reshape(inputs.q.shape)


def flash_attention(
    inputs: PfaInputs, workload: Workload, *, s2_tile: int, quant_max: float = E4M3_MAX, round_to_whole: bool = False
) -> Tensor:
    """The kernel's own arithmetic: [b*s1, nq, qd] bfloat16.

    Follows the kernel's published description (PyPTO-Gym, page_attention_quant_fp8): online
    softmax over tiles of ``s2_tile`` tokens, P quantised to E4M3 per query token and tile,
    everything else in FP32. Each tile is taken relative to its own maximum and rescaled
    when merged. Hence the maximum of P is exactly 1, and the scale that quantises it is
    ``quant_max`` for every token: as in the kernel, it is folded into the exponent, and
    cancels between output and row sum. FP32 operations come in the kernel's order, because
    a difference in the last bit can turn into one of 1/16 where P is rounded.

    Args:
        inputs: as made by ``make_inputs``; the result does not depend on pages or positions
            beyond a request's length, whatever they hold.
        workload: what they were made for.
        s2_tile: KV tokens of a tile, a multiple of the block size.
        quant_max: what the maximum of P is quantised to; the kernel must use the same.
        round_to_whole: round P to a whole number before it becomes E4M3, as PyPTO 0.2.0's CPU
            interpreter does (its cast rounds for every type that it does not count as a float).

    Raises:
        ValueError: ``s2_tile`` is not a multiple of the block size, or ``quant_max`` is not
            in (0, 448].
    """
    check_quant_max(quant_max)
    shape = workload.shape
    if s2_tile < 1 or s2_tile % shape.block_size:
        raise ValueError(f"s2_tile is {s2_tile}: give a multiple of the block size, {shape.block_size}")

    q, q_scale = _by_kv_head(inputs.q.float(), shape), _by_kv_head(inputs.q_scale, shape)
    # The kernel, too, reads block 0 for an entry of -1, and drops what it read.
    pages = inputs.block_table.clamp(min=0).long()
    lengths = inputs.kv_act_seqs[:, None]  # [b, 1]
    seen_by = lengths - shape.s1 + 1 + torch.arange(shape.s1, device=q.device)  # [b, s1]

    peak = torch.full_like(q[..., :1], _LOWEST)
    total = torch.zeros_like(peak)
    output = torch.zeros_like(q)
    for start in range(0, int(lengths.max()), s2_tile):
        tile = pages[:, start // shape.block_size : (start + s2_tile) // shape.block_size]
        k = inputs.k[tile].flatten(1, 2).float()  # [b, tokens, nkv, qd]
        v = inputs.v[tile].flatten(1, 2).float()
        k_scale = inputs.k_scale[tile].flatten(1, 2).permute(0, 2, 3, 1)[:, None]  # [b, 1, nkv, 1, tokens]
        position = start + torch.arange(k.shape[1], device=q.device)
        v = v.masked_fill((position >= lengths)[..., None, None], 0)
        hidden = (position >= seen_by[..., None])[:, :, None, None, :]

        scores = torch.einsum("bshgd,bthd->bshgt", q, k) * k_scale * q_scale * shape.qd**-0.5
        scores = scores.masked_fill(hidden, -torch.inf)
        tile_peak = scores.amax(-1, keepdim=True).clamp(min=_LOWEST)
        p = torch.exp(scores - (tile_peak - math.log(quant_max)))
        quantised = p.round() if round_to_whole else p
        # exp(log(quant_max)) may round above it; a cast that does not saturate makes that NaN.
        p_fp8 = quantised.clamp(max=quant_max).to(torch.float8_e4m3fn).float()
        tile_output = torch.einsum("bshgt,bthd->bshgd", p_fp8, v)

        new_peak = torch.maximum(peak, tile_peak)
        keep, add = torch.exp(peak - new_peak), torch.exp(tile_peak - new_peak)
        total = total * keep + p.sum(-1, keepdim=True) * add
        output = output * keep + tile_output * add
        peak = new_peak

    v_scale = inputs.v_scale[:, None, :, None, :]  # [b, 1, nkv, 1, qd]
    return (output / total * v_scale).to(torch.bfloat16).reshape(inputs.q.shape)


def _by_kv_head(tensor: Tensor, shape: PfaShape) -> Tensor:
    """[b*s1, nq, n] as [b, s1, nkv, group, n]: query heads beside the KV head they share."""
    return tensor.reshape(shape.b, shape.s1, shape.nkv, shape.group, -1)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0
