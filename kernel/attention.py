"""Paged attention for an inference engine: looks up a configuration, compiles it once, launches it.

``paged_attention`` is a PyTorch operator, so ``torch.compile`` and ``torch.export`` take it whole.
``configure`` says where tuned configurations come from.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from .checks import FORMS, check_args, check_forms, check_types
from .config import KernelConfig, canonical, default_config
from .inputs import empty_inputs
from .ladder import Answer, Ladder
from .shapes import PfaFamily, PfaShape, Workload

#: Runs a kernel on the nine tensors of ``PfaInputs``, in their order; the last one is written.
Launch = Callable[[list[Tensor]], None]
#: Makes the kernel of a canonical configuration, a family and a softmax scale. It may leave the
#: compiling to its first launch, which nothing else runs beside.
Build = Callable[[KernelConfig, PfaFamily, float], Launch]

_log = logging.getLogger("pfatune.attention")
#: PyPTO keeps the options of what it compiles in the process: one kernel at a time.
_compiler = threading.Lock()


class Lookup(Protocol):
    """Where configurations come from: a ``Ladder``, or ``TunedConfigs``, which keeps itself fresh."""

    def lookup(self, shape: PfaShape) -> Answer: ...


class _Kernel:
    """One configuration for one family and scale, compiled at most once."""

    def __init__(self, config: KernelConfig) -> None:
        self.digest = config.digest
        self.launch: Launch | None = None
        self.failed = False
        self.lock = threading.Lock()


class PagedAttention:
    """Looks up, compiles each configuration at most once, and launches. Any thread may call it.

    ``tuned`` says which configuration a shape gets; without it, every shape gets its default.
    ``build`` makes kernels; without it, they are PyPTO's, on the NPU.

    A tuned configuration that does not compile is replaced by the shape's default for as long as
    this object lives, with one warning in the log: an engine must go on serving.
    """

    def __init__(self, tuned: Lookup | None = None, *, build: Build | None = None) -> None:
        self._tuned = Ladder() if tuned is None else tuned
        self._build = build
        self._kernels: dict[tuple[KernelConfig, PfaFamily, float], _Kernel] = {}
        # The same kernels by every spelling that was looked up: what a step needs, in one access.
        self._launches: dict[tuple[KernelConfig, PfaFamily, float], Launch] = {}

    def __call__(
        self,
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
        softmax_scale: float | None = None,
        check_values: bool | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attention of ``b`` requests of ``s1`` query tokens over their cached tokens.

        b is the length of ``kv_act_seqs``, and s1 the rows of ``q`` for each of them.

        Args:
            q: [b*s1, nq, qd] float8_e4m3fn.
            q_scale: [b*s1, nq, 1] float32; scales dequantise: value = FP8 value * scale.
            k: [num_blocks, block_size, nkv, qd] float8_e4m3fn, the paged cache.
            k_scale: [num_blocks, block_size, nkv, 1] float32.
            v: as ``k``.
            v_scale: [b, nkv, qd] float32.
            block_table: [b, blocks_per_query] int32, blocks of each request, -1 past its last.
            kv_act_seqs: [b] int32, cached tokens of each request, from s1.
            s2: tokens of the longest request, or more, for which a configuration is looked up;
                None means all that ``block_table`` has room for.
            softmax_scale: above 0; None means qd ** -0.5.
            check_values: whether lengths and blocks are checked. The host waits for the device to
                do so: once a step. None means always, except while a graph is captured; give
                False where the engine sees to them.
            out: [b*s1, nq, qd] bfloat16 to write to; None makes one.

        Returns:
            ``out``.

        Raises:
            ValueError: a tensor is not what the kernel takes; see ``checks.check_args``.
            RuntimeError: the default configuration does not compile, or the tensors are not on an
                NPU and no ``build`` was given.
        """
        shape = check_args(
            q,
            q_scale,
            k,
            k_scale,
            v,
            v_scale,
            block_table,
            kv_act_seqs,
            s2=s2,
            out=out,
            check_values=check_values,
        )
        if out is None:
            out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
        tensors = [q, q_scale, k, k_scale, v, v_scale, block_table, kv_act_seqs, out]
        launch, launched = self._ready(shape, _scale(softmax_scale, shape.qd), lambda: tensors)
        if not launched:
            launch(tensors)
        return out

    def warm_up(
        self,
        shapes: Iterable[PfaShape],
        *,
        device: str | torch.device = "cpu",
        softmax_scale: float | None = None,
    ) -> int:
        """Compile what these shapes will need, so that no request waits for it.

        Each configuration that is not compiled yet is launched once, on one request of one block.

        Returns:
            How many were compiled.

        Raises:
            RuntimeError: as for a call.
        """
        compiled = 0
        for shape in shapes:

            def tensors(shape: PfaShape = shape) -> list[Tensor]:
                smallest = replace(shape, b=1, s2=max(shape.s1, shape.block_size))
                return [tensor.to(device) for tensor in empty_inputs(Workload(smallest)).tensors()]

            _, launched = self._ready(shape, _scale(softmax_scale, shape.qd), tensors)
            compiled += launched
        return compiled

    @property
    def compiled(self) -> tuple[tuple[PfaFamily, str, float], ...]:
        """Family, configuration's digest and softmax scale of each kernel that was compiled."""
        return tuple(
            (family, kernel.digest, scale)
            for (_, family, scale), kernel in list(self._kernels.items())
            if kernel.launch is not None
        )

    def _ready(self, shape: PfaShape, scale: float, tensors: Callable[[], list[Tensor]]) -> tuple[Launch, bool]:
        """The kernel for a shape, and whether it was launched on ``tensors`` to compile it."""
        config, family = self._tuned.lookup(shape).config, shape.family
        launch = self._launches.get((config, family, scale))
        if launch is not None:
            return launch, False
        default = canonical(default_config(shape), family)
        served = canonical(config, family)
        if served != default:
            try:
                launch, launched = self._compile(served, family, scale, tensors)
            except _NotCompiledError as error:
                if error.first:
                    _log.warning("%s; the default configuration %s is used instead", error, default.digest)
                config = default
            else:
                self._launches[config, family, scale] = launch
                return launch, launched
        try:
            launch, launched = self._compile(default, family, scale, tensors, again=True)
        except _NotCompiledError as error:
            raise RuntimeError(
                f"{error}; it is the default of {shape}, and nothing can stand in for it: see what "
                f"`pfatune explain --default` and `pfatune doctor` say about this shape and this machine"
            ) from error.__cause__
        self._launches[config, family, scale] = launch
        return launch, launched

    def _compile(
        self,
        config: KernelConfig,
        family: PfaFamily,
        scale: float,
        tensors: Callable[[], list[Tensor]],
        *,
        again: bool = False,
    ) -> tuple[Launch, bool]:
        """``_ready`` for one canonical configuration; one that failed is tried ``again`` or not."""
        kernel = self._kernels.setdefault((config, family, scale), _Kernel(config))
        with kernel.lock:
            if kernel.launch is not None:
                return kernel.launch, False
            if kernel.failed and not again:
                raise _NotCompiledError(f"configuration {kernel.digest} does not compile", first=False)
            given = tensors()
            build = _build_for(given[0].device) if self._build is None else self._build
            try:
                launch = build(config, family, scale)
                launch(given)
            except Exception as error:
                first, kernel.failed = not kernel.failed, True
                raise _NotCompiledError(
                    f"configuration {kernel.digest} does not compile ({type(error).__name__}: {error})", first=first
                ) from error
            kernel.launch = launch
            return launch, True


