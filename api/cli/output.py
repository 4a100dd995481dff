"""How results look: numbers, tables and JSON on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from ...kernel.config import FIELD_NAMES, KernelConfig
from ...kernel.legality import Violation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: Said wherever a cost of the embedded worker is shown.
COST_MODEL_NOTE = (
    "These are figures of PyPTO's cost model: they rank configurations and are no times; nothing ran on hardware."
)
UNIT_NAMES = {"sim": "cycles (cost model)", "npu": "us"}
_PIPE_WIDTH = 240  # columns when stdout is no terminal


class _NoTrailingSpace:
    """Stdout without the spaces with which tables fill their last column."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(line.rstrip() for line in text.split("\n")))

    def flush(self) -> None:
        sys.stdout.flush()


def console() -> Console:
    """A console on stdout: plain text unless stdout is a terminal and NO_COLOR is not set."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # where rich would end the process

    terminal = sys.stdout.isatty()
    width = None if terminal or os.environ.get("COLUMNS", "").isdigit() else _PIPE_WIDTH
    plain = bool(os.environ.get("NO_COLOR")) or not terminal
    return PipeConsole(
        file=sys.stdout if terminal else cast("IO[str]", _NoTrailingSpace()),
        width=width,
        color_system=None if plain else "auto",
        force_terminal=terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(document: Mapping[str, Any]) -> None:
    """One document on a line of its own."""
    print(json.dumps(document, ensure_ascii=False, allow_nan=False), flush=True)


@contextmanager
def counting(total: int, what: str, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while a number grows to ``total``, which is told by calling what this gives.

    Nothing is shown where ``quiet`` or where stderr is no terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    err = Console(stderr=True)
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def cost_text(cost: float, backend: str = "sim") -> str:
    """A cost with its unit."""
    digits = 0 if backend == "sim" else 2
    return f"{cost:,.{digits}f} {UNIT_NAMES[backend]}"


def speedup_text(speedup: float) -> str:
    """2.0 as ``2.00x``: default's cost over this cost."""
    return f"{speedup:.2f}x"


def duration(seconds: float) -> str:
    """Seconds for people: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def value_text(value: object) -> str:
    """A field of a configuration as its JSON, ``{}`` being the compiler's choice."""
    return json.dumps(value) if value != {} else "{} (automatic)"


def plain_table(*headings: str) -> Table:
    """A table without lines, which looks the same on a terminal and in a file."""
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(headings), expand=False
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def indented(renderable: RenderableType, by: int = 2) -> RenderableType:
    """Something, moved to the right."""
    from rich.padding import Padding

    return Padding(renderable, (0, 0, 0, by), expand=False)


def config_table(config: KernelConfig) -> RenderableType:
    """Every field of a configuration."""
    table = plain_table("", "")
    table.columns[0].style = "cyan"
    for name, value in config.to_json().items():
        table.add_row(name, value_text(value))
    return indented(table)


def difference_table(default: KernelConfig, tuned: KernelConfig) -> RenderableType:
    """The fields in which two configurations differ, and how many they share."""
    before, after = default.to_json(), tuned.to_json()
    changed = [name for name in FIELD_NAMES if before[name] != after[name]]
    table = plain_table("field", "default", "tuned")
    table.columns[0].style = "cyan"
    for name in changed:
        table.add_row(name, value_text(before[name]), value_text(after[name]))
    same = len(FIELD_NAMES) - len(changed)
    table.add_row("unchanged", f"{same} field{'s' if same != 1 else ''}", "", style="dim")
    return indented(table)


def facts(rows: Mapping[str, str]) -> RenderableType:
    """Names and values, one pair a line."""
    table = plain_table("", "")
    table.columns[0].style = "dim"
    for name, value in rows.items():
        table.add_row(name, value)
    return indented(table)


def violation_table(broken: list[Violation]) -> RenderableType:
    """The rules that a configuration breaks, one a line."""
    table = plain_table("field", "value", "limit", "rule and remedy")
    table.columns[0].style = "cyan"
    for column in table.columns[1:3]:
        column.justify = "right"
    for violation in broken:
        table.add_row(violation.field, str(violation.value), str(violation.limit), violation.message)
    return indented(table)
