"""What a database serves: the queries and their rows, for SQLite and PostgreSQL alike.

The store runs them through SQLAlchemy, a serving engine through the standard library. Parameters
are named ``:env``, ``:after`` and ``:id``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .config import KernelConfig
from .ladder import Entry, Member
from .shapes import PfaFamily, PfaShape

#: Columns of an environment, without its id.
ENVIRONMENT_COLUMNS = (
    "backend",
    "soc",
    "pypto",
    "torch",
    "kernel_digest",
    "model_digest",
    "torch_npu",
    "cann",
    "driver",
    "digest",
)

#: Environments in which something is served, newest first: the id, then ``ENVIRONMENT_COLUMNS``.
ENVIRONMENTS_SQL = f"""
SELECT e.id, {", ".join(f"e.{name}" for name in ENVIRONMENT_COLUMNS)}
FROM environment AS e
WHERE EXISTS (
    SELECT 1 FROM tuned_config AS t WHERE t.environment_id = e.id AND t.superseded_at IS NULL
)
ORDER BY e.id DESC
"""

#: What is served in environment ``:env`` and was added after row ``:after``, oldest first.
SERVED_SQL = """
SELECT
    t.id, t.b, t.s2, t.s1, t.nq, t.nkv, t.qd, t.block_size, t.seq_digest,
    t.measurement_id, m.config_digest, m.cost, d.cost AS default_cost, v.created_at AS verified_at
FROM tuned_config AS t
JOIN measurement AS m ON m.id = t.measurement_id
JOIN measurement AS d ON d.id = t.default_id
JOIN verification AS v ON v.id = t.verification_id
WHERE t.environment_id = :env AND t.superseded_at IS NULL AND t.id > :after
ORDER BY t.id
"""

#: How many rows are served in environment ``:env``, and the newest: equal numbers mean that nothing changed.
STATE_SQL = """
SELECT COUNT(*), MAX(t.id)
FROM tuned_config AS t
WHERE t.environment_id = :env AND t.superseded_at IS NULL
"""

#: The portfolios of environment ``:env`` that were added after ``:after``, oldest first: a row for each member.
PORTFOLIOS_SQL = """
SELECT p.id, m.b, m.s2, m.s1, m.nq, m.nkv, m.qd, m.block_size, m.id AS measurement_id, m.config_digest
FROM portfolio AS p
JOIN portfolio_member AS a ON a.portfolio_id = p.id
JOIN measurement AS m ON m.id = a.measurement_id
WHERE p.environment_id = :env AND p.superseded_at IS NULL AND p.id > :after
ORDER BY p.id, m.id
"""

#: As ``STATE_SQL``, of the portfolios.
PORTFOLIO_STATE_SQL = """
SELECT COUNT(*), MAX(p.id)
FROM portfolio AS p
WHERE p.environment_id = :env AND p.superseded_at IS NULL
"""

#: A row if a SQLite database has portfolios at all: those of an older pfatune have no such table.
HAS_PORTFOLIOS_SQL = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'portfolio'"

#: The configuration of measurement ``:id``: JSON text, or plain data where the driver reads JSON.
CONFIG_SQL = "SELECT config FROM measurement WHERE id = :id"


def entries_from_rows(
    rows: Iterable[Sequence[Any]], config_of: Callable[[int], Any]
) -> Iterator[tuple[int, PfaShape, Entry]]:
    """The id, shape and entry of each row of ``SERVED_SQL``.

    ``config_of`` gives what ``CONFIG_SQL`` selects for a measurement's id; it is called once for
    each distinct configuration, in the course of the iteration.

    Raises:
        ShapeError, ConfigError, ValueError: a row holds what the store never writes.
    """
    configs: dict[str, KernelConfig] = {}
    times: dict[Any, str] = {}
    for row in rows:
        number, b, s2, s1, nq, nkv, qd, block_size, seq_digest, measurement, digest, cost, default_cost, verified = row
        config = configs.get(digest)
        if config is None:
            config = configs[digest] = _config(config_of(measurement))
        verified_at = times.get(verified)
        if verified_at is None:
            verified_at = times[verified] = _utc(verified)
        shape = PfaShape(b, s2, s1, nq, nkv, qd, block_size)
        yield number, shape, Entry(config, cost, default_cost, measurement, verified_at, seq_digest == "")


def portfolios_from_rows(
    rows: Iterable[Sequence[Any]], config_of: Callable[[int], Any]
) -> list[tuple[int, PfaFamily, tuple[Member, ...]]]:
    """The id, family and members of each portfolio in the rows of ``PORTFOLIOS_SQL``; ``config_of`` as above.

    Raises:
        ShapeError, ConfigError, ValueError: a row holds what the store never writes.
    """
    configs: dict[str, KernelConfig] = {}
    found: dict[int, tuple[PfaFamily, list[Member]]] = {}
    for number, b, s2, s1, nq, nkv, qd, block_size, measurement, digest in rows:
        config = configs.get(digest)
        if config is None:
            config = configs[digest] = _config(config_of(measurement))
        shape = PfaShape(b, s2, s1, nq, nkv, qd, block_size)
        found.setdefault(number, (shape.family, []))[1].append((b, s2, config))
    return [(number, family, tuple(members)) for number, (family, members) in found.items()]


def choose_environment(
    environments: Iterable[tuple[int, Mapping[str, str]]],
    soc: str,
    backend: str | None = None,
    pypto: str | None = None,
    *,
    kernel_digest: str,
) -> list[tuple[int, Mapping[str, str]]]:
    """The environments whose configurations may run here, best first: hardware before model, new before old.

    ``environments`` are ids with ``ENVIRONMENT_COLUMNS``. Only those of the same chip and kernel
    remain, and of the backend and PyPTO where these are given.
    """
    fit = [
        (number, environment)
        for number, environment in environments
        if environment["soc"] == soc
        and environment["kernel_digest"] == kernel_digest
        and backend in (None, environment["backend"])
        and pypto in (None, environment["pypto"])
    ]
    return sorted(fit, key=lambda one: (one[1]["backend"] == "npu", one[0]), reverse=True)


def _config(value: Any) -> KernelConfig:
    return KernelConfig.from_json(json.loads(value) if isinstance(value, str | bytes) else value)


def _utc(value: datetime | str) -> str:
    """ISO 8601 of a time, which SQLite keeps as text without its offset."""
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)).isoformat()
