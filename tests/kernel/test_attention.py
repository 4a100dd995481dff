"""What an engine calls: right numbers, each configuration compiled once, and a call that compilers take whole."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from golden_build import GoldenBuild, compute
from hypothesis import given, settings
from hypothesis import strategies as st
from served_files import snapshot_of
from torch import Tensor
from torch._subclasses import FakeTensorMode

from pfatune.kernel import attention
from pfatune.kernel.attention import PagedAttention, configure, paged_attention, warm_up
from pfatune.kernel.checks import FORMS
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.golden import dense_attention
from pfatune.kernel.inputs import PfaInputs, make_inputs
from pfatune.kernel.ladder import Entry, Ladder
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.tuned import TunedConfigs

pytestmark = pytest.mark.torch

SHAPE = PfaShape(b=2, s2=384)
WORKLOAD = Workload(SHAPE, (384, 130))
FAMILY = SHAPE.family
SCALE = FAMILY.qd**-0.5
#: A weight rounded to E4M3 is off by at most 1/16 of itself.
TOLERANCE = 1 / 16


def default(shape: PfaShape = SHAPE) -> KernelConfig:
    return canonical(default_config(shape), shape.family)


def other(stitch: int = 64) -> KernelConfig:
    return replace(default(), stitch_function_max_num=stitch)


def tuned(*entries: tuple[PfaShape, KernelConfig]) -> Ladder:
    ladder = Ladder()
    for shape, config in entries or [(SHAPE, other())]:
        ladder.add(shape, Entry(config, 1.0, 2.0, 1, ""))
    ladder.settle()
    return ladder


def arguments(workload: Workload = WORKLOAD, seed: int = 0) -> tuple[Tensor, ...]:
    return tuple(make_inputs(workload, seed=seed).tensors()[:-1])


def worst_error(output: Tensor, tensors: tuple[Tensor, ...], workload: Workload) -> float:
    """Largest distance of one head's output from dense attention, relative to its length."""
    expected = dense_attention(PfaInputs(*tensors, output), workload)
    off = (output.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(off.nan_to_num(torch.inf).max())


@pytest.fixture
def build() -> Iterator[GoldenBuild]:
    """What ``paged_attention`` of this process computes with."""
    made = GoldenBuild()
    configure(tuned(), made)
    yield made
    configure()


@settings(max_examples=25)
@given(st.data())
def test_the_output_is_attention(data: st.DataObject) -> None:
    nkv, s1 = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 3))
    s2 = data.draw(st.integers(s1, 300))
    shape = PfaShape(b=data.draw(st.integers(1, 3)), s1=s1, s2=s2, nq=4, nkv=nkv, qd=64, block_size=64)
    lengths = data.draw(st.lists(st.integers(s1, s2), min_size=shape.b, max_size=shape.b))
    workload = Workload(shape, tuple(lengths))
    attention = PagedAttention(build=GoldenBuild())
    tensors = arguments(workload, seed=s2)
    output = attention(*tensors, s2=data.draw(st.none() | st.just(max(lengths))))
    assert output.shape == tensors[0].shape
    assert output.dtype == torch.bfloat16
    assert worst_error(output, tensors, workload) < TOLERANCE


def test_the_operator_computes_the_same(build: GoldenBuild) -> None:
    tensors = arguments()
    output = paged_attention(*tensors)
    assert torch.equal(output, PagedAttention(tuned(), build=GoldenBuild())(*tensors))
    assert torch.equal(output, torch.ops.pfatune.paged_attention(*tensors))
    assert worst_error(output, tensors, WORKLOAD) < TOLERANCE


def test_the_output_goes_where_it_is_wanted() -> None:
    attention = PagedAttention(build=GoldenBuild())
    tensors = arguments()
    out = torch.zeros(tensors[0].shape, dtype=torch.bfloat16)
    assert attention(*tensors, out=out) is out
    assert torch.equal(out, attention(*tensors))


def test_inputs_are_not_written(build: GoldenBuild) -> None:
    tensors = arguments()
    before = [tensor.view(torch.uint8).clone() for tensor in tensors]
    paged_attention(*tensors)
    assert all(torch.equal(a, b.view(torch.uint8)) for a, b in zip(before, tensors, strict=True))


