"""Pictures of single runs: what each core did, as the backend recorded it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from .engine import Database
from .errors import UnknownRowError
from .tables import measurement, trace

#: Ids asked for at a time: databases limit the parameters of a statement.
_IDS = 500


class Traces:
    """The traces in one database, at most one for each measurement. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, measurement_id: int, document: Mapping[str, Any]) -> None:
        """Keep the trace of a measurement; where there is one already, that stays.

        Raises:
            UnknownRowError: no measurement has that id.
            ValueError: the document is no JSON.
        """
        try:
            text = json.dumps(dict(document), separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the trace is no JSON ({error}): give numbers, texts, lists and objects") from error
        row = {"measurement_id": measurement_id, "data": gzip.compress(text.encode(), mtime=0)}
        try:
            with self.database.write() as connection:
                if (
                    connection.execute(select(measurement.c.id).where(measurement.c.id == measurement_id)).first()
                    is None
                ):
                    raise UnknownRowError(table="measurement", row_id=measurement_id)
                if connection.execute(_has([measurement_id])).first() is None:
                    connection.execute(insert(trace).values(row))
        except IntegrityError:  # another process was faster
            pass

    def get(self, measurement_id: int) -> bytes | None:
        """The trace of a measurement, JSON in gzip; None when there is none."""
        query = select(trace.c.data).where(trace.c.measurement_id == measurement_id)
        with self.database.read() as connection:
            found: bytes | None = connection.execute(query).scalar_one_or_none()
        return found

    def has(self, measurement_ids: Iterable[int]) -> set[int]:
        """Those of the measurements that have a trace."""
        ids = list(measurement_ids)
        with self.database.read() as connection:
            return {
                found
                for start in range(0, len(ids), _IDS)
                for found in connection.execute(_has(ids[start : start + _IDS])).scalars()
            }


def _has(ids: list[int]) -> Any:
    return select(trace.c.measurement_id).where(trace.c.measurement_id.in_(ids))
