"""A traffic as a picture: the share of decode steps of every bucket, b by s2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..kernel.buckets import bucket_sizes
from .traffic import Traffic

# All lengths are inches, so that text keeps its size whatever the number of buckets.
_CELL_WIDTH, _CELL_HEIGHT = 0.78, 0.52
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.0, 1.35, 1.05, 0.85
_MIN_WIDTH = 7.2
_DPI = 150
_INK, _FAINT, _EMPTY = "#1c2430", "#667080", "#f1f3f6"
_COLOURS = ("#e3eef9", "#9cc4e6", "#3f8fc9", "#12357f")
_LIGHT_TEXT_FROM = 0.55  # of the largest share


def draw(traffic: Traffic, path_or_buffer: str | Path | BinaryIO, *, title: str) -> None:
    """Draw a traffic as a PNG: each cell is a bucket, its number the per cent of all decode steps.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    shares = {(load.shape.b, load.shape.s2): load.weight for load in traffic.loads}
    batches = _batches([b for b, _ in shares])
    lengths = _lengths([s2 for _, s2 in shares], traffic.family.block_size)
    most = max(shares.values())
    grid_width, grid_height = len(lengths) * _CELL_WIDTH, len(batches) * _CELL_HEIGHT
    width, height = max(_MIN_WIDTH, _LEFT + grid_width + _RIGHT), _TOP + grid_height + _BOTTOM
    figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    plain: dict[str, Any] = {"parse_math": False, "color": _INK}
    figure.text(0.3 / width, 1 - 0.4 / height, title, fontsize=14, fontweight="bold", **plain)
    figure.text(0.3 / width, 1 - 0.7 / height, subtitle(traffic), fontsize=9.5, **{**plain, "color": _FAINT})

    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, grid_width / width, grid_height / height))
    colours = LinearSegmentedColormap.from_list("steps", _COLOURS).with_extremes(bad=_EMPTY)
    cells = [[shares.get((b, s2), float("nan")) for s2 in lengths] for b in batches]
    image = axes.pcolormesh(cells, cmap=colours, vmin=0, vmax=most, edgecolors="white", linewidth=1.5)
    for row, line in enumerate(cells):
        for column, share in enumerate(line):
            if share == share:  # not nan: no step
                colour = "white" if share > _LIGHT_TEXT_FROM * most else _INK
                where = column + 0.5, row + 0.5
                axes.text(*where, per_cent(share), ha="center", va="center", fontsize=8.5, color=colour)
    axes.set_xticks([at + 0.5 for at in range(len(lengths))], [f"{s2:,}" for s2 in lengths], fontsize=9)
    axes.set_yticks([at + 0.5 for at in range(len(batches))], [str(b) for b in batches], fontsize=9)
    axes.set_xlabel("s2, tokens of the longest request, up to", color=_INK)
    axes.set_ylabel("b, requests, up to", color=_INK)
    axes.tick_params(length=0, colors=_INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.add_axes(((_LEFT + grid_width + 0.25) / width, _BOTTOM / height, 0.16 / width, grid_height / height))
    figure.colorbar(image, cax=bar, format=lambda share, _: f"{share:.0%}" if most >= 0.05 else f"{share:.1%}")
    bar.tick_params(labelsize=9, colors=_INK)
    bar.set_title("share", fontsize=9, color=_INK)
    figure.savefig(path_or_buffer, format="png")


def subtitle(traffic: Traffic) -> str:
    """What was counted, and under which model."""
    model = f"at most {traffic.batching.max_batch} at once, {traffic.batching.step_ns / 1e6:g} ms a step"
    return f"{traffic.steps:,} decode steps of {traffic.requests:,} requests; {model}"


def per_cent(share: float) -> str:
    """0.259 as ``25.9%``; what is too small for a digit as ``<0.1%``."""
    return f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _batches(found: Sequence[int]) -> list[int]:
    """Every b that buckets have, from the least to the largest found."""
    return [1 << power for power in range(min(found).bit_length() - 1, max(found).bit_length())]


def _lengths(found: Sequence[int], block_size: int) -> list[int]:
    """Every s2 that buckets have, from the least to the largest found."""
    lengths = [min(found)]
    while lengths[-1] < max(found):
        lengths.append(bucket_sizes(1, lengths[-1] + 1, block_size)[1])
    return lengths