def test_a_softmax_scale_of_ones_own(build: GoldenBuild) -> None:
    tensors = arguments()
    scaled = (tensors[0], tensors[1] * 2, *tensors[2:])
    # A factor of two is exact in every step.
    assert torch.equal(paged_attention(*tensors, softmax_scale=2 * SCALE), paged_attention(*scaled))
    assert not torch.equal(paged_attention(*tensors, softmax_scale=2 * SCALE), paged_attention(*tensors))
    assert set(build.made.values()) == {1}


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_softmax_scale_that_makes_no_sense_is_refused(build: GoldenBuild, scale: float) -> None:
    with pytest.raises(ValueError, match="softmax_scale is"):
        paged_attention(*arguments(), softmax_scale=scale)


class Asked:
    """Serves the default, and remembers what was asked for."""

    def __init__(self) -> None:
        self.shapes: list[PfaShape] = []
        self._ladder = Ladder()

    def lookup(self, shape: PfaShape) -> Any:
        self.shapes.append(shape)
        return self._ladder.lookup(shape)


def test_the_shape_is_read_from_the_tensors() -> None:
    asked = Asked()
    configure(asked, GoldenBuild())
    tensors = arguments(Workload(PfaShape(b=3, s1=2, s2=300, nq=8, nkv=2, qd=64, block_size=64), (300, 2, 70)))
    try:
        for s2 in (None, 300, 1000):
            paged_attention(*tensors, s2=s2)
    finally:
        configure()
    shape = PfaShape(b=3, s1=2, s2=320, nq=8, nkv=2, qd=64, block_size=64)
    assert asked.shapes == [shape, replace(shape, s2=300), shape]


def test_what_is_served_is_compiled_and_launched() -> None:
    made = GoldenBuild()
    attention = PagedAttention(tuned((SHAPE, other(64)), (PfaShape(b=2, s2=8192), other(32))), build=made)
    tensors = arguments()
    for _ in range(3):
        attention(*tensors)
    assert made.launches == [other(64).digest] * 3
    assert attention.compiled == ((FAMILY, other(64).digest, SCALE),)
    attention(*arguments(Workload(PfaShape(b=2, s2=8192), (8192, 1))))
    assert attention.compiled == ((FAMILY, other(64).digest, SCALE), (FAMILY, other(32).digest, SCALE))
    assert set(made.made.values()) == {1}


def test_what_is_newly_tuned_is_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "configs.json"
    file.write_bytes(snapshot_of(tuned((SHAPE, other(64)))))
    made = GoldenBuild()
    with TunedConfigs(file) as configs:
        attention = PagedAttention(configs, build=made)
        attention(*arguments())
        file.write_bytes(snapshot_of(tuned((SHAPE, other(32)))))
        assert configs.refresh()
        attention(*arguments())
    assert made.launches == [other(64).digest, other(32).digest]


def test_two_spellings_are_one_kernel() -> None:
    spelling = replace(other(), unroll_list=(1, 2, 4, 8, 8))
    assert canonical(spelling, FAMILY) == other()
    made = GoldenBuild()
    attention = PagedAttention(tuned((SHAPE, other()), (PfaShape(b=2, s2=256), spelling)), build=made)
    attention(*arguments())
    attention(*arguments(Workload(PfaShape(b=2, s2=256))))
    assert made.made == {(other().digest, FAMILY, SCALE): 1}


def test_families_and_scales_are_kernels_of_their_own() -> None:
    made = GoldenBuild()
    attention = PagedAttention(build=made)
    two = PfaShape(b=2, s2=384, nkv=2)
    attention(*arguments())
    attention(*arguments(Workload(two)))
    attention(*arguments(), softmax_scale=0.5)
    attention(*arguments(), softmax_scale=SCALE)
    assert made.made == {
        (default().digest, FAMILY, SCALE): 1,
        (default(two).digest, two.family, SCALE): 1,
        (default().digest, FAMILY, 0.5): 1,
    }


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of ``work`` in threads that start together."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_compile_once_together() -> None:
    made = GoldenBuild(seconds=0.2)
    attention = PagedAttention(tuned(), build=made)
    tensors = arguments()
    outputs = in_threads(8, lambda _: attention(*tensors))
    assert made.made == {(other().digest, FAMILY, SCALE): 1}
    assert made.launches == [other().digest] * 8
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_the_first_launch_has_the_kernel_to_itself() -> None:
    """PyPTO compiles at the first launch, so a second one must not begin before it is over."""
    at_once, most, launched = 0, 0, 0

    def build(config: KernelConfig, family: PfaFamily, scale: float) -> Callable[[list[Tensor]], None]:
        def launch(tensors: list[Tensor]) -> None:
            nonlocal at_once, most, launched
            at_once += 1
            if not launched:
                time.sleep(0.1)
                most = max(most, at_once)
                launched = True
            at_once -= 1

        return launch

    attention = PagedAttention(build=build)
    tensors = arguments()
    in_threads(4, lambda _: attention(*tensors))
    assert most == 1


