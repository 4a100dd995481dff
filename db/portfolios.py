"""The portfolios of families: which are served, which were, and the evidence for every member."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from ..kernel.ladder import Member
from ..kernel.shapes import PfaFamily
from .engine import Database
from .errors import NotMeasuredError, PortfolioError
from .promotion import check_verification, locked_environment, row_in
from .records import Environment, Measurement, Verification
from .rows import (
    Row,
    environment_of,
    is_family,
    measurement_of,
    prefixed,
    unprefixed,
    verification_of,
)
from .tables import FAMILY_COLUMNS, UtcNow, environment, measurement, portfolio, portfolio_member, verification


@dataclass(frozen=True, slots=True)
class PortfolioTerms:
    """What a portfolio was asked to be, and how good it is; regrets are 0.05 for 5 %.

    ``limit`` and ``max_configs`` are what was asked for, one of them at least. ``worst`` is the largest
    regret of the shapes it was chosen for; ``held_out_median`` and ``held_out_worst`` are those of
    shapes that were left out in turn. None where a cost is not known. ``proven``: none is better.

    Raises:
        ValueError: nothing was asked for, or a number is out of range.
    """

    limit: float | None
    max_configs: int | None
    worst: float | None
    held_out_median: float | None = None
    held_out_worst: float | None = None
    proven: bool = True

    def __post_init__(self) -> None:
        if self.limit is None and self.max_configs is None:
            raise ValueError("neither limit nor max_configs is given: say what the portfolio was chosen by")
        if self.max_configs is not None and self.max_configs < 1:
            raise ValueError(f"max_configs is {self.max_configs}: give 1 at least")
        for name in ("limit", "worst", "held_out_median", "held_out_worst"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value!r}: give a finite number from 0")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A member: a configuration measured at a shape of the family, and the check of its numbers."""

    measurement: Measurement
    verification: Verification

    @property
    def member(self) -> Member:
        """As the ladder takes it."""
        shape = self.measurement.workload.shape
        return shape.b, shape.s2, self.measurement.config


@dataclass(frozen=True, slots=True)
class StoredPortfolio:
    """A portfolio with its evidence. ``superseded_at`` is None while it is served."""

    family: PfaFamily
    environment: Environment
    terms: PortfolioTerms
    anchors: tuple[Anchor, ...]
    id: int
    created_at: datetime
    superseded_at: datetime | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(anchor.member for anchor in self.anchors)


