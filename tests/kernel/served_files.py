"""Databases and snapshot files with something to serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ladder_tools import config

from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import canonical, default_config
from pfatune.kernel.ladder import Ladder
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.snapshot import dump
from pfatune.kernel.source import kernel_digest

ENVIRONMENT = Environment("sim", "950PR", "0.2.0", "2.13.0", kernel_digest(), "0123456789abcdef")


def described(environment: Environment = ENVIRONMENT) -> dict[str, str]:
    return {**environment.to_json(), "digest": environment.digest}


def snapshot_of(ladder: Ladder, environment: Environment = ENVIRONMENT) -> bytes:
    return dump(described(environment), environment.unit, ladder)


def tune(
    path: Path,
    shapes: Iterable[PfaShape],
    *,
    number: int = 100,
    environment: Environment = ENVIRONMENT,
    lengths: tuple[int, ...] | None = None,
) -> None:
    """Serve ``config(number)`` for the shapes from a database, which is made where it is missing."""
    with Store.open(path) as store:
        env = store.environment_id(environment)
        for shape in shapes:
            workload = Workload(shape, lengths)
            family = shape.family
            tuned = Measurement(workload, config(number, family), Kind.OK, 1000.0 - number)
            default = replace(tuned, config=canonical(default_config(shape), family), cost=2000.0)
            ids = store.add(env, [tuned, default])
            verified = store.add_verification(env, Verification(family, tuned.config, True, 0.0, (shape,)))
            store.promote(env, ids[0], ids[1], verified)
