"""Decode steps of a trace: the fast simulation against one that takes every step, and what is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune.traffic import Batching, Traffic, simulate, traffic_of
from pfatune.autotune.traffic_files import Request, read
from pfatune.kernel.buckets import bucket
from pfatune.kernel.shapes import MAX_BATCH, MAX_S2, PfaFamily, PfaShape

DATA = Path(__file__).parents[1] / "data"
FAMILY = PfaFamily()

_requests = st.lists(
    st.builds(
        Request,
        arrival=st.integers(0, 400),
        context=st.integers(0, 300) | st.integers(MAX_S2 - 20, MAX_S2 + 2),
        generated=st.integers(0, 40),
    ),
    min_size=1,
    max_size=25,
).map(lambda found: sorted(found, key=lambda request: request.arrival))
_batchings = st.builds(Batching, st.integers(1, 9), st.integers(1, 50))


def step_by_step(requests: list[Request], batching: Batching) -> list[tuple[int, int, int]]:
    """b, s2 and all tokens of each step, taken one at a time as the model is told."""
    queue = [(one, min(one.context + one.generated - 1, MAX_S2)) for one in requests]
    queue = [(one, last) for one, last in queue if last > one.context]
    now, steps = 0, []
    running: list[list[int]] = []  # what each attends to, and to what in its last step
    while queue or running:
        if not running:
            now = max(now, queue[0][0].arrival)
        while queue and queue[0][0].arrival <= now and len(running) < batching.max_batch:
            request, last = queue.pop(0)
            running.append([request.context, last])
        for one in running:
            one[0] += 1
        steps.append((len(running), max(one[0] for one in running), sum(one[0] for one in running)))
        running = [one for one in running if one[0] < one[1]]
        now += batching.step_ns
    return steps


@given(_requests, _batchings)
def test_stretches_are_the_steps_one_by_one(requests: list[Request], batching: Batching) -> None:
    found = [
        (stretch.b, stretch.s2 + at, stretch.tokens + at * stretch.b)
        for stretch in simulate(requests, batching)
        for at in range(stretch.steps)
    ]
    assert found == step_by_step(requests, batching)


@given(_requests.filter(lambda found: any(r.generated > 1 and r.context < MAX_S2 for r in found)), _batchings)
def test_buckets_hold_the_steps_one_by_one(requests: list[Request], batching: Batching) -> None:
    steps = step_by_step(requests, batching)
    found = traffic_of(requests, FAMILY, batching)
    where = [bucket(PfaShape(b, s2)) for b, s2, _ in steps]
    assert {load.shape: load.steps for load in found.loads} == Counter(where)
    assert sum(load.weight for load in found.loads) == pytest.approx(1)
    assert (found.steps, found.tokens) == (len(steps), sum(b for b, _, _ in steps))
    assert found.full_steps == sum(1 for b, _, _ in steps if b == batching.max_batch)
    for load in found.loads:
        inside = [step for step, shape in zip(steps, where, strict=True) if shape == load.shape]
        assert load.mean_b == pytest.approx(sum(b for b, _, _ in inside) / len(inside))
        assert load.mean_s2 == pytest.approx(sum(s2 for _, s2, _ in inside) / len(inside))
        assert load.mean_length == pytest.approx(sum(n for _, _, n in inside) / sum(b for b, _, _ in inside))
    generated = sum(max(0, request.generated - 1) for request in requests)
    assert found.tokens + found.cut_tokens == generated
    assert [load.steps for load in found.loads] == sorted((load.steps for load in found.loads), reverse=True)


@given(_requests, st.integers(1, 8))
def test_a_larger_batch_takes_no_more_steps_for_what_is_there_from_the_start(
    requests: list[Request], max_batch: int
) -> None:
    together = [request._replace(arrival=0) for request in requests]
    few, many = (
        sum(stretch.steps for stretch in simulate(together, Batching(most, 1))) for most in (max_batch, max_batch + 1)
    )
    assert many <= few


def test_requests_join_at_the_start_of_a_step_and_wait_for_a_place() -> None:
    requests = [Request(0, 10, 4), Request(1, 20, 3), Request(2, 30, 2), Request(1000, 5, 2)]
    steps = step_by_step(requests, Batching(2, 10))
    assert steps == [(1, 11, 11), (2, 21, 33), (2, 22, 35), (1, 31, 31), (1, 6, 6)]
    assert [(one.b, one.s2, one.tokens, one.steps) for one in simulate(requests, Batching(2, 10))] == [
        (1, 11, 11, 1),
        (2, 21, 33, 2),
        (1, 31, 31, 1),
        (1, 6, 6, 1),
    ]


def test_a_request_ends_at_the_largest_s2() -> None:
    requests = [Request(0, MAX_S2 - 3, 10), Request(0, MAX_S2 + 5, 10), Request(0, 7, 1)]
    found = traffic_of(requests, FAMILY, Batching())
    assert [(load.shape.b, load.shape.s2, load.steps) for load in found.loads] == [(1, MAX_S2, 3)]
    assert (found.cut_requests, found.cut_tokens, found.unstepped) == (2, 6 + 9, 2)


def azure() -> Traffic:
    return traffic_of(read(DATA / "azure_requests.csv"), FAMILY, Batching())


def test_the_heaviest_buckets_are_as_few_as_cover_the_share() -> None:
    found = azure()
    assert found.heaviest() == found.loads
    assert found.heaviest(top=2) == found.loads[:2]
    for cover in (0.01, 0.5, 0.9, 1.0):
        chosen = found.heaviest(cover=cover)
        assert sum(load.steps for load in chosen) >= cover * found.steps
        assert sum(load.steps for load in chosen[:-1]) < cover * found.steps
    assert found.heaviest(1, 0.99) == found.loads[:1]


def test_the_family_is_the_one_asked_for() -> None:
    family = PfaFamily(nq=16, nkv=4, block_size=256)
    found = traffic_of([Request(0, 1, 3)], family, Batching())
    assert [load.shape for load in found.loads] == [PfaShape(1, 256, nq=16, nkv=4, block_size=256)]


@pytest.mark.parametrize(
    ("max_batch", "step_ns", "message"),
    [(0, 1, "max_batch is 0"), (MAX_BATCH + 1, 1, f"from 1 to {MAX_BATCH}"), (1, 0, "step_ns is 0")],
)
def test_a_model_that_is_none_is_refused(max_batch: int, step_ns: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batching(max_batch, step_ns)


def test_a_trace_that_asks_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no request takes a decode step"):
        traffic_of([Request(0, 5, 1), Request(0, MAX_S2, 9)], FAMILY, Batching())
    with pytest.raises(ValueError, match="s1 is 2"):
        traffic_of([Request(0, 5, 9)], PfaFamily(s1=2), Batching())
