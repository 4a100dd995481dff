"""When each core was busy: the swim lanes of one simulated run, read, stored, exported and drawn.

PyPTO's cost model writes ``_simulate.swim.json``, a list of cores with the tasks each of them
ran. All times are cycles of the cost model. They rank configurations; they are not time on a
device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, get_args

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


# The picture. All lengths are inches, so that text keeps its size whatever the number of cores.

_WIDTH = 13.0
_DPI = 150
_LEFT, _RIGHT, _BOTTOM = 1.55, 0.35, 1.0
_PANEL_HEAD = 0.5
_SECTION_GAP = 0.14
_ROW_MIN, _ROW_MAX = 0.034, 0.3
_ROWS_HEIGHT = 7.0
_DRAWN: tuple[CoreType, ...] = ("AIC", "AIV")
_STOPS: Mapping[CoreType, tuple[str, ...]] = {
    "AIC": ("#12357f", "#2a78c8", "#3fb3cf", "#86d3dc"),
    "AIV": ("#93290a", "#e2661c", "#f2a233", "#f5cb62"),
}
_INK, _FAINT, _IDLE, _SAVED = "#1c2430", "#667080", "#f1f3f6", "#dff2e3"
_SAVED_INK = "#1d7a37"
_LEGEND_MOST = 6


def draw(
    named: Sequence[tuple[str, Swimlane]], path_or_buffer: str | Path | BinaryIO, *, title: str, subtitle: str = ""
) -> None:
    """Draw the swim lanes under one another as a PNG, on one axis of cycles.

    The first is what the others are compared with. Rows are the cube and vector cores that
    ran anything; control tasks are left out. Raises ValueError when there is nothing to draw.
    """
    if not named:
        raise ValueError("draw needs at least one named swim lane")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [_rows(swimlane) for _, swimlane in named]
    row = min(_ROW_MAX, max(_ROW_MIN, _ROWS_HEIGHT / sum(len(lanes) for parts in rows for lanes in parts.values())))
    heights = [
        sum(len(lanes) for lanes in parts.values()) * row + (len(parts) - 1) * _SECTION_GAP + 0.06 for parts in rows
    ]
    top = 0.85 if subtitle else 0.5
    height = top + sum(heights) + _PANEL_HEAD * len(named) + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)

    def place(x: float, y_from_top: float) -> tuple[float, float]:
        return x / _WIDTH, 1 - y_from_top / height

    plain: dict[str, Any] = {"parse_math": False, "color": _INK}
    figure.text(*place(0.3, 0.42), title, fontsize=17, fontweight="bold", **plain)
    figure.text(*place(0.3, 0.74), subtitle, fontsize=11, **{**plain, "color": _FAINT})

    colours = _colours([swimlane for _, swimlane in named])
    longest = max(swimlane.makespan for _, swimlane in named)
    first_name, reference = named[0][0], named[0][1].makespan
    for position, ((name, swimlane), parts, panel) in enumerate(zip(named, rows, heights, strict=True), start=1):
        top += _PANEL_HEAD
        heading = figure.text(*place(_LEFT, top - 0.12), name, fontsize=13, fontweight="bold", **plain)
        figure.text(
            *place(_WIDTH - _RIGHT, top - 0.12), _use(swimlane), fontsize=10.5, ha="right", **{**plain, "color": _FAINT}
        )
        words = f"{swimlane.makespan:,} cycles"
        if position > 1:
            words += f"  ·  {_speed_up(reference, swimlane.makespan)} {first_name}"
        box = heading.get_window_extent()
        figure.text(box.x1 / (_DPI * _WIDTH) + 0.14 / _WIDTH, place(0, top - 0.12)[1], words, fontsize=12, **plain)
        left, bottom = place(_LEFT, top + panel)
        axes = figure.add_axes((left, bottom, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, panel / height))
        _panel(axes, swimlane, parts, colours, row, panel, reference=reference, longest=longest)
        top += panel
        last = position == len(named)
        axes.tick_params(axis="x", labelbottom=last, length=4 if last else 0, labelsize=10, colors=_INK)
        if last:
            axes.set_xlabel("cycles (cost model)", fontsize=11.5, color=_INK, labelpad=5)
    _legend(figure, colours)
    figure.savefig(path_or_buffer, format="png", dpi=_DPI, metadata={"Software": None})


def _rows(swimlane: Swimlane) -> dict[CoreType, list[tuple[int, Lane]]]:
    """Return the cores that ran anything, with their numbers, by type."""
    parts = {
        kind: [(number, lane) for number, lane in enumerate(swimlane.cores(kind)) if lane.tasks] for kind in _DRAWN
    }
    return {kind: lanes for kind, lanes in parts.items() if lanes}


def _use(swimlane: Swimlane) -> str:
    shown = [f"{CORE_NAMES[kind]}s {swimlane.busy(kind):.0%} busy" for kind in _DRAWN if swimlane.cores(kind)]
    return "  ·  ".join(shown)


def _speed_up(reference: int, makespan: int) -> str:
    ratio = reference / makespan
    if reference == makespan:
        return "as fast as"
    digits = 3 if abs(ratio - 1) < 0.02 else 2
    return f"speed-up {ratio:.{digits}f}× over" if ratio > 1 else f"slower: {ratio:.{digits}f}× the speed of"


def _colours(swimlanes: Sequence[Swimlane]) -> dict[tuple[CoreType, int], tuple[float, float, float]]:
    """Return a shade for every subgraph id, one hue a core type, spread over the ids in use."""
    from matplotlib.colors import LinearSegmentedColormap

    shades: dict[tuple[CoreType, int], tuple[float, float, float]] = {}
    for kind in _DRAWN:
        ids = sorted({t.subgraph for s in swimlanes for lane in s.cores(kind) for t in lane.tasks})
        shade = LinearSegmentedColormap.from_list(kind, _STOPS[kind])
        for position, subgraph in enumerate(ids):
            red, green, blue, _ = shade(0.15 + 0.85 * position / max(len(ids) - 1, 3))
            shades[kind, subgraph] = (float(red), float(green), float(blue))
    return shades


def _panel(
    axes: Axes,
    swimlane: Swimlane,
    parts: Mapping[CoreType, Sequence[tuple[int, Lane]]],
    colours: Mapping[tuple[CoreType, int], tuple[float, float, float]],
    row: float,
    panel: float,
    *,
    reference: int,
    longest: int,
) -> None:
    """Draw one swim lane into its axes, whose y runs down in inches."""
    import numpy as np
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    right = longest * 1.004
    axes.set_xlim(0, right)
    axes.set_ylim(panel, 0)
    axes.set_facecolor("white")
    for side in axes.spines.values():
        side.set_visible(False)
    pixels_a_cycle = _DPI * (_WIDTH - _LEFT - _RIGHT) / right

    bars: list[tuple[int, int, float]] = []
    faces: list[tuple[float, float, float]] = []
    ticks: list[tuple[float, str]] = []
    y = 0.03
    for kind, lanes in parts.items():
        section = len(lanes) * row
        axes.fill_between([0, swimlane.makespan], y, y + section, color=_IDLE, linewidth=0, zorder=0)
        words = f"{CORE_NAMES[kind]}s"
        if section > 0.45:
            words = f"{words.replace(' ', chr(10))}\n{len(lanes)} of {len(swimlane.cores(kind))}"
        axes.annotate(
            words,
            (0, y + section / 2),
            xytext=(-0.48 * 72, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=10.5,
            linespacing=1.35,
            color=_INK,
            annotation_clip=False,
        )
        step = next((step for step in (1, 2, 4, 8, 16, 32, 64) if step * row >= 0.17), 128)
        for position, (number, lane) in enumerate(lanes):
            if position % step == 0:
                ticks.append((y + (position + 0.5) * row, str(number)))
            for task in lane.tasks:
                bars.append((task.start - swimlane.start, task.end - swimlane.start, y + position * row))
                faces.append(colours[kind, task.subgraph])
        y += section + _SECTION_GAP

    x0, x1, low = np.array(bars, dtype=float).T
    # A gap of a pixel parts neighbours, but would swallow a task of a few pixels.
    x1 = np.where((x1 - x0) * pixels_a_cycle > 6, x1 - 1 / pixels_a_cycle, x1)
    low, high = low + 0.08 * row, low + 0.92 * row
    corners = np.stack([x0, low, x1, low, x1, high, x0, high], axis=1).reshape(-1, 4, 2)
    axes.add_collection(
        PolyCollection(list(corners), facecolors=faces, linewidths=0, snap=False, zorder=2), autolim=False
    )

    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0, labelsize=8.5, colors=_FAINT, pad=4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 2.5, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="x", color="#d5dae1", linewidth=0.7, zorder=1)
    axes.set_axisbelow(True)
    _finish(axes, swimlane.makespan, reference, right, panel)


def _finish(axes: Axes, makespan: int, reference: int, right: float, panel: float) -> None:
    """Mark where the run ends, and what it saves against the reference."""
    axes.axvline(makespan, color=_INK, linewidth=1.4, zorder=3)
    if makespan == reference:
        return
    axes.axvline(reference, color=_FAINT, linewidth=1.2, linestyle=(0, (4, 3)), zorder=3)
    if makespan > reference:
        return
    axes.axvspan(makespan, reference, color=_SAVED, linewidth=0, zorder=0.5)
    saved = reference - makespan
    if saved / right > 0.13 and panel > 0.5:
        middle = panel / 2
        axes.annotate(
            "",
            (makespan, middle),
            xytext=(reference, middle),
            arrowprops={"arrowstyle": "->", "color": _SAVED_INK, "linewidth": 1.6, "shrinkA": 1, "shrinkB": 2},
            zorder=4,
        )
        axes.text(
            (makespan + reference) / 2,
            middle - 0.1,
            f"−{saved:,} cycles\n(−{saved / reference:.0%})",
            ha="center",
            va="bottom",
            fontsize=11.5,
            color=_SAVED_INK,
            fontweight="bold",
            zorder=4,
        )


def _legend(figure: Figure, colours: Mapping[tuple[CoreType, int], tuple[float, float, float]]) -> None:
    """Name the shades under the axis, one row, cube then vector."""
    from matplotlib.patches import Patch

    handles = []
    for kind in _DRAWN:
        ids = [subgraph for of, subgraph in colours if of == kind]
        if not ids:
            continue
        handles.append(Patch(alpha=0, label=f"{CORE_NAMES[kind].removesuffix(' core')} subgraph"))
        handles += [Patch(color=colours[kind, subgraph], label=str(subgraph)) for subgraph in ids[:_LEGEND_MOST]]
        if len(ids) > _LEGEND_MOST:
            handles.append(Patch(alpha=0, label=f"… {len(ids)} in all"))
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=((_LEFT - 0.32) / _WIDTH, 0.0),
        ncols=len(handles),
        frameon=False,
        fontsize=10,
        labelcolor=_INK,
        handlelength=1.0,
        handleheight=1.0,
        handletextpad=0.4,
        columnspacing=0.9,
    )
