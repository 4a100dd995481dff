"""Between rows and records: every column is named here once for each direction."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Label, RowMapping, Table, and_

from ..kernel.config import KernelConfig
from ..kernel.shapes import PfaFamily, PfaShape, Workload
from .records import Environment, Kind, Measurement, TunedConfig, Verification
from .tables import FAMILY_COLUMNS, WORKLOAD_COLUMNS

Row = RowMapping | dict[str, Any]
SHAPE_COLUMNS = ("b", "s2", *FAMILY_COLUMNS)
ENVIRONMENT_COLUMNS = tuple(Environment.__dataclass_fields__)


def seq_digest(workload: Workload) -> str:
    """Identity of the KV lengths: 16 hexadecimal digits, or '' when every request is full."""
    if workload.actual_seq is None:
        return ""
    text = json.dumps(workload.actual_seq, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def workload_key(workload: Workload) -> dict[str, Any]:
    """The columns that tell workloads apart."""
    return workload.shape.to_json() | {"seq_digest": seq_digest(workload)}


def is_workload(table: FromClause, workload: Workload) -> ColumnElement[bool]:
    key = workload_key(workload)
    return and_(*(table.c[name] == key[name] for name in WORKLOAD_COLUMNS))


def is_family(table: FromClause, family: PfaFamily) -> ColumnElement[bool]:
    key = family.to_json()
    return and_(*(table.c[name] == key[name] for name in FAMILY_COLUMNS))


def prefixed(table: FromClause, prefix: str) -> list[Label[Any]]:
    """The table's columns under names that stay apart in a join."""
    return [column.label(prefix + column.name) for column in table.c]


def unprefixed(row: Row, prefix: str, table: Table) -> Row:
    return {column.name: row[prefix + column.name] for column in table.c}


def environment_row(environment: Environment) -> dict[str, Any]:
    return environment.to_json() | {"digest": environment.digest}


def environment_of(row: Row) -> Environment:
    return Environment(**{name: row[name] for name in ENVIRONMENT_COLUMNS})


def measurement_row(env_id: int, measurement: Measurement) -> dict[str, Any]:
    seq = measurement.workload.actual_seq
    return workload_key(measurement.workload) | {
        "environment_id": env_id,
        "actual_seq": None if seq is None else list(seq),
        "config": measurement.config.to_json(),
        "config_digest": measurement.config.digest,
        "kind": measurement.kind.value,
        "cost": measurement.cost,
        "samples": list(measurement.samples),
        "seconds": measurement.seconds,
        "compile_seconds": measurement.compile_seconds,
        "run_seconds": measurement.run_seconds,
        "peak_bytes": measurement.peak_bytes,
        "message": measurement.message,
        "study": measurement.study,
    }


def measurement_of(row: Row) -> Measurement:
    return Measurement(
        workload=Workload(
            PfaShape(**{name: row[name] for name in SHAPE_COLUMNS}),
            None if row["actual_seq"] is None else tuple(row["actual_seq"]),
        ),
        config=KernelConfig.from_json(row["config"]),
        kind=Kind(row["kind"]),
        cost=row["cost"],
        samples=tuple(row["samples"]),
        seconds=row["seconds"],
        compile_seconds=row["compile_seconds"],
        run_seconds=row["run_seconds"],
        peak_bytes=row["peak_bytes"],
        message=row["message"],
        study=row["study"],
        id=row["id"],
        created_at=row["created_at"],
    )


def verification_row(env_id: int, verification: Verification) -> dict[str, Any]:
    return verification.family.to_json() | {
        "environment_id": env_id,
        "config": verification.config.to_json(),
        "config_digest": verification.config.digest,
        "passed": verification.passed,
        "max_abs_diff": verification.max_abs_diff,
        "shapes": [shape.to_json() for shape in verification.shapes],
        "message": verification.message,
        "seconds": verification.seconds,
    }


def verification_of(row: Row) -> Verification:
    return Verification(
        family=PfaFamily(**{name: row[name] for name in FAMILY_COLUMNS}),
        config=KernelConfig.from_json(row["config"]),
        passed=row["passed"],
        max_abs_diff=row["max_abs_diff"],
        shapes=tuple(PfaShape.from_json(shape) for shape in row["shapes"]),
        message=row["message"],
        seconds=row["seconds"],
        id=row["id"],
        created_at=row["created_at"],
    )


def tuned_of(row: Row, environment: Row, measurement: Row, default: Row, verification: Row) -> TunedConfig:
    tuned = measurement_of(measurement)
    return TunedConfig(
        workload=tuned.workload,
        environment=environment_of(environment),
        measurement=tuned,
        default=measurement_of(default),
        verification=verification_of(verification),
        id=row["id"],
        created_at=row["created_at"],
        superseded_at=row["superseded_at"],
    )
