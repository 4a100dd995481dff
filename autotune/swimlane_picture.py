"""Swim lanes as a picture: configurations below each other on one axis of cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .swimlane import CORE_NAMES, CoreType, Lane, Swimlane

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All lengths are inches, so that text keeps its size whatever the number of cores.

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
