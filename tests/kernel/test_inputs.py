"""The tensors the kernel is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pfatune.kernel.inputs import PfaInputs, empty_inputs, make_inputs
from pfatune.kernel.shapes import PfaShape, Workload

pytestmark = pytest.mark.torch

RAGGED = Workload(PfaShape(b=3, s1=2, s2=500, nq=12, nkv=2, qd=64, block_size=64), (500, 2, 129))


def described(inputs: PfaInputs) -> list[tuple[list[int], torch.dtype]]:
    return [(list(tensor.shape), tensor.dtype) for tensor in inputs.tensors()]


def as_bytes(inputs: PfaInputs) -> list[bytes]:
    return [tensor.view(torch.uint8).numpy().tobytes() for tensor in inputs.tensors()]


def test_tensors_come_in_the_argument_order_of_the_kernel() -> None:
    f8, f32 = torch.float8_e4m3fn, torch.float32
    expected = [
        ([6, 12, 64], f8),
        ([6, 12, 1], f32),
        ([24, 64, 2, 64], f8),
        ([24, 64, 2, 1], f32),
        ([24, 64, 2, 64], f8),
        ([3, 2, 64], f32),
        ([3, 8], torch.int32),
        ([3], torch.int32),
        ([6, 12, 64], torch.bfloat16),
    ]
    inputs = make_inputs(RAGGED, seed=0)
    assert described(inputs) == expected
    assert described(empty_inputs(RAGGED)) == expected
    assert all(tensor.is_contiguous() for tensor in inputs.tensors())
    assert inputs.tensors()[0] is inputs.q
    assert inputs.tensors()[-1] is inputs.atten_out


def test_the_seed_decides_everything_and_disturbs_nothing() -> None:
    state = torch.random.get_rng_state()
    first = as_bytes(make_inputs(RAGGED, seed=7))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert as_bytes(make_inputs(RAGGED, seed=7)) == first
    assert as_bytes(make_inputs(RAGGED, seed=8)) != first


@pytest.mark.parametrize("make", [lambda: make_inputs(RAGGED, seed=0), lambda: empty_inputs(RAGGED)])
def test_the_table_holds_the_pages_needed_and_no_others(make) -> None:
    inputs = make()
    held = inputs.block_table >= 0
    assert held.sum(1).tolist() == [8, 1, 3]
    assert bool((held.int().diff(dim=1) <= 0).all()), "a row holds its pages first"
    assert set(inputs.block_table[~held].tolist()) == {-1}
    pages = inputs.block_table[held].tolist()
    assert len(set(pages)) == len(pages)
    assert max(pages) < inputs.k.shape[0]
    assert pages != sorted(pages)
    assert inputs.kv_act_seqs.tolist() == [500, 2, 129]


@pytest.mark.parametrize("quant_max", [448.0, 128.0])
def test_real_values_fill_the_range_of_quantisation(quant_max: float) -> None:
    inputs = make_inputs(RAGGED, seed=0, quant_max=quant_max)
    for tensor in (inputs.q, inputs.k, inputs.v):
        assert float(tensor.float().abs().max()) == quant_max
    # Per token and head for Q and K; per request, head and channel for V.
    assert bool((inputs.q.float().abs().amax(-1) == quant_max).all())
    assert bool((inputs.k.float().abs().amax(-1) == quant_max).all())
    for request, length in enumerate(RAGGED.lengths):
        pages = inputs.block_table[request][inputs.block_table[request] >= 0].long()
        tokens = inputs.v[pages].float().flatten(0, 1)[:length]
        assert bool((tokens.abs().amax(0) == quant_max).all())
    for scale in (inputs.q_scale, inputs.k_scale, inputs.v_scale):
        assert bool((scale > 0).all())
        assert bool(scale.isfinite().all())


def test_scales_give_back_unit_normal_values() -> None:
    inputs = make_inputs(Workload(PfaShape(b=1, s2=1024)), seed=0)
    for values in (inputs.q.float() * inputs.q_scale, inputs.k.float() * inputs.k_scale):
        assert float(values.std()) == pytest.approx(1, abs=0.05)
    assert float((inputs.v.float() * inputs.v_scale[0]).std()) == pytest.approx(1, abs=0.05)


def test_positions_without_a_token_hold_loud_finite_garbage() -> None:
    inputs = make_inputs(RAGGED, seed=0)
    keys, values = inputs.k.float() * inputs.k_scale, inputs.v.float()
    assert bool(keys.isfinite().all())
    assert bool(values.isfinite().all())
    assert bool((values != 0).flatten(2).any(-1).all())
    last_page = inputs.block_table[2, 2].long()  # 129 tokens: one real, then garbage
    assert float(keys[last_page, 1:].std()) > 4 * float(keys[last_page, :1].std())
    unused = torch.ones(len(keys), dtype=torch.bool)
    unused[inputs.block_table[inputs.block_table >= 0].long()] = False
    assert int(unused.sum()) == 12
    assert float(keys[unused].std()) > 4


@pytest.mark.parametrize("quant_max", [0.0, -1.0, 449.0, float("nan")])
def test_a_maximum_that_e4m3_cannot_hold_is_refused(quant_max: float) -> None:
    with pytest.raises(ValueError, match="quant_max is"):
        make_inputs(RAGGED, seed=0, quant_max=quant_max)


def test_empty_inputs_of_a_long_cache_take_no_memory() -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("resident memory is read from /proc")
    before = int(statm.read_text().split()[1])
    inputs = empty_inputs(Workload(PfaShape(b=16, s2=131072)))
    grown_bytes = (int(statm.read_text().split()[1]) - before) * 4096
    assert inputs.k.nbytes == 1 << 28
    assert grown_bytes < inputs.k.nbytes // 16
