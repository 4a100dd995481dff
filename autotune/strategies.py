"""The search strategies by name."""

from __future__ import annotations

from .baselines import LocalSearch, RandomSearch, gp, tpe
from .model_search import ModelSearch
from .strategy import StrategyFactory

DEFAULT = "model"

#: Each is described where it is defined.
STRATEGIES: dict[str, StrategyFactory] = {
    "model": ModelSearch,
    "local": LocalSearch,
    "random": RandomSearch,
    "tpe": tpe,
    "gp": gp,
}
