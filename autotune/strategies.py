"""The search strategies by name."""

from __future__ import annotations

from collections.abc import Sequence

from .baselines import LocalSearch, RandomSearch
from .candidates import Candidates
from .model_search import ModelSearch
from .strategy import Strategy, StrategyFactory


def _tpe(candidates: Candidates, weights: Sequence[float], seed: int) -> Strategy:
    from .optuna_search import tpe  # Optuna takes most of a second to import

    return tpe(candidates, weights, seed)


def _gp(candidates: Candidates, weights: Sequence[float], seed: int) -> Strategy:
    from .optuna_search import gp

    return gp(candidates, weights, seed)


#: Those of ``strategy.NAMES``. Each is described where it is defined.
STRATEGIES: dict[str, StrategyFactory] = {
    "model": ModelSearch,
    "local": LocalSearch,
    "random": RandomSearch,
    "tpe": _tpe,
    "gp": _gp,
}
