"""The app: its endpoints, what stands before them, and what goes on beside them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from ... import __version__
from ...db.errors import StoreError
from ...db.store import Store
from ..errors import one_line
from ..pages import routes as pages
from ..serving import ServedView
from . import configs, health, jobs, measurements, problems
from .guard import Guard
from .metrics import Measured, Metrics
from .problems import Problem
from .state import State

MAX_BODY = 1 << 20  # bytes
REFRESH_SECONDS = 0.5
_DESCRIPTION = """\
Tuned configurations of PyPTO's FP8 paged flash attention kernel for Ascend 950.

Costs of backend `sim` are cycles of PyPTO's cost model: they rank configurations and are no times. Nothing has run on
hardware. Every error is a problem document (RFC 9457).
"""


def create_app(
    store: Store,
    *,
    soc: str = "950PR",
    backend: str = "sim",
    max_jobs: int = 1000,
    max_body: int = MAX_BODY,
    hosts: Sequence[str] = (),
    needs_token: bool = False,
    refresh_seconds: float = REFRESH_SECONDS,
) -> FastAPI:
    """The service over a store, which stays the caller's to close.

    ``hosts``: names under which it may be called, empty for any. ``needs_token``: whether writing
    needs a token even while none exists. ``refresh_seconds``: how long a new tuned configuration may
    take to be served.
    """
    view, metrics = ServedView(), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with suppress(StoreError):  # told below, and tried again
            view.take(await run_in_threadpool(view.news, store))
        refreshing = asyncio.create_task(_keep_fresh(view, store, metrics, refresh_seconds))
        yield
        refreshing.cancel()
        with suppress(asyncio.CancelledError):
            await refreshing

    app = FastAPI(
        title="pfatune",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        # Swagger's pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": Problem}},
    )
    app.state.pfatune = State(store, view, metrics, soc, backend, max_jobs, needs_token)
    metrics.watch(store, lambda: len(view))
    for part in (configs, jobs, measurements, health):
        app.include_router(part.router)
    pages.install(app)
    problems.install(app)
    app.add_middleware(Guard, hosts=hosts, max_body=max_body)
    app.add_middleware(Measured, metrics=metrics)
    return app


async def _keep_fresh(view: ServedView, store: Store, metrics: Metrics, seconds: float) -> None:
    """Take in what is promoted, for as long as the service runs; the last answers stay while the store is away."""
    log = logging.getLogger("pfatune.http")
    failing = False
    while True:
        try:
            news = await run_in_threadpool(view.news, store)
            if news:
                view.take(news)
            metrics.refreshed.set(time.time())
            failing = False
        except Exception as error:  # whatever it is, what was served until now is better than nothing
            if not failing:
                log.warning("served configurations are not refreshed: %s", one_line(str(error)))
            failing = True
        await asyncio.sleep(seconds)
