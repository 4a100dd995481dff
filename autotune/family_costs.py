"""What a family's configurations cost at its tuned shapes: read from the store, filled in by trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..db.records import Kind, Measurement, Verification
from ..db.store import Store
from ..kernel.config import KernelConfig
from ..kernel.ladder import Member
from ..kernel.shapes import PfaFamily, PfaShape, Workload
from .backend import Backend
from .errors import WorkerSetupError
from .known import Known
from .landscape import Landscape
from .portfolio import Costs, Size, choose
from .trial import TrialPool, TrialResult, first_line

_FAULT_RETRIES = 2  # of a trial that ended in an environment fault
_TICK = 0.5  # seconds between looks at whether to stop


class FamilyCosts:
    """Measurements of one family in one environment, at the shapes that are tuned with every request full.

    ``tuned`` is what is served for each of these.
    """

    def __init__(self, store: Store, env_id: int, family: PfaFamily) -> None:
        self.store = store
        self.env_id = env_id
        self.family = family
        served = [(shape, entry) for shape, entry in store.served(env_id)[1] if entry.full and shape.family == family]
        self.tuned = {Workload(shape): entry.config for shape, entry in sorted(served, key=lambda one: one[0])}
        self._known = Known(tuple(self.tuned))
        for row in store.measurements(env_id, family=family):
            if row.kind is not Kind.ENVIRONMENT_FAULT and row.workload in self.tuned:
                self._known.add(row)
        for config in self._known.configs:
            verdict = store.verification(env_id, family, config.digest)
            if verdict is not None:
                self._known.verdicts[config] = verdict

    def costs(self, *, unverified: bool = False) -> Costs:
        """What is known of verified configurations, of those without a verdict too if so wanted.

        Raises:
            ValueError: that is nothing.
        """
        known: dict[KernelConfig, dict[Size, float]] = {}
        for config in self._known.configs:
            verdict = self._known.verdicts.get(config)
            if verdict.passed if verdict else unverified:
                costs = {_size(row.workload): row.cost for row in self._known.rows(config) if row.cost is not None}
                known[config] = costs
        sizes = {size for row in known.values() for size in row}
        return Costs.of(sorted(sizes), known)

    @property
    def unmeasured(self) -> dict[KernelConfig, tuple[Workload, ...]]:
        """The tuned configurations that were not measured at every tuned shape, and where."""
        found = {config: self._known.missing(config) for config in dict.fromkeys(self.tuned.values())}
        return {config: missing for config, missing in found.items() if missing}

    def evidence(self, anchors: Iterable[Member]) -> list[tuple[int, int]]:
        """The ids of the measurement and the verification of each anchor."""
        ids = []
        for b, s2, config in anchors:
            row = self._known.row(config, Workload(PfaShape(b, s2, **self.family.to_json())))
            verdict = self._known.verdicts[config]
            assert row is not None
            assert row.id is not None
            assert verdict.id is not None
            ids.append((row.id, verdict.id))
        return ids

    def is_verified(self, config: KernelConfig) -> bool:
        """Whether a configuration's numbers were checked, well or not."""
        return config in self._known.verdicts

    def add(self, rows: Sequence[Measurement]) -> None:
        """Store measurements and take them in."""
        for row, row_id in zip(rows, self.store.add(self.env_id, rows), strict=True):
            if row.kind is not Kind.ENVIRONMENT_FAULT:
                self._known.add(replace(row, id=row_id))

    def add_verdict(self, verdict: Verification) -> None:
        """Store a verdict and take it in; what was measured of a configuration with wrong numbers is void."""
        verdict = replace(verdict, id=self.store.add_verification(self.env_id, verdict))
        self._known.verdicts[verdict.config] = verdict
        if not verdict.passed:
            timed = [row for row in self._known.rows(verdict.config) if row.cost is not None]
            message = f"failed its check: {verdict.message}"
            self.add([Measurement(row.workload, row.config, Kind.WRONG_RESULT, None, message=message) for row in timed])


