"""What is served now: light rows, as many as there are, without the records behind them."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, text

from ..kernel import served
from ..kernel.ladder import Entry, Member
from ..kernel.shapes import PfaFamily, PfaShape
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
    rows = connection.execute(
        text(served.SERVED_SQL), {"env": env_id, "after": after}, execution_options={"yield_per": _ROWS}
    )
    newest, found = after, []
    for row_id, shape, entry in served.entries_from_rows(rows, partial(_config_of, connection)):
        newest = row_id
        found.append((shape, entry))
    return newest, found


def portfolios(
    connection: Connection, env_id: int, after: int
) -> tuple[int, list[tuple[PfaFamily, tuple[Member, ...]]]]:
    """The id of the newest portfolio, and those after ``after``, oldest first."""
    rows = connection.execute(text(served.PORTFOLIOS_SQL), {"env": env_id, "after": after}).all()
    newest, found = after, []
    for portfolio_id, family, members in served.portfolios_from_rows(rows, partial(_config_of, connection)):
        newest = portfolio_id
        found.append((family, members))
    return newest, found


def _config_of(connection: Connection, measurement_id: int) -> Any:
    return connection.execute(text(served.CONFIG_SQL), {"id": measurement_id}).scalar_one()