class _NotCompiledError(RuntimeError):
    def __init__(self, message: str, *, first: bool) -> None:
        super().__init__(message)
        self.first = first


def _scale(softmax_scale: float | None, qd: int) -> float:
    if softmax_scale is None:
        return float(qd**-0.5)
    if not (math.isfinite(softmax_scale) and softmax_scale > 0):
        raise ValueError(f"softmax_scale is {softmax_scale}: give a number above 0, or None for qd ** -0.5")
    return float(softmax_scale)


def _build_for(device: torch.device) -> Build:
    if device.type != "npu":
        raise RuntimeError(
            f"the tensors are on {device}, where PyPTO's kernel cannot run: put them on an NPU (import torch_npu), "
            "or give configure(build=…) something that computes here, as examples/decode_loop.py does"
        )
    return npu_build


def npu_build(config: KernelConfig, family: PfaFamily, softmax_scale: float) -> Launch:
    """The PyPTO kernel of a configuration on the NPU, compiled at its first launch.

    It has compiled and run on the cost model and the interpreter only, never on an NPU.
    """
    import pypto

    from .pfa import build_kernel, flatten

    kernel = build_kernel(canonical(config, family), family, run_mode=pypto.RunMode.NPU, softmax_scale=softmax_scale)
    compiled = False

    def launch(tensors: list[Tensor]) -> None:
        nonlocal compiled
        if compiled:
            kernel(*flatten(tensors, family))
            return
        with _compiler:
            kernel(*flatten(tensors, family))
        compiled = True

    return launch