@dataclass(frozen=True, slots=True)
class Filling:
    """How far the trials are: ``what`` is ``time`` or ``verify``, ``last`` the one that ended last."""

    what: str
    done: int
    total: int
    last: str = ""


class Filler:
    """Fills in what a portfolio needs to know. Everything that ends is stored: a run that was stopped goes on.

    ``watch`` is called after every change, when every result that came in is stored; it may raise to stop.
    """

    def __init__(
        self,
        known: FamilyCosts,
        backend: Backend,
        pool: TrialPool,
        *,
        parallel: int = 1,
        watch: Callable[[Filling], None] = lambda filling: None,
    ) -> None:
        self._known, self._backend, self._pool = known, backend, pool
        self._parallel, self._watch = parallel, watch

    def measure(self) -> None:
        """Time each shape's tuned configuration at all other tuned shapes.

        Raises:
            WorkerSetupError: a trial cannot be run, whatever the configuration.
            StoreError: the database failed; what was stored before stays.
        """
        missing = self._known.unmeasured

        def take(config: KernelConfig, result: TrialResult) -> None:
            rows = self._backend.measurements(config, missing[config], result, study="portfolio")
            self._known.add(rows)

        self._run("time", list(missing), lambda config: self._backend.time_job(config, missing[config]), take)

    def verify(self, limit: float | None, max_configs: int | None) -> None:
        """Check the numbers of what would be chosen, until all of it is known to be right.

        A configuration with wrong numbers is out, and the choice made anew. After this ``choose``
        over ``FamilyCosts.costs`` has nothing better to choose from among what was not checked.

        Raises:
            ValueError: as ``portfolio.choose``.
            WorkerSetupError, StoreError: as ``measure``.
        """
        family = self._known.family

        def take(config: KernelConfig, result: TrialResult) -> None:
            self._known.add_verdict(self._backend.verification(config, family, result))

        while True:
            chosen = choose(self._known.costs(unverified=True), limit, max_configs)
            unchecked = [config for config in chosen.configs if not self._known.is_verified(config)]
            if not unchecked:
                return
            self._run("verify", unchecked, lambda config: self._backend.verify_job(config, family), take)

    def _run(
        self,
        what: str,
        configs: Sequence[KernelConfig],
        job_of: Callable[[KernelConfig], dict[str, object]],
        take: Callable[[KernelConfig, TrialResult], None],
    ) -> None:
        queue, running, faults, done = list(configs), dict[int, KernelConfig](), dict[KernelConfig, int](), 0
        timeout = self._backend.verify_timeout if what == "verify" else None
        self._watch(Filling(what, done, len(configs)))
        try:
            while queue or running:
                while queue and len(running) < self._parallel:
                    config = queue.pop(0)
                    running[self._pool.submit(job_of(config), timeout=timeout)] = config
                last, fault = "", ""
                for result in self._pool.wait(_TICK):
                    config = running.pop(result.trial)
                    if result.kind is Kind.ENVIRONMENT_FAULT:
                        faults[config] = faults.get(config, 0) + 1
                        queue.append(config)
                        if faults[config] > _FAULT_RETRIES:
                            fault = first_line(result.message)
                        continue
                    take(config, result)
                    done += 1
                    last = f"{config.digest} {result.kind}"
                if fault:
                    raise WorkerSetupError(f"a trial could not be run ({fault}): run `pfatune doctor`")
                self._watch(Filling(what, done, len(configs), last))
        finally:
            for trial in running:
                self._pool.kill(trial)
            while self._pool.running:
                self._pool.wait(_TICK)


def costs_of(landscape: Landscape) -> Costs:
    """The costs that a landscape recorded with every request full.

    Raises:
        ValueError: there are none.
    """
    full = [(at, _size(workload)) for at, workload in enumerate(landscape.workloads) if workload.actual_seq is None]
    known = {
        point.config: {size: point.costs[at] for at, size in full}
        for point in landscape.points
        if point.kind is Kind.OK
    }
    return Costs.of([size for _, size in full], known)


def _size(workload: Workload) -> Size:
    return workload.shape.b, workload.shape.s2
