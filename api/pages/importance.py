"""Which parameters decide how fast a configuration is, by PED-ANOVA over what was measured."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ...db.records import Environment, Kind, Measurement
from ...kernel.config import KernelConfig
from ...kernel.soc import soc

LEAST = 20  # configurations
_TOP = 0.25  # share of the best that all are compared with
_KEPT = 64  # results


@dataclass(frozen=True, slots=True)
class Importance:
    """Parameters with their shares, the largest first, which add up to 1; or why there are none."""

    shares: tuple[tuple[str, float], ...] = ()
    configurations: int = 0
    top: int = 0
    reason: str = ""


class ImportanceCache:
    """Remembers what was computed, until something newer was measured."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, object, int], Importance] = OrderedDict()
        self._busy = threading.Lock()

    def of(self, environment: Environment, rows: Sequence[Measurement]) -> Importance:
        """The importance in measurements of one workload in one environment, oldest first."""
        if not rows:
            return Importance(reason=_too_few(0))
        key = environment.digest, rows[-1].workload, rows[-1].id or 0
        # One at a time: a computation takes all of a core for a moment.
        with self._busy:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = importance(environment, rows)
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return found


def importance(environment: Environment, rows: Sequence[Measurement]) -> Importance:
    """How much each parameter has to do with being among the best quarter."""
    costs = _costs(rows)
    if len(costs) < LEAST:
        return Importance(reason=_too_few(len(costs)), configurations=len(costs))

    import optuna
    from optuna.distributions import IntDistribution
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    from ...autotune.space import space_for

    space = space_for([rows[-1].workload], soc(environment.soc), backend=environment.backend)
    # By their places in the lists, since choices beside each other act alike: as categories, which
    # know no order, a search of 40 is not enough to tell parameters from noise.
    distributions = {
        name: IntDistribution(0, len(values) - 1) for name, values in space.choices.items() if len(values) > 1
    }
    trials = []
    for config, value in costs.items():
        params = space.params(config)
        if params is not None:
            chosen = {name: space.choices[name].index(params[name]) for name in distributions}
            trials.append(create_trial(params=chosen, distributions=dict(distributions), values=[value]))
    if len(trials) < LEAST:
        return Importance(reason=_too_few(len(trials)), configurations=len(trials))
    values = sorted(trial.values[0] for trial in trials)
    cut = values[math.ceil(_TOP * len(trials)) - 1]
    best = sum(value <= cut for value in values)
    if best == len(trials):
        return Importance(reason="All configurations cost the same.", configurations=len(trials))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    study.add_trials(trials)
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(target_quantile=_TOP))
    shares = sorted(found.items(), key=lambda one: (-one[1], one[0]))
    return Importance(tuple(shares), len(trials), best)


def _costs(rows: Sequence[Measurement]) -> dict[KernelConfig, float]:
    """Log of the cost of each configuration; one that failed counts as slower than all that did not."""
    found: dict[KernelConfig, float | None] = {}
    for row in rows:
        if row.kind not in (Kind.ENVIRONMENT_FAULT, Kind.ILLEGAL):
            found[row.config] = None if row.cost is None else math.log(row.cost)
    worst = max((value for value in found.values() if value is not None), default=0.0)
    return {config: worst + 1.0 if value is None else value for config, value in found.items()}


def _too_few(count: int) -> str:
    return f"It takes {LEAST} measured configurations to tell, and there are {count}."
