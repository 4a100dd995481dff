"""What the endpoints share: the store, the view of what is served, and the service's settings."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from ...db.store import Store
from ..serving import ServedView
from .metrics import Metrics


@dataclass(frozen=True, slots=True)
class State:
    """One for each app.

    ``soc`` and ``backend`` are what a request means that names none; ``max_jobs`` is how many may
    be open at once. With ``needs_token`` nobody may write without one, not even while none exists.
    Streams end when ``stopping`` is set, so that the service can.
    """

    store: Store
    view: ServedView
    metrics: Metrics
    soc: str = "950PR"
    backend: str = "sim"
    max_jobs: int = 1000
    needs_token: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)


def state_of(request: Request) -> State:
    """The app's state."""
    state: State = request.app.state.pfatune
    return state


def _store(request: Request) -> Store:
    return state_of(request).store


StateDep = Annotated[State, Depends(state_of)]
StoreDep = Annotated[Store, Depends(_store)]
