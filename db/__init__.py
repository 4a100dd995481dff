"""The store of measurements and tuned configurations, in SQLite or PostgreSQL: every query of the project."""

from .errors import OpenError, PromotionError, StoreError
from .records import Environment, Kind, Measurement, TunedConfig, Verification
from .store import Store

__all__ = [
    "Environment",
    "Kind",
    "Measurement",
    "OpenError",
    "PromotionError",
    "Store",
    "StoreError",
    "TunedConfig",
    "Verification",
]
