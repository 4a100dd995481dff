"""``/healthz``, ``/readyz`` and ``/metrics``: for orchestrators and monitoring."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from .models import Health
from .problems import describe
from .state import StateDep

router = APIRouter(tags=["operation"])


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Whether the process answers; the database is not asked."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health, responses=describe(503))
def readyz(state: StateDep) -> Health:
    """Whether requests can be served: the database can be read."""
    state.store.ping()
    return Health(status="ok")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def metrics(state: StateDep) -> Response:
    """Metrics for Prometheus."""
    return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
