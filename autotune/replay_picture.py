"""Replays as a picture: percent of the optimum against trials and against seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .replay_report import Replays, Row, after, after_seconds, second_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE, _BAND, _INK = "#12357f", "#9cc4e6", "#1c2430"
_POINTS = 120


def draw(found: Sequence[Replays], path_or_buffer: str | Path | BinaryIO, *, title: str) -> None:
    """Draw mean, median and lowest over all searches as a PNG; of several spaces, their means.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=_INK, x=0.01, ha="left", parse_math=False)
    by_trials, by_seconds = figure.subplots(1, 2, sharey=True)
    last = max((len(steps) for one in found for steps in one.searches), default=0)
    trials = [after(found, at) for at in range(1, last + 1)]
    _panel(by_trials, trials, "trials")
    marks = second_marks(found)
    if marks:
        ratio = (marks[-1] / marks[0]) ** (1 / _POINTS)
        clocks = [marks[0] * ratio**step for step in range(_POINTS + 1)]
        _panel(by_seconds, [after_seconds(found, at) for at in clocks], "seconds")
        by_seconds.set_xscale("log")
    by_trials.set_ylabel("per cent of the optimum", color=_INK)
    by_trials.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=_INK)
    figure.savefig(path_or_buffer, format="png")


def _panel(axes: Axes, rows: Sequence[Row], label: str) -> None:
    at = [row.at for row in rows]
    axes.fill_between(at, [100 * row.lowest for row in rows], [100 * row.mean for row in rows], color=_BAND, alpha=0.4)
    axes.plot(at, [100 * row.lowest for row in rows], color=_BAND, linewidth=1, label="lowest")
    axes.plot(at, [100 * row.median for row in rows], color=_LINE, linewidth=1.2, linestyle=":", label="median")
    axes.plot(at, [100 * row.mean for row in rows], color=_LINE, linewidth=2, label="mean")
    axes.set_xlabel(label, color=_INK)
    axes.set_ylim(0, 101)
    axes.grid(axis="y", color="#e6e9ee", linewidth=0.7)
    axes.tick_params(labelsize=9, colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
