"""Measurements across environments: one by its id, a page of many, and how many there are."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from ..kernel.shapes import PfaFamily, Workload
from .records import Kind, Measurement
from .rows import is_family, is_workload, measurement_of
from .tables import environment, measurement

#: (backend, SoC, kind) of measurements.
CountKey = tuple[str, str, Kind]


def one(connection: Connection, measurement_id: int) -> tuple[int, Measurement] | None:
    """The measurement of that id, after the id of its environment."""
    row = connection.execute(select(measurement).where(measurement.c.id == measurement_id)).mappings().first()
    return None if row is None else (row["environment_id"], measurement_of(row))


def page(
    connection: Connection,
    *,
    env_id: int | None,
    workload: Workload | None,
    family: PfaFamily | None,
    kind: Kind | None,
    before: int | None,
    limit: int,
) -> list[tuple[int, Measurement]]:
    """The measurements that meet every condition given, each after the id of its environment, newest first."""
    query = select(measurement).order_by(measurement.c.id.desc()).limit(limit)
    if env_id is not None:
        query = query.where(measurement.c.environment_id == env_id)
    elif workload is not None or family is not None:
        # Every index starts with the environment: naming all of them lets one be used.
        query = query.where(measurement.c.environment_id.in_(select(environment.c.id)))
    if workload is not None:
        query = query.where(is_workload(measurement, workload))
    if family is not None:
        query = query.where(is_family(measurement, family))
    if kind is not None:
        query = query.where(measurement.c.kind == kind.value)
    if before is not None:
        query = query.where(measurement.c.id < before)
    return [(row["environment_id"], measurement_of(row)) for row in connection.execute(query).mappings()]


def counts(connection: Connection) -> dict[CountKey, int]:
    """How many measurements there are of each backend, SoC and kind."""
    # Grouped before the join, so that the index on these two columns is all that is read.
    numbers = (
        select(measurement.c.environment_id, measurement.c.kind, func.count().label("number"))
        .group_by(measurement.c.environment_id, measurement.c.kind)
        .subquery()
    )
    query = (
        select(environment.c.backend, environment.c.soc, numbers.c.kind, func.sum(numbers.c.number))
        .join(environment, environment.c.id == numbers.c.environment_id)
        .group_by(environment.c.backend, environment.c.soc, numbers.c.kind)
    )
    return {(backend, soc, Kind(kind)): int(number) for backend, soc, kind, number in connection.execute(query)}
