"""The tensors the kernel is given, in its argument order: quantised, paged and reproducible."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .shapes import PfaShape, Workload

#: Largest finite value of E4M3, and the range the kernel quantises to.
E4M3_MAX = 448.0
#: Tokens beyond a request's length are this many times larger than real ones: reading one shows.
GARBAGE_GAIN = 8.0
_MIN_AMAX = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class PfaInputs:
    """Arguments of the kernel, in its order.

    Names, shapes and dtypes follow the kernel's published description (PyPTO-Gym,
    page_attention_quant_fp8). Scales dequantise: value = FP8 value * scale. ``num_blocks``
    is b * blocks_per_query, so that every request has a page for each of its s2 tokens.
    """

    q: Tensor  # [b*s1, nq, qd] float8_e4m3fn
    q_scale: Tensor  # [b*s1, nq, 1] float32, per token and head
    k: Tensor  # [num_blocks, block_size, nkv, qd] float8_e4m3fn
    k_scale: Tensor  # [num_blocks, block_size, nkv, 1] float32, per token and head
    v: Tensor  # [num_blocks, block_size, nkv, qd] float8_e4m3fn
    v_scale: Tensor  # [b, nkv, qd] float32, per request, head and channel
    block_table: Tensor  # [b, blocks_per_query] int32, -1 where a request needs no page
    kv_act_seqs: Tensor  # [b] int32, KV tokens of each request
    atten_out: Tensor  # [b*s1, nq, qd] bfloat16, written by the kernel

    def tensors(self) -> list[Tensor]:
        """All of them, in the kernel's argument order."""
        return [getattr(self, field.name) for field in fields(self)]


def make_inputs(
    workload: Workload, *, seed: int, quant_max: float = E4M3_MAX, device: str | torch.device = "cpu"
) -> PfaInputs:
    """Random normal Q, K and V, quantised to E4M3 and laid out in shuffled pages.

    The values depend on the workload, the seed and ``quant_max``, and not on the device:
    they are made on the CPU and copied. Tokens beyond a request's length, and pages that it
    does not need, hold finite values much larger than the real ones.

    Args:
        workload: shape and KV lengths.
        seed: of a generator of its own; torch's global one is left alone.
        quant_max: absolute maximum of the quantised values. PyPTO's CPU interpreter
            saturates E4M3 early, so it is checked with a smaller one than the chip.
        device: where the tensors are placed.

    Raises:
        ValueError: ``quant_max`` is not in (0, 448].
    """
    check_quant_max(quant_max)
    shape = workload.shape
    generator = torch.Generator().manual_seed(seed)
    pages = _shuffled_pages(shape, generator)

    q, q_scale = _quantise(torch.randn(shape.b * shape.s1, shape.nq, shape.qd, generator=generator), -1, quant_max)
    k = torch.empty(_cache_shape(shape), dtype=torch.float8_e4m3fn)
    v = torch.empty_like(k)
    k_scale = torch.empty((*k.shape[:-1], 1))
    v_scale = torch.empty(shape.b, shape.nkv, shape.qd)
    for request, length in enumerate(workload.lengths):
        page = pages[request]
        token_k, token_k_scale = _quantise(_tokens(shape, length, generator), -1, quant_max)
        token_v, channel_scale = _quantise(_tokens(shape, length, generator), 0, quant_max, amax_over=length)
        # Bytes, because not every torch build can index FP8.
        k.view(torch.uint8)[page] = _paged(token_k, shape).view(torch.uint8)
        v.view(torch.uint8)[page] = _paged(token_v, shape).view(torch.uint8)
        k_scale[page] = _paged(token_k_scale, shape)
        v_scale[request] = channel_scale[0]

    inputs = PfaInputs(
        q=q,
        q_scale=q_scale,
        k=k,
        k_scale=k_scale,
        v=v,
        v_scale=v_scale,
        block_table=_block_table(workload, pages),
        kv_act_seqs=torch.tensor(workload.lengths, dtype=torch.int32),
        atten_out=torch.zeros(q.shape, dtype=torch.bfloat16),
    )
    return PfaInputs(*(tensor.to(device) for tensor in inputs.tensors()))


def empty_inputs(workload: Workload) -> PfaInputs:
    """Tensors of the shapes and dtypes of ``make_inputs`` on the CPU, for a cost model.

    Only ``block_table`` and ``kv_act_seqs`` hold values (the same ones every time); the
    rest is allocated and never touched, so that a long cache takes address space but no
    memory.
    """
    shape = workload.shape
    tokens = shape.b * shape.s1
    cache = _cache_shape(shape)
    pages = _shuffled_pages(shape, torch.Generator().manual_seed(0))
    return PfaInputs(
        q=torch.empty(tokens, shape.nq, shape.qd, dtype=torch.float8_e4m3fn),
        q_scale=torch.empty(tokens, shape.nq, 1),
        k=torch.empty(cache, dtype=torch.float8_e4m3fn),
        k_scale=torch.empty((*cache[:-1], 1)),
        v=torch.empty(cache, dtype=torch.float8_e4m3fn),
        v_scale=torch.empty(shape.b, shape.nkv, shape.qd),
        block_table=_block_table(workload, pages),
        kv_act_seqs=torch.tensor(workload.lengths, dtype=torch.int32),
        atten_out=torch.empty(tokens, shape.nq, shape.qd, dtype=torch.bfloat16),
    )


def check_quant_max(quant_max: float) -> None:
    """Refuse a quantisation maximum that E4M3 cannot hold.

    Raises:
        ValueError: ``quant_max`` is not in (0, 448].
    """
    if not 0 < quant_max <= E4M3_MAX:
        raise ValueError(f"quant_max is {quant_max}: give a value above 0 and up to {E4M3_MAX}, the maximum of E4M3")


def _cache_shape(shape: PfaShape) -> tuple[int, int, int, int]:
    return (shape.b * shape.blocks_per_query, shape.block_size, shape.nkv, shape.qd)


def _shuffled_pages(shape: PfaShape, generator: torch.Generator) -> Tensor:
    """[b, blocks_per_query] int64: every block of the cache once, in random order."""
    count = shape.b * shape.blocks_per_query
    return torch.randperm(count, generator=generator).reshape(shape.b, shape.blocks_per_query)


def _block_table(workload: Workload, pages: Tensor) -> Tensor:
    table = pages.to(torch.int32)
    for request, length in enumerate(workload.lengths):
        table[request, -(-length // workload.shape.block_size) :] = -1
    return table


def _tokens(shape: PfaShape, length: int, generator: torch.Generator) -> Tensor:
    """[blocks_per_query * block_size, nkv, qd] float32: ``length`` real tokens, then garbage."""
    tokens = torch.randn(shape.blocks_per_query * shape.block_size, shape.nkv, shape.qd, generator=generator)
    tokens[length:] *= GARBAGE_GAIN
    return tokens


def _paged(tokens: Tensor, shape: PfaShape) -> Tensor:
    return tokens.reshape(shape.blocks_per_query, shape.block_size, *tokens.shape[1:])


def _quantise(values: Tensor, dim: int, quant_max: float, *, amax_over: int | None = None) -> tuple[Tensor, Tensor]:
    """Symmetric E4M3 along one dimension, and the scale that undoes it.

    ``amax_over`` takes the maximum over so many leading rows only; larger values saturate.
    """
    amax = values[:amax_over].abs().amax(dim, keepdim=True)
    scale = amax.clamp(min=_MIN_AMAX) / quant_max
    return (values / scale).clamp(-quant_max, quant_max).to(torch.float8_e4m3fn), scale
