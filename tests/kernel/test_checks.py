"""What the kernel is never given: tensors that do not fit, lengths and blocks that lead outside the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import shapes
from torch import Tensor
from torch._subclasses import FakeTensorMode

from pfatune.kernel.checks import FORMS, check_args, values_can_be_read
from pfatune.kernel.inputs import empty_inputs, make_inputs
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaShape, Workload

pytestmark = pytest.mark.torch

RAGGED = Workload(PfaShape(b=3, s1=2, s2=500, nq=12, nkv=2, qd=64, block_size=64), (500, 2, 129))
NUM_BLOCKS = 24
Change = Callable[[Tensor], Tensor]


def arguments(workload: Workload = RAGGED) -> dict[str, Tensor]:
    """The kernel's arguments by name, the output among them."""
    return dict(zip(FORMS, empty_inputs(workload).tensors(), strict=True))


def element(index: object, value: int) -> Change:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return change


@st.composite
def small_workloads(draw: st.DrawFn) -> Workload:
    drawn = draw(shapes())
    shape = replace(drawn, b=min(drawn.b, 8), s2=max(drawn.s1, min(drawn.s2, 4100)))
    return Workload(shape, tuple(draw(st.integers(shape.s1, shape.s2)) for _ in range(shape.b)))


@given(small_workloads())
def test_what_the_kernel_takes_passes_and_gives_its_shape(workload: Workload) -> None:
    shape = workload.shape
    given = arguments(workload)
    room = shape.blocks_per_query * shape.block_size
    assert check_args(**given, s2=shape.s2) == shape
    assert check_args(**given, s2=MAX_S2) == replace(shape, s2=min(room, MAX_S2))
    if room <= MAX_S2:
        assert check_args(**given) == replace(shape, s2=room)
    del given["out"]
    assert check_args(**given, s2=shape.s2) == shape


#: Ways to spoil a tensor of any kind, and what the message says of each.
SPOILT: dict[str, tuple[Change, str]] = {
    "one dimension more": (lambda tensor: tensor[None], "dimensions"),
    "one dimension less": (lambda tensor: tensor[0], "dimensions"),
    "another type": (lambda tensor: torch.zeros(tensor.shape, dtype=torch.float16), "is of float16: give"),
    "another device": (lambda tensor: tensor.to("meta"), "one device|devices"),
    "a list": (lambda tensor: tensor.tolist(), "is of type list: give a tensor"),
    "nothing": (lambda tensor: None, "is of type NoneType: give a tensor"),
    "strides": (lambda tensor: torch.stack([tensor, tensor], -1)[..., 0], "is not contiguous"),
}


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in FORMS for way in SPOILT if (name, way) != ("out", "nothing")]
)
def test_a_tensor_that_does_not_fit_is_named(name: str, way: str) -> None:
    change, message = SPOILT[way]
    given = arguments()
    if (name, way) == ("q", "another device"):
        # The first tensor sets the device; the next one differs from it.
        name, given["q"] = "q_scale", change(given["q"])
    else:
        given[name] = change(given[name])
    with pytest.raises(ValueError, match=rf"^{name} .*({message})"):
        check_args(**given)


