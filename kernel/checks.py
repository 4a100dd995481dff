"""Whether tensors are what the kernel takes: refused here, they cannot read or write past their ends.

Everything wrong is a ``ValueError`` that names the tensor, what it holds, and what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from .shapes import PfaShape, ShapeError

#: Layout and type of each tensor, in the kernel's argument order.
FORMS: dict[str, tuple[str, torch.dtype]] = {
    "q": ("[b*s1, nq, qd]", torch.float8_e4m3fn),
    "q_scale": ("[b*s1, nq, 1]", torch.float32),
    "k": ("[num_blocks, block_size, nkv, qd]", torch.float8_e4m3fn),
    "k_scale": ("[num_blocks, block_size, nkv, 1]", torch.float32),
    "v": ("[num_blocks, block_size, nkv, qd]", torch.float8_e4m3fn),
    "v_scale": ("[b, nkv, qd]", torch.float32),
    "block_table": ("[b, blocks_per_query]", torch.int32),
    "kv_act_seqs": ("[b]", torch.int32),
    "out": ("[b*s1, nq, qd]", torch.bfloat16),
}
_DIMENSIONS = {name: layout.count(",") + 1 for name, (layout, _) in FORMS.items()}
#: Which tensor a field of the shape is read from.
_READ_FROM = {"b": "kv_act_seqs", "s1": "q", "nq": "q", "nkv": "k", "qd": "q", "block_size": "k", "s2": "block_table"}
#: torch_npu's names for row-major memory: ND, and what it calls a plain tensor of four or five dimensions.
_PLAIN_FORMATS = {2: "ND", 0: "NCHW", 30: "NCDHW"}


def check_args(
    q: Tensor,
    q_scale: Tensor,
    k: Tensor,
    k_scale: Tensor,
    v: Tensor,
    v_scale: Tensor,
    block_table: Tensor,
    kv_act_seqs: Tensor,
    *,
    s2: int | None = None,
    out: Tensor | None = None,
    check_values: bool | None = None,
) -> PfaShape:
    """Check the kernel's arguments; shapes and types are those of ``FORMS``.

    Dimensions, types, devices, contiguity and sizes are always checked, and cost microseconds.
    On an NPU the storage must be plain row-major memory (ND, not NZ), where torch_npu can tell;
    that check has not run on hardware.

    Args:
        q: queries, as all tensors in the layout of ``FORMS``.
        q_scale: their scales.
        k: the paged cache of keys.
        k_scale: their scales.
        v: the paged cache of values.
        v_scale: their scales.
        block_table: blocks of each request.
        kv_act_seqs: cached tokens of each request.
        s2: no request has more tokens than this; None means what ``block_table`` has room for.
        out: what the kernel writes, if that is there already.
        check_values: whether the lengths and the blocks of the table are checked, too, for which
            the host waits for the device. None means wherever ``values_can_be_read``.

    Returns:
        The shape of the problem, s2 being at most what ``block_table`` has room for.

    Raises:
        ValueError: something does not fit.
    """
    tensors = dict(zip(FORMS, (q, q_scale, k, k_scale, v, v_scale, block_table, kv_act_seqs), strict=False))
    if out is not None:
        tensors["out"] = out
    check_types(tensors)
    check_forms(tensors)
    for name, tensor in tensors.items():
        _check_memory(name, tensor)
    _check_sizes(tensors)
    shape = _shape(q, k, block_table, kv_act_seqs, s2)
    if check_values or (check_values is None and values_can_be_read(kv_act_seqs)):
        _check_values(block_table, kv_act_seqs, len(k), shape)
    return shape


def check_types(tensors: Mapping[str, object]) -> None:
    """Check that everything is a tensor.

    Raises:
        ValueError: something is not.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            layout, dtype = FORMS[name]
            raise ValueError(f"{name} is of type {type(tensor).__name__}: give a tensor {layout} of {_short(dtype)}")