def test_different_configurations_do_not_wait_for_each_other() -> None:
    shapes = [PfaShape(b=1, s2=512), PfaShape(b=2, s2=512)]
    both = threading.Barrier(2)

    def build(config: KernelConfig, family: PfaFamily, scale: float) -> Callable[[list[Tensor]], None]:
        both.wait(20)  # breaks unless the other one is being built, too
        return lambda tensors: None

    attention = PagedAttention(tuned((shapes[0], other(64)), (shapes[1], other(32))), build=build)
    in_threads(2, lambda number: attention(*arguments(Workload(shapes[number]))))
    assert len(attention.compiled) == 2


@pytest.mark.parametrize("when", ["build", "launch"])
def test_a_tuned_configuration_that_fails_is_replaced_by_the_default(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = GoldenBuild(other().digest, when=when)
    attention = PagedAttention(tuned(), build=made)
    tensors = arguments()
    with caplog.at_level(logging.WARNING, "pfatune.attention"):
        outputs = in_threads(4, lambda _: attention(*tensors))
        outputs += [attention(*tensors) for _ in range(3)]
    assert made.made == {(other().digest, FAMILY, SCALE): 1, (default().digest, FAMILY, SCALE): 1}
    assert set(made.launches) == {default().digest}
    assert all(worst_error(output, tensors, WORKLOAD) < TOLERANCE for output in outputs)
    assert attention.compiled == ((FAMILY, default().digest, SCALE),)
    (record,) = caplog.records
    assert f"configuration {other().digest} does not compile (OverflowError: UB is full)" in record.getMessage()
    assert f"default configuration {default().digest}" in record.getMessage()


def test_the_default_that_stands_in_is_that_of_the_shape() -> None:
    shapes = [PfaShape(b=1, s2=4096), PfaShape(b=1, s2=8192)]
    assert default(shapes[0]) != default(shapes[1])
    made = GoldenBuild(other().digest)
    attention = PagedAttention(tuned((shapes[0], other())), build=made)
    for shape in (*shapes, shapes[0]):
        attention(*arguments(Workload(shape)))
    assert made.launches == [default(shape).digest for shape in (*shapes, shapes[0])]


def test_a_default_that_fails_raises_and_may_be_tried_again() -> None:
    made = GoldenBuild(other().digest, default().digest)
    attention = PagedAttention(tuned(), build=made)
    message = f"configuration {default().digest} does not compile .*UB is full.*default of {SHAPE}.*`pfatune doctor`"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message) as failure:
            attention(*arguments())
        assert type(failure.value) is RuntimeError
        assert isinstance(failure.value.__cause__, OverflowError)
    assert made.made == {(other().digest, FAMILY, SCALE): 1, (default().digest, FAMILY, SCALE): 2}
    assert attention.compiled == ()
    made.broken.clear()
    assert worst_error(attention(*arguments()), arguments(), WORKLOAD) < TOLERANCE


def test_an_interrupt_is_no_failure_of_the_configuration() -> None:
    interrupts = [KeyboardInterrupt()]

    def build(config: KernelConfig, family: PfaFamily, scale: float) -> Callable[[list[Tensor]], None]:
        if interrupts:
            raise interrupts.pop()
        return lambda tensors: None

    attention = PagedAttention(tuned(), build=build)
    with pytest.raises(KeyboardInterrupt):
        attention(*arguments())
    attention(*arguments())
    assert [digest for _, digest, _ in attention.compiled] == [other().digest]


def test_without_an_npu_or_a_build_the_error_says_what_to_do() -> None:
    attention = PagedAttention(tuned())
    for call in (lambda: attention(*arguments()), lambda: attention.warm_up([SHAPE])):
        with pytest.raises(RuntimeError, match=r"on cpu, .*torch_npu.*configure\(build=…\).*decode_loop"):
            call()


def test_the_process_without_configure_serves_defaults() -> None:
    configure()
    with pytest.raises(RuntimeError, match="on cpu"):
        paged_attention(*arguments())
    made = GoldenBuild()
    configure(build=made)
    try:
        paged_attention(*arguments())
        assert made.launches == [default().digest]
    finally:
        configure()


