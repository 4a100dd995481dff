"""The store of measurements and tuned configurations, in SQLite or PostgreSQL: every query of the project."""

from .errors import (
    IdempotencyConflictError,
    LeaseLostError,
    OpenError,
    PromotionError,
    QueueFullError,
    StoreError,
    TokenExistsError,
)
from .job_records import Job, JobRequest, JobState, Lease
from .jobs import JobQueue
from .portfolios import PortfolioTerms, StoredPortfolio
from .records import Environment, Kind, Measurement, TunedConfig, Verification
from .store import Store
from .tokens import TokenRecord

__all__ = [
    "Environment",
    "IdempotencyConflictError",
    "Job",
    "JobQueue",
    "JobRequest",
    "JobState",
    "Kind",
    "Lease",
    "LeaseLostError",
    "Measurement",
    "OpenError",
    "PortfolioTerms",
    "PromotionError",
    "QueueFullError",
    "Store",
    "StoreError",
    "StoredPortfolio",
    "TokenExistsError",
    "TokenRecord",
    "TunedConfig",
    "Verification",
]