@given(
    st.sampled_from([(name, axis) for name, (layout, _) in FORMS.items() for axis in range(layout.count(",") + 1)]),
    st.integers(0, 40),
)
def test_a_size_that_disagrees_is_an_error(where: tuple[str, int], size: int) -> None:
    name, axis = where
    given = arguments()
    shape = list(given[name].shape)
    if shape[axis] == size:
        return
    shape[axis] = size
    given[name] = torch.zeros(shape).to(given[name].dtype)
    free = {("block_table", 1)}  # the width of the table is nobody else's
    if where in free and size >= 1:
        check_args(**given, check_values=False)
        return
    with pytest.raises(ValueError, match=r"give|do not call"):
        check_args(**given, check_values=False)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("q", (5, 12, 64), r"^q has 5 rows for the 3 requests of kv_act_seqs"),
        ("q", (0, 12, 64), r"^q has 0 rows"),
        ("q_scale", (6, 12, 2), r"^q_scale has shape \[6, 12, 2\]: give \[6, 12, 1\]"),
        ("k", (NUM_BLOCKS, 64, 2, 32), r"^k has shape \[24, 64, 2, 32\]: give \[24, 64, 2, 64\]"),
        ("k", (0, 64, 2, 64), r"^k has no blocks"),
        ("k_scale", (NUM_BLOCKS, 64, 2, 64), r"^k_scale has shape .*: give \[24, 64, 2, 1\]"),
        ("v", (NUM_BLOCKS - 1, 64, 2, 64), r"^v has shape .*: give \[24, 64, 2, 64\]"),
        ("v_scale", (2, 2, 64), r"^v_scale has shape .*: give \[3, 2, 64\]"),
        ("block_table", (2, 8), r"^block_table has shape \[2, 8\]: give \[3, 8\]"),
        ("block_table", (3, 0), r"^block_table has no columns"),
        ("kv_act_seqs", (0,), r"^kv_act_seqs is empty"),
        ("out", (6, 12, 32), r"^out has shape .*: give \[6, 12, 64\]"),
    ],
)
def test_the_message_says_which_size(name: str, shape: tuple[int, ...], message: str) -> None:
    given = arguments()
    given[name] = torch.zeros(shape).to(given[name].dtype)
    with pytest.raises(ValueError, match=message):
        check_args(**given)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("q", {"nq": 12, "nkv": 5}),
        ("q", {"qd": 48}),
        ("k", {"block_size": 16}),
        ("kv_act_seqs", {"b": MAX_BATCH + 1}),
    ],
)
def test_sizes_that_no_kernel_serves_name_their_tensor(name: str, workload: dict[str, int]) -> None:
    sizes = {"b": 1, "nq": 4, "nkv": 1, "qd": 32, "block_size": 32, **workload}
    b, nq, nkv, qd, block_size = sizes.values()
    cache = (2, block_size, nkv)
    shapes = ((b, nq, qd), (b, nq, 1), (*cache, qd), (*cache, 1), (*cache, qd), (b, nkv, qd), (b, 1), (b,))
    tensors = [torch.zeros(shape).to(FORMS[name][1]) for name, shape in zip(FORMS, shapes, strict=False)]
    with pytest.raises(ValueError, match=f"^{name} does not fit the kernel: "):
        check_args(*tensors)


@pytest.mark.parametrize("s2", [0, -1, MAX_S2 + 1, 1.5, True])
def test_an_s2_that_no_sequence_can_have_is_refused(s2: object) -> None:
    with pytest.raises(ValueError, match=r"^the argument s2 does not fit the kernel: s2 is"):
        check_args(**arguments(), s2=s2)


