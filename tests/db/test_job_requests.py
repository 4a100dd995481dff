"""What may be asked of the queue, and when two requests are the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_examples import request

from pfatune.db import JobRequest
from pfatune.kernel.shapes import PfaShape, Workload

A, B = (Workload(PfaShape(b=b, s2=1024)) for b in (1, 2))
requests = st.builds(
    JobRequest,
    workloads=st.lists(
        st.one_of(
            st.builds(Workload, st.builds(PfaShape, st.integers(1, 1024), st.integers(1, 131072))),
            st.builds(lambda seq: Workload(PfaShape(2, 1024), seq), st.tuples(*[st.integers(1, 1024)] * 2)),
        ),
        min_size=1,
        max_size=4,
    ).map(tuple),
    trials=st.integers(1, 100_000),
    seconds=st.none() | st.floats(0, 86400, exclude_min=True),
    priority=st.integers(-100, 100),
    soc=st.sampled_from(["950PR", "950DT"]),
    backend=st.sampled_from(["sim", "npu"]),
)


@given(requests)
def test_request_survives_json(one: JobRequest) -> None:
    again = JobRequest.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert again.digest == one.digest


@given(requests, st.integers(-100, 100))
def test_identity_does_not_depend_on_urgency(one: JobRequest, priority: int) -> None:
    assert replace(one, priority=priority).digest == one.digest


@given(requests, requests)
def test_different_requests_have_different_digests(one: JobRequest, other: JobRequest) -> None:
    assert (one.digest == other.digest) == (replace(one, priority=0) == replace(other, priority=0))


def test_repeats_count_once_and_order_counts() -> None:
    assert JobRequest((A, B, A)).workloads == (A, B)
    assert JobRequest((A, B, A)).digest == JobRequest((A, B)).digest
    assert JobRequest((A, B)).digest != JobRequest((B, A)).digest
    assert JobRequest((A,), seconds=60).digest == JobRequest((A,), seconds=60.0).digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ()}, "workloads are 0: give from 1 to 1000"),
        ({"workloads": tuple(Workload(PfaShape(1, s2)) for s2 in range(1, 1002))}, "workloads are 1001"),
        ({"trials": None}, "trials and seconds are both None: give one of them"),
        ({"trials": 0}, "trials is 0: give a whole number from 1 to 100000, or None"),
        ({"trials": 100_001}, "trials is 100001"),
        ({"trials": True}, "trials is True"),
        ({"trials": 1.5}, "trials is 1.5"),
        ({"seconds": 0}, "seconds is 0: give a number above 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": float("inf")}, "seconds is inf"),
        ({"seconds": "60"}, "seconds is '60'"),
        ({"priority": 101}, "priority is 101: give a whole number from -100 to 100"),
        ({"priority": -101}, "priority is -101"),
        ({"priority": "1"}, "priority is '1'"),
        ({"soc": "910B"}, "SoC '910B' is unknown: use one of"),
        ({"backend": "gpu"}, "backend is 'gpu': use one of sim, npu"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(request(), **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "workloads is missing: give a list"),
        ({"workloads": None}, "workloads cannot be read"),
        ({"workloads": 1}, "workloads cannot be read"),
        ({"workloads": [1]}, "workloads cannot be read"),
        ({"workloads": ["x"]}, "workloads cannot be read"),
        ({"workloads": [{}]}, "workloads cannot be read"),
        ({"workloads": [{"shape": None}]}, "workloads cannot be read"),
        ({"workloads": [{"shape": {"b": 1}}]}, "s2 is missing"),
        ({"workloads": [{"shape": {"b": 1, "s2": 1024}, "actual_seq": 5}]}, "workloads cannot be read"),
        ({"workloads": [{"shape": {"b": 1, "s2": 1024}}], "urgent": True}, "'urgent' is no field of a job request"),
        ({"workloads": [{"shape": {"b": 1, "s2": 1024}}], "soc": ["950PR"]}, "give a text"),
        ({"workloads": [{"shape": {"b": 1, "s2": 1024}}], "backend": {}}, "give a text"),
    ],
)
def test_json_that_is_no_request_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobRequest.from_json(data)
