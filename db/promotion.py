"""Which measurement is served: what it takes to be promoted, and what was."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, Table, insert, select, update

from ..kernel.shapes import Workload
from .errors import (
    DefaultMismatchError,
    NotMeasuredError,
    NotVerifiedError,
    OtherEnvironmentError,
    SlowerThanDefaultError,
    UnknownEnvironmentError,
    UnknownRowError,
    VerificationMismatchError,
)
from .records import Environment, Measurement, TunedConfig, Verification
from .rows import (
    Row,
    environment_of,
    is_workload,
    measurement_of,
    prefixed,
    tuned_of,
    unprefixed,
    verification_of,
    workload_key,
)
from .tables import UtcNow, environment, measurement, tuned_config, verification

_default = measurement.alias("default_measurement")


def promote(
    connection: Connection, env_id: int, measurement_id: int, default_id: int, verification_id: int
) -> TunedConfig:
    """Make a measurement the current one of its workload, inside the caller's write transaction.

    Raises:
        UnknownEnvironmentError, UnknownRowError, PromotionError: as ``Store.promote``.
    """
    where = locked_environment(connection, env_id)
    tuned = measurement_of(row_in(connection, measurement, measurement_id, env_id))
    default = measurement_of(row_in(connection, measurement, default_id, env_id))
    verified = verification_of(row_in(connection, verification, verification_id, env_id))
    _check_evidence(where, tuned, default, verified)

    for current in find(connection, env_id, tuned.workload, current=True):
        if current.measurement.id == measurement_id:
            return current
        connection.execute(update(tuned_config).where(tuned_config.c.id == current.id).values(superseded_at=UtcNow()))
    connection.execute(
        insert(tuned_config).values(
            workload_key(tuned.workload)
            | {
                "environment_id": env_id,
                "measurement_id": measurement_id,
                "default_id": default_id,
                "verification_id": verification_id,
            }
        )
    )
    (promoted,) = find(connection, env_id, tuned.workload, current=True)
    return promoted


def find(connection: Connection, env_id: int | None, workload: Workload, *, current: bool) -> list[TunedConfig]:
    """The tuned configurations of a workload, newest first; of any environment when ``env_id`` is None."""
    query = _select_tuned().where(is_workload(tuned_config, workload))
    if env_id is not None:
        query = query.where(tuned_config.c.environment_id == env_id)
    if current:
        query = query.where(tuned_config.c.superseded_at.is_(None))
    rows = connection.execute(query.order_by(tuned_config.c.id.desc())).mappings()
    return [_tuned_of(row) for row in rows]


def _select_tuned() -> Select[Any]:
    return (
        select(
            *tuned_config.c,
            *prefixed(environment, "e_"),
            *prefixed(measurement, "m_"),
            *prefixed(_default, "d_"),
            *prefixed(verification, "v_"),
        )
        .join(environment, environment.c.id == tuned_config.c.environment_id)
        .join(measurement, measurement.c.id == tuned_config.c.measurement_id)
        .join(_default, _default.c.id == tuned_config.c.default_id)
        .join(verification, verification.c.id == tuned_config.c.verification_id)
    )


def _tuned_of(row: Row) -> TunedConfig:
    return tuned_of(
        row,
        environment=unprefixed(row, "e_", environment),
        measurement=unprefixed(row, "m_", measurement),
        default=unprefixed(row, "d_", measurement),
        verification=unprefixed(row, "v_", verification),
    )


def locked_environment(connection: Connection, env_id: int) -> Environment:
    """The environment, kept from other promotions until the transaction ends.

    Raises:
        UnknownEnvironmentError: it is not in the store.
    """
    # PostgreSQL lets writers run side by side: the lock makes promotions in one environment
    # queue up, and leaves everyone free to add rows that refer to it.
    query = select(environment).where(environment.c.id == env_id).with_for_update(key_share=True)
    row = connection.execute(query).mappings().first()
    if row is None:
        raise UnknownEnvironmentError(env_id=env_id)
    return environment_of(row)


def row_in(connection: Connection, table: Table, row_id: int, env_id: int) -> Row:
    """A row of an environment.

    Raises:
        UnknownRowError, OtherEnvironmentError: it is not there.
    """
    row = connection.execute(select(table).where(table.c.id == row_id)).mappings().first()
    if row is None:
        raise UnknownRowError(table=table.name, row_id=row_id)
    if row["environment_id"] != env_id:
        raise OtherEnvironmentError(table=table.name, row_id=row_id, found=row["environment_id"], env_id=env_id)
    return row


def _check_evidence(where: Environment, tuned: Measurement, default: Measurement, verified: Verification) -> None:
    for one in (tuned, default):
        if one.cost is None:
            raise NotMeasuredError(row_id=one.id, kind=one.kind)
    assert tuned.cost is not None
    assert default.cost is not None
    if default.workload != tuned.workload:
        raise DefaultMismatchError(row_id=default.id, found=default.workload, wanted=tuned.workload)
    check_verification(tuned, verified)
    if tuned.cost > default.cost:
        raise SlowerThanDefaultError(row_id=tuned.id, cost=tuned.cost, default_cost=default.cost, unit=where.unit)


def check_verification(of: Measurement, verified: Verification) -> None:
    """Refuse a verification of something else, or one that did not pass.

    Raises:
        VerificationMismatchError, NotVerifiedError: with what it is of.
    """
    family = of.workload.shape.family
    if (verified.config, verified.family) != (of.config, family):
        raise VerificationMismatchError(
            row_id=verified.id,
            found=verified.config.digest,
            found_family=verified.family,
            wanted=of.config.digest,
            wanted_family=family,
        )
    if not verified.passed:
        raise NotVerifiedError(row_id=verified.id)
