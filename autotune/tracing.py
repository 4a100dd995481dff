"""Swim lanes of what is served and of its default: run once more with tracing on, and kept with the measurement.

Best effort: a trace that fails costs a line in the log, never a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..db.errors import LeaseLostError, StoreError
from ..db.records import Measurement, TunedConfig
from ..db.store import Store
from ..kernel.config import KernelConfig
from .swimlane import Swimlane
from .trial import TrialResult, first_line

_AT_ONCE = 16  # workloads of one trial: a trace may take a megabyte of its reply
#: One configuration, and its measurements that have no trace yet.
Untraced = tuple[KernelConfig, tuple[Measurement, ...]]


class Traces:
    """The traces of one store. ``warn`` is told of each that could not be had."""

    def __init__(self, store: Store, warn: Callable[[str], None]) -> None:
        self._store = store
        self._warn = warn

    def missing(self, tuned: Iterable[TunedConfig]) -> list[Untraced]:
        """What is served and measured without a trace, by configuration: each is compiled once."""
        rows = {row.id: row for one in tuned for row in (one.default, one.measurement) if row.id is not None}
        try:
            known = self._store.traces.has(rows)
        except StoreError as error:
            self._warn(f"no trace is taken: {error}")
            return []
        by_config: dict[KernelConfig, list[Measurement]] = {}
        for row_id, row in rows.items():
            if row_id not in known:
                by_config.setdefault(row.config, []).append(row)
        return [
            (config, tuple(found[start : start + _AT_ONCE]))
            for config, found in by_config.items()
            for start in range(0, len(found), _AT_ONCE)
        ]

    def keep(self, config: KernelConfig, rows: Sequence[Measurement], result: TrialResult) -> None:
        """Store what a traced trial saw of each measurement, where it is the run that was measured.

        Raises:
            LeaseLostError: the job that this is for is another worker's now.
        """
        if result.reply is None:
            self._warn(f"configuration {config.digest} was not traced ({result.kind}: {first_line(result.message)})")
            return
        for row, item in zip(rows, result.reply["results"], strict=True):
            try:
                self._keep(row, item["swimlane"])
            except LeaseLostError:
                raise
            except (StoreError, ValueError, KeyError) as error:
                self._warn(f"the trace of measurement {row.id} was not kept: {error}")

    def _keep(self, row: Measurement, document: object) -> None:
        lanes = Swimlane.from_json(document)
        if lanes.makespan != row.cost:
            raise ValueError(f"it took {lanes.makespan} cycles where {row.cost:.15g} were measured")
        if row.id is not None:
            self._store.traces.add(row.id, lanes.to_json())
