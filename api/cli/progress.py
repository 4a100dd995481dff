"""How a tuning run is shown while it goes on: a live panel, plain lines, or JSON lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ...db.records import Kind
from ...kernel.shapes import Workload
from ..log import log
from .output import cost_text, duration, print_json, speedup_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from ...autotune.progress import Progress

_EVERY = 10  # trials between two plain lines when nothing else happens
_BAR = 32  # columns
_LISTED = 8  # shapes


class Report(Protocol):
    """What a run is shown through: ``start`` once for each family, ``watch`` after every change."""

    def start(self, workloads: Sequence[Workload], heading: str) -> None: ...

    def watch(self, progress: Progress) -> None: ...

    def stop(self) -> None: ...


def kinds_text(kinds: dict[Kind, int], separator: str = ", ") -> str:
    """How trials ended: ok first, then failures by how often they were seen."""
    shown = sorted((pair for pair in kinds.items() if pair[1]), key=lambda pair: (pair[0] is not Kind.OK, -pair[1]))
    return separator.join(f"{count} {kind}" for kind, count in shown) or "none"


def _listed(workloads: Sequence[Workload]) -> list[str]:
    lines = [f"  {workload}" for workload in workloads[:_LISTED]]
    return lines if len(workloads) <= _LISTED else [*lines, f"  … and {len(workloads) - _LISTED} more"]


def _mean(costs: dict[Workload, float]) -> float:
    return math.exp(sum(map(math.log, costs.values())) / len(costs))


def _cost(progress: Progress, costs: dict[Workload, float]) -> str:
    backend = "sim" if progress.unit == "cycles" else "npu"
    mean = cost_text(_mean(costs), backend)
    return mean if len(progress.workloads) == 1 else f"{mean}, geometric mean of {len(costs)} shapes"


def _trials(progress: Progress) -> str:
    if progress.budget.trials is None:
        return f"{progress.trials} trials"
    return f"{progress.trials} of {max(progress.trials, progress.budget.trials)} trials"


def _is_improved(progress: Progress) -> bool:
    return progress.speedup is not None and progress.speedup > 1


class JsonReport:
    """A JSON line for every change; nothing for the mere passing of time."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def start(self, workloads: Sequence[Workload], heading: str) -> None:
        self._last = ()

    def watch(self, progress: Progress) -> None:
        document = progress.to_json()
        state = tuple(str(value) for name, value in document.items() if not name.endswith(("_seconds", "_left")))
        if state != self._last:
            self._last = state
            print_json(document)

    def stop(self) -> None:
        pass


class LineReport:
    """Plain lines, one for each change worth telling."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seen: dict[Kind, int] | None = None
        self._default_told = False
        self._best = 1.0
        self._next = 0

    def start(self, workloads: Sequence[Workload], heading: str) -> None:
        self._reset()
        print(heading)
        print(*_listed(workloads), sep="\n", flush=True)

    def watch(self, progress: Progress) -> None:
        seen = self._begin(progress) if self._seen is None else self._seen
        if not self._default_told and len(progress.default) == len(progress.workloads):
            self._default_told = True
            self._tell(progress, f"default: {_cost(progress, progress.default)}")
        for kind, count in progress.kinds.items():
            if count > seen.get(kind, 0) and kind is not Kind.OK:
                self._tell(progress, f"{_trials(progress)}: {progress.last}")
        self._seen = dict(progress.kinds)
        speedup = progress.speedup
        if speedup is not None and speedup > self._best:
            self._best = speedup
            cost = _cost(progress, progress.best)
            self._tell(progress, f"{_trials(progress)}: best {cost}, {speedup_text(speedup)} as fast as the default")
        if progress.trials >= self._next:
            self._next = (progress.trials // _EVERY + 1) * _EVERY
            left = progress.seconds_left
            rest = f"; about {duration(left)} left" if left else ""
            self._tell(progress, f"{_trials(progress)}: {kinds_text(progress.kinds)}{rest}")

    def stop(self) -> None:
        pass

    def _begin(self, progress: Progress) -> dict[Kind, int]:
        self._next = (progress.trials // _EVERY + 1) * _EVERY
        if progress.known:
            self._tell(progress, f"{_trials(progress)} known from earlier runs: {kinds_text(progress.kinds)}")
        return dict(progress.kinds)

    def _tell(self, progress: Progress, text: str) -> None:
        print(f"[{_clock(progress.elapsed)}] {text}", flush=True)


class LiveReport:
    """A panel on a terminal, redrawn in place after every change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._title = ""

    def start(self, workloads: Sequence[Workload], heading: str) -> None:
        from rich.live import Live

        self._title = heading
        self._console.print(heading, style="bold")
        self._console.print(*_listed(workloads), "", sep="\n")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def watch(self, progress: Progress) -> None:
        if self._live is not None:
            self._live.update(_panel(progress), refresh=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _panel(progress: Progress) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", min_width=10)
    table.add_column()
    table.add_row("  trials", _bar(progress))
    if progress.default:
        table.add_row("  default", _cost(progress, progress.default))
    else:
        table.add_row("  default", Text("being measured first; every speed-up is against it", style="dim"))
    if _is_improved(progress):
        best = Text(_cost(progress, progress.best), style="bold")
        best.append(f"   {speedup_text(progress.speedup or 1)} as fast", style="bold green")
        best.append("   verified", style="green")
        table.add_row("  best", best)
    elif progress.best:
        table.add_row("  best", Text("the default, so far", style="dim"))
    if progress.kinds:
        ended = Text(kinds_text(progress.kinds, " · "))
        if progress.known:
            ended.append(f"   {progress.known} of them by earlier runs", style="dim")
        table.add_row("  ended", ended)
    measuring = progress.running - progress.verifying - progress.tracing
    doing = {"measuring": measuring, "verifying": progress.verifying, "tracing": progress.tracing}
    now = [f"{count} {what}" for what, count in doing.items() if count]
    table.add_row("  now", " · ".join(now) or "nothing running")
    table.add_row("", Text("Ctrl-C stops and keeps everything", style="dim"))
    return table


def _bar(progress: Progress) -> RenderableType:
    from rich.text import Text

    budget = progress.budget
    shares = []
    if budget.trials:
        shares.append(progress.trials / budget.trials)
    if budget.seconds:
        shares.append(progress.elapsed / budget.seconds)
    filled = round(_BAR * min(1.0, max(shares, default=0.0)))
    text = Text("━" * filled, style="green")
    text.append("━" * (_BAR - filled), style="bright_black")
    text.append(f"  {_trials(progress).removesuffix(' trials')}", style="none")
    left = progress.seconds_left
    text.append(f"   {_clock(progress.elapsed)}", style="dim")
    if left is not None:
        text.append(f", about {duration(left)} left", style="dim")
    return text


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours = f"{whole // 3600}:" if whole >= 3600 else ""
    return f"{hours}{whole % 3600 // 60:02d}:{whole % 60:02d}"


class Logged:
    """Another report, with every trial's end told to the log as well."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last = ""

    def start(self, workloads: Sequence[Workload], heading: str) -> None:
        self._last = ""
        self._report.start(workloads, heading)

    def watch(self, progress: Progress) -> None:
        if progress.last != self._last:
            self._last = progress.last
            log().info("trial ended", last=progress.last, trials=progress.trials)
        self._report.watch(progress)

    def stop(self) -> None:
        self._report.stop()
