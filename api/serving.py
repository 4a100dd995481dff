"""What is served, held in memory: the ladder of every environment, kept up with the store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from ..db.records import Environment
from ..db.store import Store
from ..kernel import snapshot
from ..kernel.ladder import Answer, Entry, Ladder, Member, Provenance
from ..kernel.shapes import PfaFamily, PfaShape
from ..kernel.source import kernel_digest

_RUNGS: tuple[Provenance, ...] = get_args(Provenance)


@dataclass(frozen=True, slots=True)
class Served:
    """The configuration that a shape gets, why, and where that was measured (None: the default)."""

    answer: Answer
    environment: Environment | None


@dataclass(frozen=True, slots=True)
class Document:
    """A snapshot as it is sent, and the tag that changes with it."""

    body: bytes
    tag: str


@dataclass(slots=True)
class _Rung:
    key: int
    environment: Environment
    ladder: Ladder = field(default_factory=Ladder)
    last: int = 0  # the newest row that was taken in
    last_portfolio: int = 0  # and the newest portfolio
    document: tuple[tuple[int, int], Document] | None = None  # and the two it is of


@dataclass(frozen=True, slots=True)
class News:
    """What one environment serves that the view does not know yet.

    ``last`` is the newest row of it, ``last_portfolio`` the newest portfolio.
    """

    key: int
    environment: Environment
    last: int
    entries: list[tuple[PfaShape, Entry]]
    last_portfolio: int = 0
    portfolios: tuple[tuple[PfaFamily, tuple[Member, ...]], ...] = ()


class ServedView:
    """Answers from memory, of what was measured with this very kernel.

    Lookups and ``take`` belong to one thread, ``news`` and ``snapshot`` may run in any.
    """

    def __init__(self) -> None:
        self._rungs: dict[int, _Rung] = {}
        self._chosen: dict[tuple[str, str | None, str | None], tuple[_Rung, ...]] = {}
        self._busy = threading.Lock()  # no ladder changes while it is written out

    def news(self, store: Store) -> list[News]:
        """What was promoted, and which portfolios were stored, since the last ``take``.

        Raises:
            StoreError: the store cannot be read.
        """
        found = []
        for key, environment in store.served_environments():
            if environment.kernel_digest == kernel_digest():
                known = self._rungs.get(key)
                last, entries = store.served(key, known.last if known else 0)
                newest, portfolios = store.served_portfolios(key, known.last_portfolio if known else 0)
                if entries or portfolios:
                    found.append(News(key, environment, last, entries, newest, tuple(portfolios)))
        return found

    def take(self, news: Sequence[News]) -> bool:
        """Serve what is new; False if it has to be tried again, since a snapshot is being written."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            for one in news:
                if one.key not in self._rungs:
                    self._rungs[one.key] = _Rung(one.key, one.environment)
                    self._chosen = {}
                rung = self._rungs[one.key]
                for shape, entry in one.entries:
                    rung.ladder.add(shape, entry)
                if one.last_portfolio > rung.last_portfolio:
                    for family, members in one.portfolios:
                        rung.ladder.set_portfolio(family, members)
                    rung.last_portfolio = one.last_portfolio
                rung.ladder.settle()
                rung.last = max(rung.last, one.last)
        finally:
            self._busy.release()
        return True

    def __len__(self) -> int:
        """Entries over all environments."""
        return sum(len(rung.ladder) for rung in self._rungs.values())

    def lookup(self, shape: PfaShape, soc: str, backend: str | None = None, pypto: str | None = None) -> Served:
        """The best rung that any matching environment has: npu before sim, newer ones first."""
        best: Served | None = None
        rank = len(_RUNGS)
        for rung in self._matching(soc, backend, pypto):
            answer = rung.ladder.lookup(shape)
            found = _RUNGS.index(answer.provenance)
            if found < rank:
                best, rank = Served(answer, rung.environment), found
                if found == 0:
                    break
        if best is None:
            return Served(Ladder().lookup(shape), None)
        return Served(best.answer, None) if best.answer.provenance == "default" else best

    def snapshot(self, soc: str, backend: str | None = None, pypto: str | None = None) -> Document:
        """Everything served in the first matching environment; an empty document if there is none."""
        rungs = self._matching(soc, backend, pypto)
        if not rungs:
            nowhere = Environment(backend or "sim", soc, pypto or "", "", kernel_digest(), "")
            return _document(nowhere, Ladder())
        rung = rungs[0]
        with self._busy:
            newest = rung.last, rung.last_portfolio
            if rung.document is None or rung.document[0] != newest:
                rung.document = newest, _document(rung.environment, rung.ladder)
            return rung.document[1]

    def environments(self) -> list[Environment]:
        """Where something was tuned with this kernel, newest first."""
        return [self._rungs[key].environment for key in sorted(self._rungs, reverse=True)]

    def ladder(self, digest: str) -> Ladder | None:
        """What is served in one environment."""
        return next((r.ladder for r in self._rungs.values() if r.environment.digest == digest), None)

    def _matching(self, soc: str, backend: str | None, pypto: str | None) -> tuple[_Rung, ...]:
        key = (soc, backend, pypto)
        found = self._chosen.get(key)
        if found is None:
            rungs = [
                rung
                for rung in self._rungs.values()
                if rung.environment.soc == soc
                and backend in (None, rung.environment.backend)
                and pypto in (None, rung.environment.pypto)
            ]
            rungs.sort(key=lambda rung: (rung.environment.backend != "npu", -rung.key))
            found = tuple(rungs)
            if len(self._chosen) < 1000:
                self._chosen[key] = found
        return found


def _document(environment: Environment, ladder: Ladder) -> Document:
    facts = {**environment.to_json(), "digest": environment.digest}
    body = snapshot.dump(facts, environment.unit, ladder)
    return Document(body, snapshot.checksum_of(body))
