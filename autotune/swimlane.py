"""When each core was busy: the swim lanes of one simulated run, read, stored and exported.

PyPTO's cost model writes ``_simulate.swim.json``, a list of cores with the tasks each of them
ran. All times are cycles of the cost model. They rank configurations; they are not time on a
device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn, get_args

#: AIC is a cube core, AIV a vector core, HUB runs the control-only dummy tasks.
CoreType = Literal["AIC", "AIV", "HUB"]
CORE_TYPES: tuple[CoreType, ...] = get_args(CoreType)
CORE_NAMES: Mapping[CoreType, str] = {"AIC": "cube core", "AIV": "vector core", "HUB": "control core"}

#: The most tasks that are read or stored of one run. A long context on one chip makes some 10,000.
MAX_TASKS = 500_000
#: Cycles and ids stay below this, so that every reader of JSON sees them exactly.
MAX_INT = 2**53

CYCLES_NOTE = "1 us in this trace is 1 cycle of the PyPTO cost model; it is not time on a device"

_FORMAT = 1
_ROOT_SHIFT = 20
_TASK_MASK = (1 << _ROOT_SHIFT) - 1


class SwimlaneError(ValueError):
    """A swim lane that cannot be read, or that no run can have left behind."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task on one core, from ``start`` to ``end`` in cycles.

    ``root`` is the root function instance, a pass through the kernel's loop body, and
    ``index`` the task within it.
    """

    start: int
    end: int
    subgraph: int
    root: int
    index: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One core and its tasks in the order they ran. ``index`` is PyPTO's block index."""

    core_type: CoreType
    index: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Swimlane:
    """All cores of one run, idle ones too: cube cores first, then vector, then control."""

    lanes: tuple[Lane, ...]

    @cached_property
    def start(self) -> int:
        """Cycle at which the first task of any core starts."""
        return min(task.start for lane in self.lanes for task in lane.tasks)

    @cached_property
    def makespan(self) -> int:
        """Cycles from the start of the first task to the end of the last, over all cores."""
        return max(task.end for lane in self.lanes for task in lane.tasks) - self.start

    @property
    def tasks(self) -> dict[CoreType, int]:
        """Number of tasks by core type, control tasks included."""
        return {kind: sum(len(lane.tasks) for lane in self.lanes if lane.core_type == kind) for kind in CORE_TYPES}

    def cores(self, core_type: CoreType) -> tuple[Lane, ...]:
        """Return the lanes of one core type, whose positions are the core numbers shown to people."""
        return tuple(lane for lane in self.lanes if lane.core_type == core_type)

    def busy(self, core_type: CoreType) -> float:
        """Return the share, 0 to 1, of makespan × cores of that type that was spent in tasks.

        A core that ran nothing counts as idle. A type the run has no core of is 0.
        """
        cores = self.cores(core_type)
        spent = sum(task.end - task.start for lane in cores for task in lane.tasks)
        return spent / (self.makespan * len(cores)) if spent else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the compact plain form that ``from_json`` reads back without loss.

        Each lane is ``[core type, index, numbers]`` with five numbers a task: cycles since the
        end of the task before it on that core, cycles it took, subgraph, root, index. It is a
        seventh of PyPTO's file.

        Raises SwimlaneError when there are more than ``MAX_TASKS`` tasks.
        """
        _check_count(sum(len(lane.tasks) for lane in self.lanes))
        lanes = []
        for lane in self.lanes:
            numbers: list[int] = []
            before = 0
            for task in lane.tasks:
                numbers += (task.start - before, task.end - task.start, task.subgraph, task.root, task.index)
                before = task.end
            lanes.append([lane.core_type, lane.index, numbers])
        return {"format": _FORMAT, "unit": "cycles", "lanes": lanes}

    @classmethod
    def from_json(cls, document: object) -> Swimlane:
        """Read what ``to_json`` wrote.

        Raises SwimlaneError when it is something else, or not a run that can have been.
        """
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise SwimlaneError(f"stored swim lane is not of format {_FORMAT}")
        stored = document.get("lanes")
        if not isinstance(stored, list):
            raise SwimlaneError("stored swim lane has no list of lanes")
        lanes: list[Lane] = []
        kept = 0
        for entry in stored:
            if not isinstance(entry, list) or len(entry) != 3:
                raise SwimlaneError("stored lane is not [core type, index, numbers]")
            core_type, index = _core_type(entry[0]), _integer(entry[1], "lane index")
            if not isinstance(entry[2], list) or len(entry[2]) % 5:
                raise SwimlaneError(f"{core_type} {index}: stored numbers do not come in fives")
            kept += len(entry[2]) // 5
            _check_count(kept)
            numbers = [_integer(number, f"{core_type} {index}: stored number") for number in entry[2]]
            tasks = []
            before = 0
            for at in range(0, len(numbers), 5):
                start = before + numbers[at]
                before = start + numbers[at + 1]
                tasks.append(Task(start, before, *numbers[at + 2 : at + 5]))
            lanes.append(Lane(core_type, index, tuple(tasks)))
        return _checked(lanes)


def parse(text: str | bytes) -> Swimlane:
    """Read the text of ``_simulate.swim.json``.

    Raises SwimlaneError, in one line that names the fault, when the text is not such a file,
    when no cube or vector core ran a task, or when the times cannot be true: negative,
    reversed, two tasks on one core at once, or a run of 0 cycles.
    """
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except SwimlaneError:
        raise
    except (ValueError, RecursionError) as error:
        raise SwimlaneError(f"swim lane is not JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(document, list):
        raise SwimlaneError(f"swim lane is not a list of cores but {_shown(document)}")
    return _checked([_lane(entry) for entry in document])


def to_perfetto(named: Mapping[str, Swimlane], note: str = CYCLES_NOTE) -> dict[str, Any]:
    """Return a Chrome trace, which Perfetto opens: a process a swim lane, a thread a core.

    Every swim lane starts at 0, so that runs can be compared by eye. ``note`` says what the
    unit is, because the format knows only microseconds. The same input gives the same trace.
    """
    events: list[dict[str, Any]] = []
    other = {"note": note}
    for pid, (name, swimlane) in enumerate(named.items(), start=1):
        other[f"makespan of {name}"] = f"{swimlane.makespan} cycles"
        events.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}})
        events.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}})
        cores = ((kind, number, lane) for kind in CORE_TYPES for number, lane in enumerate(swimlane.cores(kind)))
        for tid, (kind, number, lane) in enumerate(cores, start=1):
            thread = {"ph": "M", "pid": pid, "tid": tid}
            events.append({**thread, "name": "thread_name", "args": {"name": f"{CORE_NAMES[kind]} {number}"}})
            events.append({**thread, "name": "thread_sort_index", "args": {"sort_index": tid}})
            unit = CORE_NAMES[kind].removesuffix(" core")
            events.extend(
                {
                    "ph": "X",
                    "pid": pid,
                    "tid": tid,
                    "ts": task.start - swimlane.start,
                    "dur": task.end - task.start,
                    "name": f"{unit} subgraph {task.subgraph}",
                    "cat": unit,
                    "args": {"root": task.root, "task": task.index},
                }
                for task in lane.tasks
            )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _refuse_constant(name: str) -> NoReturn:
    raise SwimlaneError(f"swim lane holds {name}, which is not a number of cycles")


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _integer(value: object, what: str) -> int:
    if type(value) is not int:
        raise SwimlaneError(f"{what} is not an integer: {_shown(value)}")
    if abs(value) >= MAX_INT:
        raise SwimlaneError(f"{what} is beyond 2**53")
    return value


def _core_type(value: object) -> CoreType:
    for kind in CORE_TYPES:
        if value == kind:
            return kind
    raise SwimlaneError(f"core type is not one of {', '.join(CORE_TYPES)}: {_shown(value)}")


def _lane(entry: object) -> Lane:
    if not isinstance(entry, dict):
        raise SwimlaneError(f"core is not an object: {_shown(entry)}")
    core_type = _core_type(entry.get("coreType"))
    index = _integer(entry.get("blockIdx"), f"blockIdx of a core {core_type}")
    tasks = entry.get("tasks")
    if not isinstance(tasks, list):
        raise SwimlaneError(f"{core_type} {index}: tasks is not a list: {_shown(tasks)}")
    return Lane(core_type, index, tuple(_task(task, f"{core_type} {index}") for task in tasks))


def _task(entry: object, where: str) -> Task:
    if not isinstance(entry, dict):
        raise SwimlaneError(f"{where}: task is not an object: {_shown(entry)}")
    start, end, subgraph, task_id = (
        _integer(entry.get(key), f"{where}: {key}") for key in ("execStart", "execEnd", "subGraphId", "taskId")
    )
    if -(2**31) <= task_id < 0:  # PyPTO prints a 32-bit id as signed: from root 2048 on it is negative
        task_id += 2**32
    return Task(start, end, subgraph, task_id >> _ROOT_SHIFT, task_id & _TASK_MASK)


def _check_count(count: int) -> None:
    if count > MAX_TASKS:
        raise SwimlaneError(f"swim lane has {count} tasks, more than the {MAX_TASKS} that are kept")


def _checked(lanes: Sequence[Lane]) -> Swimlane:
    """Return the lanes in order, once they are known to be a run that can have been."""
    _check_count(sum(len(lane.tasks) for lane in lanes))
    if len({(lane.core_type, lane.index) for lane in lanes}) < len(lanes):
        raise SwimlaneError("swim lane lists a core twice")
    if not any(lane.tasks for lane in lanes if lane.core_type != "HUB"):
        raise SwimlaneError("swim lane has no tasks on any cube or vector core")
    ordered = []
    for lane in sorted(lanes, key=lambda lane: (CORE_TYPES.index(lane.core_type), lane.index)):
        tasks = tuple(sorted(lane.tasks, key=lambda task: (task.start, task.end, task.root, task.index)))
        where = f"{lane.core_type} {lane.index}"
        before = 0
        for task in tasks:
            if task.start < 0:
                raise SwimlaneError(f"{where}: task starts at a negative cycle: {task.start}")
            if task.end < task.start:
                raise SwimlaneError(f"{where}: task ends at cycle {task.end}, before its start at {task.start}")
            if task.end >= MAX_INT:
                raise SwimlaneError(f"{where}: task ends beyond 2**53 cycles")
            if task.root < 0 or task.index < 0:
                raise SwimlaneError(f"{where}: task has a negative id: root {task.root}, index {task.index}")
            if task.start < before:
                raise SwimlaneError(f"{where}: two tasks at once at cycle {task.start}")
            before = task.end
        ordered.append(Lane(lane.core_type, lane.index, tasks))
    swimlane = Swimlane(tuple(ordered))
    if swimlane.makespan == 0:
        raise SwimlaneError("swim lane lasts 0 cycles")
    return swimlane
