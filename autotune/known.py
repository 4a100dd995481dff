"""What is known of the configurations of a family: their measurements and the verdicts on their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..db.records import Kind, Measurement, Verification
from ..kernel.config import KernelConfig
from ..kernel.shapes import Workload


class Known:
    """The newest measurement of each configuration on each workload, in the order they came."""

    def __init__(self, workloads: tuple[Workload, ...]) -> None:
        self._workloads = workloads
        self._rows: dict[KernelConfig, dict[Workload, Measurement]] = {}
        self.verdicts: dict[KernelConfig, Verification] = {}

    @property
    def configs(self) -> list[KernelConfig]:
        """Those that were measured on any workload."""
        return list(self._rows)

    def add(self, row: Measurement) -> None:
        self._rows.setdefault(row.config, {})[row.workload] = row

    def row(self, config: KernelConfig, workload: Workload) -> Measurement | None:
        return self._rows.get(config, {}).get(workload)

    def rows(self, config: KernelConfig) -> list[Measurement]:
        """The measurements of a configuration, one for each workload at most."""
        return list(self._rows.get(config, {}).values())

    def missing(self, config: KernelConfig) -> tuple[Workload, ...]:
        """The workloads on which a configuration was not measured."""
        return tuple(workload for workload in self._workloads if self.row(config, workload) is None)

    def is_complete(self, config: KernelConfig) -> bool:
        return not self.missing(config)

    def kind(self, config: KernelConfig) -> Kind:
        """How a measured configuration ended: ok only where it did on every workload."""
        return next((row.kind for row in self.rows(config) if row.kind is not Kind.OK), Kind.OK)

    def costs(self, config: KernelConfig) -> tuple[float, ...] | None:
        """The cost on each workload; None if the configuration failed on one, was found wrong, or is not complete."""
        rows = [self.row(config, workload) for workload in self._workloads]
        found = tuple(row.cost for row in rows if row is not None and row.cost is not None)
        return found if len(found) == len(rows) else None

    def seconds(self, config: KernelConfig) -> float:
        """What its measurements took, together."""
        return math.fsum(row.seconds for row in self.rows(config))

    def winner(self, workload: Workload) -> tuple[KernelConfig, Measurement] | None:
        """The fastest verified configuration of a workload."""
        return self.fastest(workload, lambda config: config in self.verdicts and self.verdicts[config].passed)

    def fastest(
        self, workload: Workload, eligible: Callable[[KernelConfig], bool]
    ) -> tuple[KernelConfig, Measurement] | None:
        """The fastest of the eligible configurations of a workload; among equals, the one measured first."""
        candidates = [
            (row.cost, row.id or 0, config, row)
            for config, rows in self._rows.items()
            if (row := rows.get(workload)) is not None and row.cost is not None and eligible(config)
        ]
        if not candidates:
            return None
        _, _, config, row = min(candidates, key=lambda item: item[:2])
        return config, row