def test_warm_up_compiles_what_the_shapes_need() -> None:
    made = GoldenBuild()
    two = PfaShape(b=2, s2=384, nkv=2, s1=3)
    shapes = [SHAPE, PfaShape(b=1, s2=100), PfaShape(b=512, s2=100_000), two, two]
    attention = PagedAttention(tuned(), build=made)
    assert attention.warm_up(shapes) == 3  # near SHAPE, far from it, and the other family
    assert attention.warm_up(shapes) == 0
    assert len(attention.compiled) == 3
    launched = len(made.launches)
    attention(*arguments())
    attention(*arguments(Workload(two)))
    assert len(made.launches) == launched + 2
    assert set(made.made.values()) == {1}


def test_warm_up_of_the_process(build: GoldenBuild) -> None:
    assert warm_up([SHAPE], softmax_scale=0.5) == 1
    assert warm_up([SHAPE], softmax_scale=0.5) == 0
    assert build.made == {(other().digest, FAMILY, 0.5): 1}


def test_warm_up_finds_what_does_not_compile() -> None:
    made = GoldenBuild(other().digest)
    attention = PagedAttention(tuned(), build=made)
    assert attention.warm_up([SHAPE]) == 1
    assert attention.compiled == ((FAMILY, default().digest, SCALE),)


@pytest.mark.parametrize("name", list(FORMS)[:-1])
def test_bad_tensors_are_named_by_the_operator_too(build: GoldenBuild, name: str) -> None:
    given = dict(zip(FORMS, arguments(), strict=False))
    for bad in (given[name][None], given[name].tolist(), given[name].to(torch.float16)):
        with pytest.raises(ValueError, match=f"^{name} "):
            paged_attention(**{**given, name: bad})
    assert not build.launches


def test_values_are_checked_unless_the_engine_sees_to_them(build: GoldenBuild) -> None:
    tensors = list(arguments())
    tensors[7] = tensors[7] * 0
    with pytest.raises(ValueError, match=r"^kv_act_seqs\[0\] is 0"):
        paged_attention(*tensors)
    paged_attention(*tensors, check_values=False)
    assert len(build.launches) == 1


def step(*tensors: Tensor, s2: int | None = None, check_values: bool | None = None) -> Tensor:
    """What a model does around the call."""
    return paged_attention(*tensors, s2=s2, check_values=check_values).float() * 2


@pytest.fixture
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiler_takes_the_call_whole(build: GoldenBuild, backend: str) -> None:
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for b, s2 in ((2, 384), (3, 500), (4, 700)):
        tensors = arguments(Workload(PfaShape(b=b, s2=s2)))
        for known in (None, s2):
            assert torch.equal(compiled(*tensors, s2=known), step(*tensors, s2=known))


@pytest.mark.usefixtures("fresh")
def test_growing_batches_and_sequences_are_not_compiled_again_and_again(build: GoldenBuild) -> None:
    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for b in range(2, 8):
        compiled(*arguments(Workload(PfaShape(b=b, s2=100 * b))), s2=100 * b)
    assert graphs <= 3


@pytest.mark.usefixtures("fresh")
def test_in_a_graph_values_are_read_only_when_asked(build: GoldenBuild) -> None:
    tensors = list(arguments())
    tensors[7] = tensors[7] * 0
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    compiled(*tensors)
    with pytest.raises(ValueError, match="kv_act_seqs"):
        compiled(*tensors, check_values=True)


@pytest.mark.usefixtures("fresh")
def test_in_a_graph_sizes_are_checked_when_it_is_made_and_when_it_runs(build: GoldenBuild) -> None:
    compiled = torch.compile(step, fullgraph=True, backend="eager", dynamic=False)
    tensors = list(arguments())
    tensors[5] = tensors[5][:1]
    with pytest.raises(RuntimeError, match=r"v_scale has shape \[1, 1, 128\]: give \[2, 1, 128\]"):
        compiled(*tensors)
    symbolic = torch.compile(step, fullgraph=True, backend="eager", dynamic=True)
    symbolic(*arguments())
    with pytest.raises(ValueError, match=r"v_scale has shape \[1, 1, 128\]: give \[2, 1, 128\]"):
        symbolic(*tensors)


class Layer(torch.nn.Module):
    def forward(self, *tensors: Tensor) -> Tensor:
        return step(*tensors)