def test_a_table_of_more_room_than_a_kernel_serves_needs_an_s2() -> None:
    given = arguments(Workload(PfaShape(b=1, s2=1024)))
    given["block_table"] = torch.zeros(1, MAX_S2 // 128 + 1, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^block_table has room for 131200 tokens .*or give the argument s2"):
        check_args(**given)
    assert check_args(**given, s2=1024).s2 == 1024


@pytest.mark.parametrize(
    ("name", "change", "s2", "message"),
    [
        ("kv_act_seqs", element(1, 0), None, r"^kv_act_seqs\[1\] is 0: give 2 .* leave a request out of the batch"),
        ("kv_act_seqs", element(1, -7), None, r"^kv_act_seqs\[1\] is -7: give 2 \(s1\) to 512 \(s2\) tokens"),
        ("kv_act_seqs", element(1, 1), None, r"^kv_act_seqs\[1\] is 1: give 2 \(s1\) to 512 \(s2\) tokens"),
        ("kv_act_seqs", element(2, 513), None, r"^kv_act_seqs\[2\] is 513: give 2 \(s1\) to 512 \(s2\) tokens"),
        ("kv_act_seqs", element(2, 131), 130, r"^kv_act_seqs\[0\] is 500: give 2 \(s1\) to 130 \(s2\) tokens"),
        ("kv_act_seqs", element(2, 193), None, r"^block_table\[2, 3\] is -1: .* request 2 has 193 tokens in 4 blocks"),
        ("block_table", element((0, 7), -1), None, r"^block_table\[0, 7\] is -1: give a block of the cache, 0 to 23"),
        ("block_table", element((2, 0), 24), None, r"^block_table\[2, 0\] is 24: give a block of the cache, 0 to 23"),
        ("block_table", element((1, 1), 24), None, r"^block_table\[1, 1\] is 24: give -1 past a request's last block"),
        ("block_table", element((1, 7), -2), None, r"^block_table\[1, 7\] is -2: give -1 past a request's last block"),
    ],
)
def test_lengths_and_blocks_that_lead_outside_are_named(
    name: str, change: Change, s2: int | None, message: str
) -> None:
    given = arguments()
    given[name] = change(given[name])
    with pytest.raises(ValueError, match=message):
        check_args(**given, s2=s2)
    check_args(**given, s2=s2, check_values=False)


def test_full_blocks_need_no_further_one() -> None:
    given = arguments()
    given["kv_act_seqs"][2] = 128
    given["block_table"][2, 2] = -1
    check_args(**given)


def test_several_requests_may_share_blocks() -> None:
    given = arguments()
    given["block_table"][1:] = given["block_table"][0]
    check_args(**given)


@given(st.data())
def test_values_pass_exactly_if_every_block_read_is_in_the_cache(data: st.DataObject) -> None:
    given = arguments()
    lengths = data.draw(st.lists(st.integers(-1, 514) | st.just(2), min_size=3, max_size=3))
    table = data.draw(
        st.lists(st.lists(st.integers(0, 23), min_size=8, max_size=8), min_size=3, max_size=3).map(torch.tensor)
    )
    for row, column, entry in data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(-2, 25)), max_size=3)
    ):
        table[row, column] = entry
    given["kv_act_seqs"] = torch.tensor(lengths, dtype=torch.int32)
    given["block_table"] = table.to(torch.int32)
    sound = all(2 <= length <= 512 for length in lengths) and all(
        (0 if column * 64 < length else -1) <= entry < NUM_BLOCKS
        for length, row in zip(lengths, table.tolist(), strict=True)
        for column, entry in enumerate(row)
    )
    if sound:
        check_args(**given)
    else:
        with pytest.raises(ValueError, match=r"^(kv_act_seqs|block_table)"):
            check_args(**given)


def test_values_are_not_read_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments()
    given["kv_act_seqs"] = given["kv_act_seqs"] * 0
    on_meta = {name: tensor.to("meta") for name, tensor in given.items()}
    assert check_args(**on_meta).b == 3
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in given.items()}
        assert check_args(**fake).b == 3
    monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: True, raising=False)
    assert check_args(**given).b == 3
    with pytest.raises(ValueError, match="kv_act_seqs"):
        check_args(**given, check_values=True)
    monkeypatch.setattr(torch.cpu, "is_current_stream_capturing", lambda: False)
    assert values_can_be_read(given["q"])
    with pytest.raises(ValueError, match="kv_act_seqs"):
        check_args(**given)


class OnNpu(Tensor):
    """Stands for a tensor of torch_npu."""

    device = SimpleNamespace(type="npu", index=0)


@pytest.mark.parametrize(("number", "plain"), [(2, True), (0, True), (30, True), (29, False), (3, False)])
def test_an_npus_private_format_is_refused(monkeypatch: pytest.MonkeyPatch, number: int, plain: bool) -> None:
    given = {name: tensor.as_subclass(OnNpu) for name, tensor in arguments().items()}
    check_args(**given, check_values=False)  # torch_npu cannot tell

    def get_npu_format(tensor: Tensor) -> int:
        return number if tensor is given["v"] else 2

    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(get_npu_format=get_npu_format))
    if plain:
        check_args(**given, check_values=False)
    else:
        with pytest.raises(ValueError, match=f"^v is in the NPU's private format {number}, .*npu_format_cast"):
            check_args(**given, check_values=False)


def test_nothing_is_written() -> None:
    inputs = make_inputs(RAGGED, seed=0)
    before = [tensor.view(torch.uint8).clone() for tensor in inputs.tensors()]
    check_args(**dict(zip(FORMS, inputs.tensors(), strict=True)))
    assert all(torch.equal(a, b.view(torch.uint8)) for a, b in zip(before, inputs.tensors(), strict=True))