_process = PagedAttention()


def configure(tuned: Lookup | None = None, build: Build | None = None) -> PagedAttention:
    """Set what ``paged_attention`` uses in this process, and return it; see ``PagedAttention``.

    Call it once, before serving: kernels compiled before are forgotten.
    """
    global _process
    _process = PagedAttention(tuned, build=build)
    return _process


def warm_up(
    shapes: Iterable[PfaShape], *, device: str | torch.device = "cpu", softmax_scale: float | None = None
) -> int:
    """``PagedAttention.warm_up`` of what ``configure`` set."""
    return _process.warm_up(shapes, device=device, softmax_scale=softmax_scale)


def paged_attention(
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
    softmax_scale: float | None = None,
    check_values: bool | None = None,
) -> Tensor:
    """``PagedAttention`` of what ``configure`` set, as a PyTorch operator: [b*s1, nq, qd] bfloat16.

    Arguments are those of ``PagedAttention.__call__``. Nothing is written but the result, so it
    may stand in graphs of ``torch.compile(fullgraph=True)`` and ``torch.export``. There, lengths
    and blocks are checked only where ``check_values`` is True, and what the graph's inputs decide
    is checked when it runs.

    Raises:
        ValueError: a tensor is not what the kernel takes.
        RuntimeError: the kernel cannot be compiled or cannot run here.
    """
    if check_values is None and torch.compiler.is_compiling():
        check_values = False
    tensors = (q, q_scale, k, k_scale, v, v_scale, block_table, kv_act_seqs)
    check_types(dict(zip(FORMS, tensors, strict=False)))
    result: Tensor = torch.ops.pfatune.paged_attention(
        *tensors, s2=s2, softmax_scale=softmax_scale, check_values=check_values
    )
    return result


_SCHEMA = (
    "(Tensor q, Tensor q_scale, Tensor k, Tensor k_scale, Tensor v, Tensor v_scale, Tensor block_table, "
    "Tensor kv_act_seqs, *, SymInt? s2=None, float? softmax_scale=None, bool? check_values=None) -> Tensor"
)


# The kernel reads memory in row-major order, so a compiler must not choose other strides.
@torch.library.custom_op(
    "pfatune::paged_attention", mutates_args=(), schema=_SCHEMA, tags=(torch.Tag.needs_exact_strides,)
)
def _operator(
    *tensors: Tensor, s2: int | None = None, softmax_scale: float | None = None, check_values: bool | None = None
) -> Tensor:
    return _process(*tensors, s2=s2, softmax_scale=softmax_scale, check_values=check_values)


@_operator.register_fake
def _traced(
    *tensors: Tensor, s2: int | None = None, softmax_scale: float | None = None, check_values: bool | None = None
) -> Tensor:
    """Sizes that are symbols are checked when the graph runs: a comparison here would fix them."""
    sizes = [size for tensor in tensors for size in tensor.shape]
    if all(type(size) is int for size in (*sizes, s2 or 0)):
        check_args(*tensors, s2=s2, check_values=False)
    else:
        check_forms(dict(zip(FORMS, tensors, strict=False)))
    return tensors[0].new_empty(tensors[0].shape, dtype=torch.bfloat16)
