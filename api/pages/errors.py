"""Errors of pages: a page for browsers, the API's problem document for everyone else."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from ..http.problems import MEDIA_TYPE
from .site import page

_KEPT = ("retry-after", "www-authenticate", "allow")


class PageRoute(APIRoute):
    """A route whose problems are pages for whoever accepts HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await answer(request)
            except Exception as error:
                if "text/html" not in request.headers.get("accept", ""):
                    raise
                problem = await _problem(request, error)
                if problem is None:
                    raise
                return _page(problem)

        return told


async def _problem(request: Request, error: Exception) -> Response | None:
    """What the app's handlers make of an error; None of one that nobody expected."""
    handlers = request.app.exception_handlers
    for kind in type(error).__mro__:
        if kind in handlers and kind is not Exception:
            found: Response = await handlers[kind](request, error)
            return found if found.media_type == MEDIA_TYPE else None
    return None


def _page(response: Response) -> Response:
    problem = json.loads(bytes(response.body))
    headers = {name: value for name, value in response.headers.items() if name in _KEPT}
    errors = problem.get("errors", [])
    return page("problem.html", status=response.status_code, headers=headers, problem=problem, errors=errors)
