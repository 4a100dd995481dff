"""What is served now: light rows, as many as there are, without the records behind them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from ..kernel import served
from ..kernel.ladder import Entry
from ..kernel.shapes import PfaShape
from .records import Environment
from .rows import environment_of

#: Rows that are fetched at a time.
_ROWS = 10_000


def environments(connection: Connection) -> list[tuple[int, Environment]]:
    """The environments in which something is served, after their ids, newest first."""
    rows = connection.execute(text(served.ENVIRONMENTS_SQL)).mappings()
    return [(row["id"], environment_of(row)) for row in rows]


def entries(connection: Connection, env_id: int, after: int) -> tuple[int, list[tuple[PfaShape, Entry]]]:
    """The id of the newest row, and what the rows after ``after`` serve, oldest first."""

    def config_of(measurement_id: int) -> Any:
        return connection.execute(text(served.CONFIG_SQL), {"id": measurement_id}).scalar_one()

    rows = connection.execute(
        text(served.SERVED_SQL), {"env": env_id, "after": after}, execution_options={"yield_per": _ROWS}
    )
    newest, found = after, []
    for row_id, shape, entry in served.entries_from_rows(rows, config_of):
        newest = row_id
        found.append((shape, entry))
    return newest, found
