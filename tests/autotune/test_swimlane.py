"""Swim lanes: what is read, what is refused, and that every form tells the same story."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pfatune.autotune.swimlane import (
    CORE_TYPES,
    CYCLES_NOTE,
    Lane,
    Swimlane,
    SwimlaneError,
    Task,
    parse,
    to_perfetto,
)
from pfatune.autotune.swimlane_picture import draw


def task(start: Any, end: Any, *, subgraph: Any = 0, task_id: Any = 0) -> dict[str, Any]:
    return {
        "completeSeq": 0,
        "execEnd": end,
        "execStart": start,
        "seqNo": 0,
        "subGraphId": subgraph,
        "taskId": task_id,
    }


def core(kind: Any, index: Any, *tasks: Any) -> dict[str, Any]:
    return {"blockIdx": index, "coreType": kind, "tasks": list(tasks)}


#: Two cube cores, three vector cores of which the last is idle, and a control core, as PyPTO writes them.
SAMPLE = [
    core("AIC", 0, task(5867, 64179), task(94639, 152951, subgraph=3, task_id=(28 << 20) | 11)),
    core("AIC", 1, task(6067, 64379, task_id=1 << 20)),
    core("AIV", 2, task(64400, 80000, subgraph=1, task_id=1)),
    core("AIV", 3, task(153000, 160666, subgraph=2, task_id=(28 << 20) | 12), task(70000, 80000, subgraph=1)),
    core("AIV", 4),
    core("HUB", 9, task(5666, 5667)),
]


def sample() -> Swimlane:
    return parse(json.dumps(SAMPLE, indent=1))


@st.composite
def documents(draw_: st.DrawFn) -> list[dict[str, Any]]:
    """Cores whose tasks follow one another, in any order in the file."""
    cores = []
    for index in range(draw_(st.integers(1, 6))):
        kind = "AIC" if index == 0 else draw_(st.sampled_from(CORE_TYPES))
        now = draw_(st.integers(0, 10**9))
        tasks = []
        for _ in range(draw_(st.integers(1 if index == 0 else 0, 6))):
            start = now + draw_(st.integers(0, 50))
            now = start + draw_(st.integers(1, 10**6))
            ids = {"subgraph": draw_(st.integers(-1, 20)), "task_id": draw_(st.integers(0, 2**31 - 1))}
            tasks.append(task(start, now, **ids))
        cores.append(core(kind, index, *draw_(st.permutations(tasks))))
    return list(draw_(st.permutations(cores)))


def test_sample_is_read_exactly() -> None:
    swimlane = sample()
    assert swimlane.makespan == 160666 - 5666
    assert swimlane.tasks == {"AIC": 3, "AIV": 3, "HUB": 1}
    assert [(lane.core_type, lane.index) for lane in swimlane.lanes] == [
        ("AIC", 0),
        ("AIC", 1),
        ("AIV", 2),
        ("AIV", 3),
        ("AIV", 4),
        ("HUB", 9),
    ]
    assert swimlane.lanes[0].tasks[1] == Task(start=94639, end=152951, subgraph=3, root=28, index=11)
    assert [task.start for task in swimlane.lanes[3].tasks] == [70000, 153000]


def test_bytes_and_text_read_alike() -> None:
    assert parse(json.dumps(SAMPLE).encode()) == sample()


def test_busy_counts_idle_cores() -> None:
    swimlane = sample()
    assert swimlane.busy("AIC") == pytest.approx(3 * 58312 / (2 * 155000))
    assert swimlane.busy("AIV") == pytest.approx((15600 + 10000 + 7666) / (3 * 155000))
    no_hub = parse(json.dumps(SAMPLE[:-1]))
    assert no_hub.busy("HUB") == 0.0


def test_a_task_id_past_31_bits_is_printed_signed() -> None:
    document = [core("AIC", 0, task(0, 5, task_id=((2048 << 20) | 7) - 2**32))]
    assert parse(json.dumps(document)).lanes[0].tasks[0] == Task(0, 5, 0, 2048, 7)


@settings(deadline=None)
@given(documents())
def test_makespan_is_the_brute_force_one(document: list[dict[str, Any]]) -> None:
    swimlane = parse(json.dumps(document))
    tasks = [task for core in document for task in core["tasks"]]
    expected = max(task["execEnd"] for task in tasks) - min(task["execStart"] for task in tasks)
    assert swimlane.makespan == expected
    assert type(swimlane.makespan) is int
    assert sum(swimlane.tasks.values()) == len(tasks)
    assert all(0 <= swimlane.busy(kind) <= 1 for kind in CORE_TYPES)


@settings(deadline=None)
@given(documents(), st.integers(0, 10**12))
def test_shifting_all_times_changes_no_figure(document: list[dict[str, Any]], shift: int) -> None:
    before = parse(json.dumps(document))
    for entry in document:
        for one in entry["tasks"]:
            one["execStart"] += shift
            one["execEnd"] += shift
    after = parse(json.dumps(document))
    assert after.makespan == before.makespan
    assert [after.busy(kind) for kind in CORE_TYPES] == [before.busy(kind) for kind in CORE_TYPES]
    assert to_perfetto({"run": after}) == to_perfetto({"run": before})


@settings(deadline=None)
@given(documents())
def test_stored_form_reads_back_identical(document: list[dict[str, Any]]) -> None:
    swimlane = parse(json.dumps(document))
    stored = json.dumps(swimlane.to_json())
    assert Swimlane.from_json(json.loads(stored)) == swimlane


def test_stored_form_is_much_smaller() -> None:
    assert len(json.dumps(sample().to_json())) < len(json.dumps(SAMPLE, indent=1)) / 4


def test_stored_form_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    swimlane = sample()
    stored = swimlane.to_json()
    monkeypatch.setattr("pfatune.autotune.swimlane.MAX_TASKS", 6)
    with pytest.raises(SwimlaneError, match="7 tasks, more than the 6"):
        swimlane.to_json()
    with pytest.raises(SwimlaneError, match="7 tasks, more than the 6"):
        Swimlane.from_json(stored)
    with pytest.raises(SwimlaneError, match="7 tasks, more than the 6"):
        parse(json.dumps(SAMPLE))


@settings(deadline=None)
@given(documents(), documents())
def test_perfetto_threads_hold_every_task_once_without_overlap(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    named = {"default": parse(json.dumps(first)), "tuned": parse(json.dumps(second))}
    trace = to_perfetto(named)
    assert trace == to_perfetto(dict(named))
    json.dumps(trace, allow_nan=False)
    by_thread = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for pid, swimlane in enumerate(named.values(), start=1):
        spans = [span for (of, _), spans in by_thread.items() if of == pid for span in spans]
        assert len(spans) == sum(swimlane.tasks.values())
        assert min(start for start, _ in spans) == 0
        assert max(end for _, end in spans) == swimlane.makespan
    for spans in by_thread.values():
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_perfetto_names_processes_cores_and_the_unit() -> None:
    trace = to_perfetto({"default": sample(), "tuned": sample()})
    meta = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert [event["args"]["name"] for event in meta if event["name"] == "process_name"] == ["default", "tuned"]
    threads = [event["args"]["name"] for event in meta if event["name"] == "thread_name" and event["pid"] == 1]
    assert threads == [
        "cube core 0",
        "cube core 1",
        "vector core 0",
        "vector core 1",
        "vector core 2",
        "control core 0",
    ]
    assert trace["otherData"]["note"] == CYCLES_NOTE
    assert trace["otherData"]["makespan of default"] == "155000 cycles"


REFUSED = {
    "empty": ("", "not JSON"),
    "truncated": (json.dumps(SAMPLE)[:-40], "not JSON"),
    "not UTF-8": (b"\xff\xfe\xfa[", "not JSON"),
    "nested beyond reason": ("[" * 200_000, "not JSON"),
    "a number of 5000 digits": (f"[{'9' * 5000}]", "not JSON"),
    "null": ("null", "not a list of cores but None"),
    "an object": ("{}", "not a list of cores but an object"),
    "no cores": ("[]", "no tasks"),
    "only idle cores": (json.dumps([core("AIC", 0), core("HUB", 9)]), "no tasks"),
    "only control tasks": (json.dumps([core("AIC", 0), core("HUB", 9, task(0, 1))]), "no tasks"),
    "a core that is a list": ("[[1]]", "core is not an object: a list"),
    "an unknown core": (json.dumps([core("GPU", 0, task(0, 1))]), "one of AIC, AIV, HUB: 'GPU'"),
    "a core type that is a list": (json.dumps([core([], 0, task(0, 1))]), "one of AIC, AIV, HUB: a list"),
    "a core without index": ('[{"coreType": "AIC", "tasks": []}]', "blockIdx of a core AIC is not an integer: None"),
    "a core without tasks": ('[{"coreType": "AIC", "blockIdx": 0}]', "tasks is not a list"),
    "a core listed twice": (json.dumps([core("AIC", 0, task(0, 1))] * 2), "lists a core twice"),
    "a task that is a number": (json.dumps([core("AIC", 0, 7)]), "AIC 0: task is not an object: 7"),
    "a text time": (json.dumps([core("AIV", 3, task("0", 1))]), "AIV 3: execStart is not an integer: '0'"),
    "a fractional time": (json.dumps([core("AIC", 0, task(0, 1.5))]), "execEnd is not an integer: 1.5"),
    "a true time": (json.dumps([core("AIC", 0, task(True, 2))]), "execStart is not an integer: True"),
    "a missing subgraph": (json.dumps([core("AIC", 0, task(0, 1, subgraph=None))]), "subGraphId is not an integer"),
    "NaN": (json.dumps([core("AIC", 0, task(float("nan"), 2))]), "holds NaN"),
    "infinity": (json.dumps([core("AIC", 0, task(0, float("inf")))]), "holds Infinity"),
    "an inexact time": (json.dumps([core("AIC", 0, task(0, 2**53))]), "beyond 2[*][*]53"),
    "a negative time": (json.dumps([core("AIC", 0, task(-1, 5))]), "AIC 0: task starts at a negative cycle: -1"),
    "a reversed task": (json.dumps([core("AIC", 0, task(9, 5))]), "ends at cycle 5, before its start at 9"),
    "two tasks at once": (json.dumps([core("AIC", 0, task(0, 9), task(8, 12))]), "two tasks at once at cycle 8"),
    "a negative id": (json.dumps([core("AIC", 0, task(0, 9, task_id=-(2**40)))]), "negative id"),
    "a run of no length": (json.dumps([core("AIC", 0, task(7, 7))]), "lasts 0 cycles"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_garbage_is_refused_in_one_line(text: str | bytes, message: str) -> None:
    with pytest.raises(SwimlaneError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_text_brings_another_error(text: str | bytes) -> None:
    with pytest.raises(SwimlaneError):
        parse(text)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"format": 2, "lanes": []},
        {"format": 1},
        {"format": 1, "lanes": []},
        {"format": 1, "lanes": [["AIC", 0]]},
        {"format": 1, "lanes": [["GPU", 0, [0, 1, 0, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [0, 1, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [0, 1.5, 0, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [0, -1, 0, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [-1, 3, 0, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [0, 3, 0, 0, 0, -1, 3, 0, 0, 0]]]},
        {"format": 1, "lanes": [["AIC", 0, [2**53 - 1, 2**53 - 1, 0, 0, 0]]]},
    ],
)
def test_garbage_in_the_store_is_refused(document: object) -> None:
    with pytest.raises(SwimlaneError):
        Swimlane.from_json(document)


def many(tasks_a_core: int, cycles: int) -> Swimlane:
    """28 cube and 56 vector cores that are always busy."""
    return Swimlane(
        tuple(
            Lane(
                "AIC" if index < 28 else "AIV",
                index,
                tuple(Task(n * cycles, (n + 1) * cycles, n % 5, n, 0) for n in range(tasks_a_core)),
            )
            for index in range(84)
        )
    )


def pixels(png: bytes) -> NDArray[Any]:
    return np.asarray(matplotlib.image.imread(io.BytesIO(png), format="png"))[..., :3]


def near(image: NDArray[Any], colour: tuple[int, int, int]) -> NDArray[Any]:
    same: NDArray[Any] = np.all(np.abs(image - np.array(colour) / 255) < 0.02, axis=-1)
    return same


@pytest.mark.slow
def test_picture_shows_both_runs_on_one_axis() -> None:
    out = io.BytesIO()
    draw([("default", many(10, 1000)), ("tuned", many(10, 400))], out, title="PFA", subtitle="b=16 s2=8192")
    image = pixels(out.getvalue())
    height, width, _ = image.shape
    assert width == 1950
    assert 1000 < height < 2500
    assert 20_000 < len(out.getvalue()) < 2_000_000
    blue, orange = image[..., 2] > image[..., 0] + 0.3, image[..., 0] > image[..., 2] + 0.3
    upper, lower = slice(0, height // 2), slice(height // 2, None)
    for hue in (blue, orange):
        assert 0.35 < hue[lower].sum() / hue[upper].sum() < 0.45
    saved = near(image, (0xDF, 0xF2, 0xE3))
    assert saved[upper].sum() == 0
    assert saved[lower].sum() > 100_000


@pytest.mark.slow
def test_picture_of_a_slower_run_claims_no_saving() -> None:
    out = io.BytesIO()
    draw([("default", many(4, 400)), ("tuned", many(4, 1000))], out, title="PFA", subtitle="")
    assert near(pixels(out.getvalue()), (0xDF, 0xF2, 0xE3)).sum() == 0


@pytest.mark.slow
def test_picture_is_the_same_each_time_and_leaves_no_state(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    named = [("default", sample()), ("the same", sample()), ("one core", parse(json.dumps(SAMPLE[1:2])))]
    draw(named, tmp_path / "a.png", title="$x^2$ is not mathematics", subtitle="nor is a lone $")
    draw(named, str(tmp_path / "b.png"), title="$x^2$ is not mathematics", subtitle="nor is a lone $")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_ten_thousand_tasks_are_drawn() -> None:
    out = io.BytesIO()
    draw([("default", many(120, 1000)), ("tuned", many(120, 900))], out, title="PFA", subtitle="20,160 tasks")
    assert out.getvalue().startswith(b"\x89PNG")


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw([], io.BytesIO(), title="PFA", subtitle="")