class Portfolios:
    """The portfolios in one database: one current for each environment and family. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def save(
        self, env_id: int, family: PfaFamily, evidence: Iterable[tuple[int, int]], terms: PortfolioTerms
    ) -> StoredPortfolio:
        """Serve a portfolio in place of the family's, which is kept as history.

        ``evidence`` are the ids of a measurement and a verification for each member. To save what is
        already current changes nothing and returns it.

        Raises:
            UnknownEnvironmentError, UnknownRowError: an id is not in the store.
            PromotionError: a row is of another environment, was not measured well, or the
                configuration was not verified well for the family.
            PortfolioError: there is no member, two are of one shape, or one is of another family
                or was measured with short requests.
        """
        pairs = sorted(set(evidence))
        with self.database.write() as connection:
            locked_environment(connection, env_id)
            _check(family, [_anchor(connection, env_id, *pair) for pair in pairs])
            for current in _find(connection, env_id, family):
                same = [(one.measurement.id, one.verification.id) for one in current.anchors] == pairs
                if same and current.terms == terms:
                    return current
                connection.execute(update(portfolio).where(portfolio.c.id == current.id).values(superseded_at=UtcNow()))
            statement = insert(portfolio).values(_row_of(env_id, family, terms)).returning(portfolio.c.id)
            added = connection.execute(statement).scalar_one()
            connection.execute(
                insert(portfolio_member),
                [{"portfolio_id": added, "measurement_id": one, "verification_id": other} for one, other in pairs],
            )
            (saved,) = _find(connection, env_id, family)
        return saved

    def current(self, env_id: int, family: PfaFamily) -> StoredPortfolio | None:
        """The portfolio that is served for a family in an environment; None if there is none."""
        with self.database.read() as connection:
            return next(iter(_find(connection, env_id, family)), None)

    def list(self, env_id: int | None = None, *, history: bool = False) -> Sequence[StoredPortfolio]:
        """The portfolios that are served, newest first; with ``history`` those before them too."""
        with self.database.read() as connection:
            return _find(connection, env_id, None, history=history)


def _check(family: PfaFamily, anchors: Sequence[Anchor]) -> None:
    def refuse(detail: str) -> PortfolioError:
        return PortfolioError(family=family, detail=detail)

    if not anchors:
        raise refuse("it has no member, give one at least")
    sizes = set()
    for one in anchors:
        workload = one.measurement.workload
        if one.measurement.cost is None:
            raise NotMeasuredError(row_id=one.measurement.id, kind=one.measurement.kind)
        if workload.shape.family != family:
            raise refuse(f"measurement {one.measurement.id} is of {workload.shape.family}, give one of the family")
        if workload.actual_seq is not None:
            raise refuse(f"measurement {one.measurement.id} had short requests, give one with all at s2 tokens")
        if (workload.shape.b, workload.shape.s2) in sizes:
            raise refuse(f"two members are of b={workload.shape.b} s2={workload.shape.s2}, give one")
        sizes.add((workload.shape.b, workload.shape.s2))
        check_verification(one.measurement, one.verification)


def _anchor(connection: Connection, env_id: int, measurement_id: int, verification_id: int) -> Anchor:
    return Anchor(
        measurement_of(row_in(connection, measurement, measurement_id, env_id)),
        verification_of(row_in(connection, verification, verification_id, env_id)),
    )


def _row_of(env_id: int, family: PfaFamily, terms: PortfolioTerms) -> dict[str, Any]:
    return family.to_json() | {
        "environment_id": env_id,
        "regret_limit": terms.limit,
        "max_configs": terms.max_configs,
        "worst_regret": terms.worst,
        "held_out_median": terms.held_out_median,
        "held_out_worst": terms.held_out_worst,
        "proven": terms.proven,
    }


def _find(
    connection: Connection, env_id: int | None, family: PfaFamily | None, *, history: bool = False
) -> list[StoredPortfolio]:
    """The portfolios that meet every condition given, newest first, members in the order of their measurements."""
    query = (
        select(
            *prefixed(portfolio, "p_"),
            *prefixed(environment, "e_"),
            *prefixed(measurement, "m_"),
            *prefixed(verification, "v_"),
        )
        .join_from(portfolio, environment, environment.c.id == portfolio.c.environment_id)
        .join(portfolio_member, portfolio_member.c.portfolio_id == portfolio.c.id)
        .join(measurement, measurement.c.id == portfolio_member.c.measurement_id)
        .join(verification, verification.c.id == portfolio_member.c.verification_id)
    )
    if env_id is not None:
        query = query.where(portfolio.c.environment_id == env_id)
    if family is not None:
        query = query.where(is_family(portfolio, family))
    if not history:
        query = query.where(portfolio.c.superseded_at.is_(None))
    found: dict[int, list[Row]] = {}
    for row in connection.execute(query.order_by(portfolio.c.id.desc(), measurement.c.id)).mappings():
        found.setdefault(row["p_id"], []).append(row)
    return [_portfolio_of(rows) for rows in found.values()]


def _portfolio_of(rows: Sequence[Row]) -> StoredPortfolio:
    row = unprefixed(rows[0], "p_", portfolio)
    return StoredPortfolio(
        family=PfaFamily(**{name: row[name] for name in FAMILY_COLUMNS}),
        environment=environment_of(unprefixed(rows[0], "e_", environment)),
        terms=PortfolioTerms(
            limit=row["regret_limit"],
            max_configs=row["max_configs"],
            worst=row["worst_regret"],
            held_out_median=row["held_out_median"],
            held_out_worst=row["held_out_worst"],
            proven=row["proven"],
        ),
        anchors=tuple(
            Anchor(
                measurement_of(unprefixed(one, "m_", measurement)),
                verification_of(unprefixed(one, "v_", verification)),
            )
            for one in rows
        ),
        id=row["id"],
        created_at=row["created_at"],
        superseded_at=row["superseded_at"],
    )
