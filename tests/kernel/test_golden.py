"""The two goldens against each other and against torch, and what a comparison catches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pfatune.kernel.golden import ATOL, RTOL, compare, dense_attention, flash_attention
from pfatune.kernel.inputs import PfaInputs, make_inputs
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.torch

# E4M3 has three mantissa bits, so each quantised weight is off by at most 1/16 of itself,
# and by some 2.6 % in the root mean square. Its errors are independent from key to key, as
# are the random values that it weighs: error and output grow alike with the length, and
# their ratio stays. Measured for the workloads below: 3.7 % for the worst query head.
P_ERROR = 0.05
# Two tilings round P independently: √2 of that. Measured: 4.3 %.
TILE_ERROR = 0.0625

WORKLOADS = {
    "full": Workload(PfaShape(b=2, s2=1024)),
    "ragged": Workload(PfaShape(b=4, s2=1100, nkv=2), (1100, 1, 128, 700)),
    "unaligned": Workload(PfaShape(b=2, s2=1100)),
    "causal": Workload(PfaShape(b=2, s1=2, s2=1025, nq=48, nkv=8), (1025, 129)),
    "causal, first token sees one key": Workload(PfaShape(b=2, s1=3, s2=300, nq=4), (3, 300)),
    "one head each": Workload(PfaShape(b=2, s2=300, nq=8, nkv=8, qd=64), (300, 2)),
    "small blocks": Workload(PfaShape(b=4, s2=256, nq=16, nkv=4, block_size=64), (1, 63, 64, 256)),
}
RAGGED = WORKLOADS["ragged"]
CAUSAL = WORKLOADS["causal"]


@pytest.fixture(params=WORKLOADS.values(), ids=WORKLOADS.keys())
def workload(request: pytest.FixtureRequest) -> Workload:
    return request.param


def worst_head_error(actual: Tensor, expected: Tensor) -> float:
    """Largest distance of one query head's output from the expected one, relative to its length."""
    expected = expected.float()
    return float(((actual.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def with_nan_outside(inputs: PfaInputs, workload: Workload) -> PfaInputs:
    """The same inputs, with NaN wherever no token of a request is."""
    held = torch.zeros(inputs.k.shape[:2], dtype=torch.bool)
    block = workload.shape.block_size
    for request, length in enumerate(workload.lengths):
        for position in range(length):
            held[inputs.block_table[request, position // block], position % block] = True
    assert not bool(held.all()), "the workload leaves nothing to fill"
    nan = torch.tensor(torch.nan)
    k = inputs.k.float().where(held[..., None, None], nan).to(inputs.k.dtype)
    v = inputs.v.float().where(held[..., None, None], nan).to(inputs.v.dtype)
    return replace(inputs, k=k, v=v, k_scale=inputs.k_scale.where(held[..., None, None], nan))


def test_the_dense_form_is_the_attention_of_torch(workload: Workload) -> None:
    shape = workload.shape
    inputs = make_inputs(workload, seed=1)
    result = dense_attention(inputs, workload).reshape(shape.b, shape.s1, shape.nq, shape.qd)
    q = (inputs.q.float() * inputs.q_scale).reshape(result.shape)
    for request, length in enumerate(workload.lengths):
        block, slot = divmod_tokens(length, shape.block_size)
        pages = inputs.block_table[request, block].long()
        k = inputs.k.float()[pages, slot] * inputs.k_scale[pages, slot]
        v = inputs.v.float()[pages, slot] * inputs.v_scale[request]
        mask = torch.ones(shape.s1, length, dtype=torch.bool).tril(length - shape.s1)
        expected = functional.scaled_dot_product_attention(
            q[request].transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, enable_gqa=True
        )
        torch.testing.assert_close(result[request], expected.transpose(0, 1), rtol=1e-4, atol=1e-5)


def divmod_tokens(length: int, block_size: int) -> tuple[Tensor, Tensor]:
    position = torch.arange(length)
    return position // block_size, position % block_size


@pytest.mark.parametrize("quant_max", [448.0, 128.0])
def test_the_flash_form_agrees_with_the_dense_form(workload: Workload, quant_max: float) -> None:
    inputs = make_inputs(workload, seed=0, quant_max=quant_max)
    dense = dense_attention(inputs, workload)
    for s2_tile in (128, 512):
        flash = flash_attention(inputs, workload, s2_tile=s2_tile, quant_max=quant_max)
        assert flash.dtype == torch.bfloat16
        assert flash.shape == inputs.atten_out.shape
        assert worst_head_error(flash, dense) < P_ERROR


def test_the_tile_changes_the_flash_form_only_by_the_rounding_of_p(workload: Workload) -> None:
    inputs = make_inputs(workload, seed=0)
    whole = flash_attention(inputs, workload, s2_tile=2048)
    for s2_tile in (128, 256, 1024):
        assert worst_head_error(flash_attention(inputs, workload, s2_tile=s2_tile), whole) < TILE_ERROR


@pytest.mark.parametrize("s2_tile", [128, 256, 1024])
def test_where_p_needs_no_rounding_both_forms_agree_within_tolerance(workload: Workload, s2_tile: int) -> None:
    """With all keys alike every weight is 1, which E4M3 holds: only bfloat16 remains."""
    inputs = make_inputs(workload, seed=0)
    alike = replace(
        inputs, k=inputs.k[:1, :1].expand_as(inputs.k), k_scale=inputs.k_scale[:1, :1].expand_as(inputs.k_scale)
    )
    agreement = compare(flash_attention(alike, workload, s2_tile=s2_tile), dense_attention(alike, workload))
    assert agreement.passed
    assert agreement.max_abs_diff > 0


@pytest.mark.parametrize("workload", [RAGGED, CAUSAL, WORKLOADS["unaligned"]], ids=["ragged", "causal", "unaligned"])
def test_nothing_outside_the_sequences_is_read(workload: Workload) -> None:
    inputs = make_inputs(workload, seed=0)
    spoilt = with_nan_outside(inputs, workload)
    assert torch.equal(dense_attention(spoilt, workload), dense_attention(inputs, workload))
    assert torch.equal(flash_attention(spoilt, workload, s2_tile=256), flash_attention(inputs, workload, s2_tile=256))


def test_where_pages_lie_does_not_matter() -> None:
    inputs = make_inputs(RAGGED, seed=0)
    order = torch.randperm(len(inputs.k), generator=torch.Generator().manual_seed(3))
    table = inputs.block_table.long()
    moved = replace(
        inputs,
        k=inputs.k[order],
        k_scale=inputs.k_scale[order],
        v=inputs.v[order],
        block_table=order.argsort()[table.clamp(min=0)].where(table >= 0, table).to(torch.int32),
    )
    assert not torch.equal(moved.block_table, inputs.block_table)
    assert torch.equal(dense_attention(moved, RAGGED), dense_attention(inputs, RAGGED))
    assert torch.equal(flash_attention(moved, RAGGED, s2_tile=128), flash_attention(inputs, RAGGED, s2_tile=128))


def test_a_query_token_does_not_see_those_after_it() -> None:
    """Changing the newest cached token changes the last query token and no other."""
    inputs = make_inputs(CAUSAL, seed=0)
    newest = CAUSAL.lengths[0] - 1
    page = inputs.block_table[0, newest // 128]
    scale = inputs.k_scale.clone()
    scale[page, newest % 128] *= -8
    changed = replace(inputs, k_scale=scale)
    for attention in (dense_attention, lambda *args: flash_attention(*args, s2_tile=128)):
        same = (attention(changed, CAUSAL) == attention(inputs, CAUSAL)).flatten(1).all(-1)
        assert same.tolist() == [True, False, True, True]


@pytest.mark.parametrize("s2_tile", [0, -128, 100, 192])
def test_a_tile_that_is_not_whole_blocks_is_refused(s2_tile: int) -> None:
    with pytest.raises(ValueError, match=f"s2_tile is {s2_tile}: give a multiple of the block size, 128"):
        flash_attention(make_inputs(RAGGED, seed=0), RAGGED, s2_tile=s2_tile)


def test_a_maximum_that_e4m3_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="quant_max is 500"):
        flash_attention(make_inputs(RAGGED, seed=0), RAGGED, s2_tile=128, quant_max=500.0)


def test_tolerances_are_those_of_the_kernels_own_test() -> None:
    assert RTOL == 0.0078125
    assert ATOL == 0.0001


@pytest.fixture(scope="module")
def ragged() -> PfaInputs:
    return make_inputs(RAGGED, seed=0)


def wrong_v_scale(inputs: PfaInputs) -> PfaInputs:
    return replace(inputs, v_scale=inputs.v_scale * 1.05)


def wrong_q_scale(inputs: PfaInputs) -> PfaInputs:
    return replace(inputs, q_scale=inputs.q_scale * 1.05)


def reciprocal_k_scale(inputs: PfaInputs) -> PfaInputs:
    return replace(inputs, k_scale=1 / inputs.k_scale)


def block_of_another_request(inputs: PfaInputs) -> PfaInputs:
    table = inputs.block_table.clone()
    table[0, 1], table[3, 1] = inputs.block_table[3, 1], inputs.block_table[0, 1]
    return replace(inputs, block_table=table)


def last_block_first(inputs: PfaInputs) -> PfaInputs:
    table = inputs.block_table.clone()
    table[0, 0], table[0, 8] = inputs.block_table[0, 8], inputs.block_table[0, 0]
    return replace(inputs, block_table=table)


def one_token_too_many(inputs: PfaInputs) -> PfaInputs:
    return replace(inputs, kv_act_seqs=inputs.kv_act_seqs + torch.tensor([0, 0, 0, 1]))


@pytest.mark.parametrize(
    "mistake",
    [
        wrong_v_scale,
        wrong_q_scale,
        reciprocal_k_scale,
        block_of_another_request,
        last_block_first,
        one_token_too_many,
    ],
)
def test_a_comparison_catches(ragged: PfaInputs, mistake) -> None:
    expected = flash_attention(ragged, RAGGED, s2_tile=128)
    assert compare(flash_attention(ragged, RAGGED, s2_tile=128), expected).passed
    agreement = compare(flash_attention(mistake(ragged), RAGGED, s2_tile=128), expected)
    assert not agreement.passed
    assert 0 < agreement.mismatched <= agreement.total == expected.numel()


def test_a_comparison_measures_the_differences() -> None:
    expected = torch.tensor([1.0, -2.0, 0.0, 100.0])
    agreement = compare(torch.tensor([1.0, -2.5, 0.00005, 100.5]), expected)
    assert not agreement.passed
    assert agreement.mismatched == 1
    assert agreement.total == 4
    assert agreement.max_abs_diff == 0.5
    assert agreement.max_rel_diff == 0.25


def test_one_unit_in_the_last_place_of_bfloat16_passes() -> None:
    expected = torch.tensor([1.0, 1.5, 3.0, -100.0], dtype=torch.bfloat16)
    steps = [expected]
    for _ in range(4):
        steps.append(torch.nextafter(steps[-1], torch.tensor(torch.inf, dtype=torch.bfloat16)))
    assert compare(steps[1], expected).passed
    assert compare(steps[4], expected).mismatched == 4


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_never_passes(value: float) -> None:
    good, bad = torch.ones(4), torch.tensor([1.0, value, 1.0, 1.0])
    for actual, expected in ((bad, good), (good, bad), (bad, bad)):
        agreement = compare(actual, expected)
        assert not agreement.passed
        assert agreement.mismatched == 1
        assert agreement.max_abs_diff == agreement.max_rel_diff == 0


def test_an_empty_comparison_does_not_pass() -> None:
    agreement = compare(torch.empty(0, 12), torch.empty(0, 12))
    assert not agreement.passed
    assert agreement.total == 0


def test_only_like_shapes_are_compared() -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 3\] and the golden \[3, 2\]"):
        compare(torch.zeros(2, 3), torch.zeros(3, 2))
