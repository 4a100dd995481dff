"""Which configuration to try next: a strategy, asked in configurations of the kernel's space.

What is learnt is rebuilt from stored measurements, so resuming and starting are one mechanism. Only
legal, canonical configurations that were neither measured nor are being measured are proposed:
illegal and repeated suggestions cost microseconds, trials seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..kernel.config import KernelConfig, canonical
from .kernel_candidates import KernelCandidates
from .space import Params, Space
from .strategies import STRATEGIES
from .strategy import DEFAULT


class Search:
    """Proposes configurations of a space and learns from their costs.

    Args:
        space: what may be proposed.
        starts: what is proposed first, in this order; illegal ones are passed over.
        weights: of the workloads, in the order of the costs that are learnt.
        strategy: a name of ``strategies.STRATEGIES``.
        seed: makes the proposals repeatable.

    Raises:
        ValueError: there is no strategy of that name.
    """

    def __init__(
        self,
        space: Space,
        starts: Iterable[KernelConfig],
        *,
        weights: Sequence[float] = (1.0,),
        strategy: str = DEFAULT,
        seed: int = 0,
    ) -> None:
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}: use one of {', '.join(STRATEGIES)}")
        self._candidates = KernelCandidates(space)
        self._strategy = STRATEGIES[strategy](self._candidates, weights, seed)
        self._starts = [config for config in starts if space.legal(config)]
        self._known: set[KernelConfig] = set()
        self._pending: set[KernelConfig] = set()

    @property
    def promise(self) -> float | None:
        """What the last proposal is expected to gain: mean log of cost over the workloads; None if not known."""
        return self._strategy.promise

    def start_with(self, configs: Iterable[KernelConfig]) -> None:
        """Propose these next, after what is to be proposed first already."""
        self._starts += [config for config in configs if self._candidates.space.legal(config)]

    def propose(self) -> KernelConfig | None:
        """A configuration to measure, or None if nothing new is left to propose.

        It counts as being measured until ``learn`` or ``forget`` is called with it.
        """
        while self._starts:
            config = self._starts.pop(0)
            if config not in self._known and config not in self._pending:
                self._pending.add(config)
                point = self._candidates.point(config)
                if point is not None:
                    self._strategy.reserve(point)
                return config
        point = self._strategy.propose()
        return None if point is None else self._candidates.config(point)

    def learn(self, config: KernelConfig, costs: Sequence[float] | None, seconds: float) -> None:
        """What a configuration cost on each workload, or None if it failed, and the seconds of its trial."""
        self._pending.discard(config)
        self._known.add(config)
        point = self._candidates.point(config)
        if point is not None:
            self._strategy.learn(point, costs, seconds)

    def believe(self, config: KernelConfig, costs: Sequence[float]) -> None:
        """What a configuration may cost, judged by measurements taken elsewhere."""
        point = self._candidates.point(config)
        if point is not None and self._candidates.space.legal(config):
            self._strategy.believe(point, costs)

    def forget(self, config: KernelConfig) -> None:
        """Take back a proposal that was not measured; it may be proposed again."""
        self._pending.discard(config)
        point = self._candidates.point(config)
        if point is not None:
            self._strategy.forget(point)


def starting_points(space: Space, default: KernelConfig) -> Iterator[KernelConfig]:
    """Where to look first: the default, then what a kernel engineer would try by hand.

    Larger s2 tiles do fewer, longer tasks, whose dispatch costs less. A softmax tile as wide as
    the s2 tile copies S in at once. A P·V tile longer than a page reads P in larger pieces, but
    V has to be gathered first, in copies that a deep vec_nbuffer merges into few tasks.
    """
    yield canonical(default, space.family)
    base = space.params(canonical(default, space.family))
    if base is None:
        return
    wide: Params = {"v1_n": 1024, "c2_k_l1": 1024, "vec_nbuffer": 8}
    changes: tuple[Params, ...] = (
        {**wide, "s2_tile": 2048, "cube_nbuffer": 2, "unroll_list": "4,1"},
        {**wide, "s2_tile": 1024},
        {**wide, "s2_tile": 512},
        {**wide, "s2_tile": 256},
        {"s2_tile": 1024, "cube_nbuffer": 2},
        {"s2_tile": 256, "v1_n": 256},
    )
    for change in changes:
        params = {**base, **change}
        if params["s2_tile"] in space.choices["s2_tile"]:
            for name in ("v1_n", "c2_k_l1"):
                params[name] = min(int(params[name]), int(params["s2_tile"]))
            yield space.config(params)