def check_forms(tensors: Mapping[str, Tensor]) -> None:
    """Check dimensions, types and devices, which are known even where sizes are symbols.

    Raises:
        ValueError: one does not fit.
    """
    device = None
    for name, tensor in tensors.items():
        layout, dtype = FORMS[name]
        if tensor.dim() != _DIMENSIONS[name]:
            raise ValueError(
                f"{name} has {tensor.dim()} dimensions, {list(tensor.shape)}: give {_DIMENSIONS[name]}, {layout}"
            )
        if tensor.dtype != dtype:
            raise ValueError(f"{name} is of {_short(tensor.dtype)}: give {_short(dtype)}")
        device = device or tensor.device
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, and q on {device}: put all tensors on one device")


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether the host may look at values now: not while a graph is traced or captured."""
    if tensor.is_meta or isinstance(tensor, FakeTensor) or torch.compiler.is_compiling():
        return False
    capturing = getattr(getattr(torch, tensor.device.type, None), "is_current_stream_capturing", None)
    return not (capturing and capturing())


def _check_memory(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} is not contiguous: it has shape {list(tensor.shape)} and strides {list(tensor.stride())}; lay it "
            f"out as {FORMS[name][0]} in row-major order ({name}.contiguous() copies it)"
        )
    if tensor.device.type == "npu":
        number = _npu_format(tensor)
        if number is not None and number not in _PLAIN_FORMATS:
            raise ValueError(
                f"{name} is in the NPU's private format {number}, where the kernel reads ND: "
                f"give torch_npu.npu_format_cast({name}, 2)"
            )


def _npu_format(tensor: Tensor) -> int | None:
    """torch_npu's number for a tensor's storage format; None where it cannot tell."""
    get = getattr(sys.modules.get("torch_npu"), "get_npu_format", None)
    return None if get is None else int(get(tensor))


def _check_sizes(tensors: Mapping[str, Tensor]) -> None:
    """Each size is said by one tensor; the others must agree."""
    rows, nq, qd = tensors["q"].shape
    num_blocks, block_size, nkv, _ = tensors["k"].shape
    (b,) = tensors["kv_act_seqs"].shape
    columns = tensors["block_table"].shape[1]
    if b < 1:
        raise ValueError("kv_act_seqs is empty: give the length of each request; with none, do not call the kernel")
    if rows < 1 or rows % b:
        raise ValueError(
            f"q has {rows} rows for the {b} requests of kv_act_seqs: give b*s1 rows, as many for each request"
        )
    if num_blocks < 1:
        raise ValueError("k has no blocks: give a cache of at least one")
    if columns < 1:
        raise ValueError("block_table has no columns: give one for each block that the longest request may use")
    for name, expected in (
        ("q_scale", (rows, nq, 1)),
        ("k", (num_blocks, block_size, nkv, qd)),
        ("k_scale", (num_blocks, block_size, nkv, 1)),
        ("v", (num_blocks, block_size, nkv, qd)),
        ("v_scale", (b, nkv, qd)),
        ("block_table", (b, columns)),
        ("out", (rows, nq, qd)),
    ):
        if name in tensors and tensors[name].shape != expected:
            raise ValueError(
                f"{name} has shape {list(tensors[name].shape)}: give {list(expected)}, since q has shape "
                f"{[rows, nq, qd]}, k {list(tensors['k'].shape)}, and kv_act_seqs {b} requests"
            )


def _shape(q: Tensor, k: Tensor, block_table: Tensor, kv_act_seqs: Tensor, s2: int | None) -> PfaShape:
    rows, nq, qd = q.shape
    _, block_size, nkv, _ = k.shape
    b = len(kv_act_seqs)
    room = block_table.shape[1] * block_size
    try:
        if s2 is None:
            limit = room
        else:
            PfaShape(b=1, s2=s2, block_size=block_size)  # says what is wrong with it before it is made smaller
            limit = min(s2, room)
        return PfaShape(b=b, s2=limit, s1=rows // b, nq=nq, nkv=nkv, qd=qd, block_size=block_size)
    except ShapeError as error:
        if error.field == "s2" and s2 is None:
            raise ValueError(f"block_table has room for {room} tokens ({error}), or give the argument s2") from None
        name = "the argument s2" if error.field == "s2" else _READ_FROM[error.field]
        raise ValueError(f"{name} does not fit the kernel: {error}") from None


def _check_values(block_table: Tensor, kv_act_seqs: Tensor, num_blocks: int, shape: PfaShape) -> None:
    """Lengths, and blocks: those in use, and those that the last tile of a sequence reads ahead."""
    host = torch.cat([kv_act_seqs[:, None], block_table], 1).cpu()  # one copy, so the device is waited for once
    lengths, table = host[:, :1], host[:, 1:]
    outside = (lengths < shape.s1) | (lengths > shape.s2)
    if outside.any():
        request = int(outside.int().argmax())
        length = int(lengths[request])
        remedy = f"give {shape.s1} (s1) to {shape.s2} (s2) tokens"
        if length < 1:
            remedy += "; leave a request out of the batch until a token of it is in the cache"
        raise ValueError(f"kv_act_seqs[{request}] is {length}: {remedy}")
    first_unused = (lengths - 1) // shape.block_size + 1
    used = torch.arange(table.shape[1]) < first_unused
    wrong = (table >= num_blocks) | (table < used.int() - 1)
    if wrong.any():
        request, column = (int(index) for index in wrong.nonzero()[0])
        blocks = f"a block of the cache, 0 to {num_blocks - 1}"
        if used[request, column]:
            tokens = int(lengths[request])
            remedy = (
                f"give {blocks}, since request {request} has {tokens} tokens in {int(first_unused[request])} blocks"
            )
        else:
            remedy = f"give -1 past a request's last block, or {blocks}"
        raise ValueError(f"block_table[{request}, {column}] is {int(table[request, column])}: {remedy}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