def test_export_keeps_the_call(build: GoldenBuild) -> None:
    tensors = arguments()
    program = torch.export.export(Layer(), tensors)
    assert "pfatune.paged_attention" in str(program.graph)
    assert torch.equal(program.module()(*tensors), step(*tensors))


def test_export_for_any_batch_and_any_length(build: GoldenBuild) -> None:
    b, blocks, columns = torch.export.Dim("b"), torch.export.Dim("blocks"), torch.export.Dim("columns")
    cache = {0: blocks}
    sizes = (({0: b}, {0: b}, cache, cache, cache, {0: b}, {0: b, 1: columns}, {0: b}),)
    program = torch.export.export(Layer(), arguments(), dynamic_shapes=sizes)
    tensors = arguments(Workload(PfaShape(b=5, s2=1000), (1000, 1, 128, 129, 640)))
    assert torch.equal(program.module()(*tensors), step(*tensors))


def test_fake_and_meta_tensors_say_what_comes_out(build: GoldenBuild) -> None:
    tensors = arguments()
    with FakeTensorMode() as mode:
        fake = paged_attention(*(mode.from_tensor(tensor) for tensor in tensors))
    meta = paged_attention(*(tensor.to("meta") for tensor in tensors))
    for output in (fake, meta):
        assert (output.shape, output.dtype) == (tensors[0].shape, torch.bfloat16)
        assert output.is_contiguous()
    assert meta.is_meta
    assert not build.launches
    with pytest.raises(ValueError, match="v_scale"):
        paged_attention(*(tensor.to("meta") for tensor in (*tensors[:5], tensors[5][:1], *tensors[6:])))


@pytest.mark.parametrize("options", [{}, {"s2": 384}, {"softmax_scale": 0.5, "check_values": False}])
def test_the_operator_keeps_to_its_declaration(build: GoldenBuild, options: dict[str, Any]) -> None:
    # Without test_schema, which compares FP8 tensors on the CPU, where torch cannot;
    # test_inputs_are_not_written takes its place.
    utils = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(torch.ops.pfatune.paged_attention, arguments(), options, test_utils=utils)
    assert set(results.values()) == {"SUCCESS"}
    schema = torch.ops.pfatune.paged_attention.default._schema
    assert not schema.is_mutable
    assert [argument.name for argument in schema.arguments[:8]] == list(FORMS)[:8]


def test_tensors_are_not_kept(build: GoldenBuild) -> None:
    tensors = arguments()
    output = paged_attention(*tensors)
    gone = [weakref.ref(tensor) for tensor in (*tensors, output)]
    del tensors, output
    gc.collect()
    assert [reference() for reference in gone] == [None] * 9


def test_the_npus_kernel_gets_flattened_tensors_once_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``npu_build`` against a PyPTO that only says what it was given: none runs on this CPU."""
    given: dict[str, Any] = {}
    held: list[bool] = []

    def build_kernel(config: KernelConfig, family: PfaFamily, **options: Any) -> Callable[..., None]:
        given.update(config=config, family=family, **options)

        def kernel(*tensors: Tensor) -> None:
            held.append(attention._compiler.locked())
            compute(config, family, options["softmax_scale"], [*arguments(), tensors[-1]])
            given["shapes"] = [list(tensor.shape) for tensor in tensors]

        return kernel

    def flatten(tensors: list[Tensor], family: PfaFamily) -> list[Tensor]:
        return [tensor.view(-1, tensor.shape[-1]) for tensor in tensors[:6]] + tensors[6:]

    pypto = ModuleType("pypto")
    pypto.RunMode = SimpleNamespace(NPU="npu", SIM="sim")  # type: ignore[attr-defined]
    pfa = ModuleType("pfatune.kernel.pfa")
    pfa.build_kernel, pfa.flatten = build_kernel, flatten  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pypto", pypto)
    monkeypatch.setitem(sys.modules, "pfatune.kernel.pfa", pfa)
    spelled = replace(other(), unroll_list=(1, 2, 4, 8))
    launch = attention.npu_build(spelled, FAMILY, 0.5)
    out = torch.zeros(arguments()[0].shape, dtype=torch.bfloat16)
    for _ in range(2):
        launch([*arguments(), out])
    assert (given["config"], given["family"]) == (other(), FAMILY)
    assert (given["run_mode"], given["softmax_scale"]) == ("npu", 0.5)
    assert given["shapes"][0] == [24, 128]
    assert held == [True, False]
    assert torch.equal(out, PagedAttention(build=GoldenBuild())(*arguments(), softmax_scale=0.5))
