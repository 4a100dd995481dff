"""Every error over HTTP, in the one shape of RFC 9457 problem details."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from ...db.errors import (
    DatabaseFailedError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseUnreachableError,
    IdempotencyConflictError,
    QueueFullError,
    StoreError,
)
from ...kernel.shapes import ShapeError
from ...kernel.soc import UnknownSocError
from ..errors import one_line

MEDIA_TYPE = "application/problem+json"
_LONGEST_VALUE = 100  # characters of a wrong value that are shown
_WHERE = ("body", "query", "path", "header")
_FORMS = ("one", "many")  # tags of the forms that a body may have
_MOST_ERRORS = 20  # of one request that are shown


class FieldError(BaseModel):
    """One field that is wrong."""

    field: str = Field(description="Where it stands, for example `shapes.0.b`.")
    message: str = Field(description="What is wrong, its value, and what to give.")


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="A name that programs can rely on.", examples=["urn:pfatune:invalid"])
    title: str = Field(description="The same for every problem of this type.", examples=["The request is not valid"])
    status: int = Field(description="The HTTP status.", examples=[422])
    detail: str = Field(
        description="What is wrong this time, and what to do.", examples=["b is 0: give a whole number from 1 to 1024"]
    )
    errors: list[FieldError] | None = Field(default=None, description="The fields that are wrong, if some are.")


class ProblemError(Exception):
    """Ends a request with a problem. ``name`` becomes its type, ``urn:pfatune:<name>``."""

    def __init__(
        self,
        status: int,
        name: str,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status, self.name, self.title, self.detail = status, name, title, detail
        self.headers, self.errors = dict(headers or {}), list(errors)

    def response(self) -> Response:
        """The problem document."""
        document: dict[str, Any] = {
            "type": f"urn:pfatune:{self.name}",
            "title": self.title,
            "status": self.status,
            "detail": one_line(self.detail),
        }
        if self.errors:
            document["errors"] = self.errors
        # ASCII only, since a wrong value may hold half a surrogate pair.
        body = json.dumps(document, allow_nan=False).encode()
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def invalid(field: str, message: str) -> ProblemError:
    """The problem of one field that is wrong."""
    errors = [{"field": field, "message": one_line(message)}]
    return ProblemError(422, "invalid", "The request is not valid", message, errors=errors)


def not_found(what: str, remedy: str) -> ProblemError:
    """The problem of something that is not there."""
    return ProblemError(404, "not-found", "There is no such thing", f"{what} is not here: {remedy}")


def too_many(what: str, retry_after: int) -> ProblemError:
    """The problem of a limit that is reached for now."""
    headers = {"Retry-After": str(retry_after)}
    return ProblemError(429, "too-many", "A limit is reached", what, headers=headers)


def describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems of an endpoint, for the API's description."""
    texts = {
        401: "A token is needed, or this one is not valid.",
        403: "The request comes from a page of another site.",
        404: "There is no such thing.",
        409: "It was asked for differently before.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        429: "A limit is reached.",
        503: "The database cannot be had now.",
        507: "The database has no space left.",
    }
    texts |= {400: "The request cannot be read.", 422: "The request is not valid."}
    schema = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": texts[status], "content": schema} for status in statuses}


def install(app: FastAPI) -> None:
    """Let the app tell every error as a problem."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ShapeError, _shape)
    app.add_exception_handler(UnknownSocError, _soc)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(Exception, _unexpected)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.response()


async def _shape(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShapeError)
    return invalid(error.field, str(error)).response()


async def _soc(request: Request, error: Exception) -> Response:
    return invalid("soc", str(error)).response()


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if found and found[0]["type"] == "json_invalid":
        return unreadable(str(found[0].get("ctx", {}).get("error", ""))).response()
    errors = [{"field": _field(one), "message": _message(one)} for one in found[:_MOST_ERRORS]]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    detail = f"{errors[0]['message']}{more}" if errors else "the request is not valid"
    return ProblemError(422, "invalid", "The request is not valid", detail, errors=errors).response()


def unreadable(reason: str) -> ProblemError:
    """The problem of a body that is no JSON."""
    text = f"the body is not JSON ({reason or 'it cannot be parsed'}): send one JSON object"
    return ProblemError(400, "unreadable", "The request cannot be read", text)


def _field(error: Mapping[str, Any]) -> str:
    places = [str(place) for place in error["loc"]]
    if places and places[0] in _WHERE:
        del places[0]
        if places and places[0] in _FORMS:
            del places[0]
    return one_line(".".join(places))[:_LONGEST_VALUE] or "body"


def _message(error: Mapping[str, Any]) -> str:
    name = _field(error)
    if error["type"] == "missing":
        return f"{name} is missing: give it"
    if error["type"] == "extra_forbidden":
        return f"{name} is not known: leave it out"
    text = one_line(str(error["msg"]).removeprefix("Value error, "))
    if error["type"] == "value_error":
        return text
    remedy = text.removeprefix("Input should be ")
    return f"{name} is {shown(error.get('input'))}: {f'make it {remedy}' if remedy != text else text}"


def shown(value: object) -> str:
    """A wrong value, in bearable length."""
    text = repr(value)
    return one_line(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = one_line(request.url.path)[:_LONGEST_VALUE]
    if error.status_code == 404:
        return not_found(path, "GET /openapi.json lists what is").response()
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
        text = f"{one_line(request.method)[:_LONGEST_VALUE]} {path} is not possible: use {headers['Allow']}"
        return ProblemError(405, "method", "The method is not allowed", text, headers=headers).response()
    if error.status_code == 400:
        return unreadable("").response()
    return ProblemError(
        error.status_code, "failed", "The request failed", str(error.detail), headers=headers
    ).response()


def _methods(request: Request) -> list[str]:
    """What is possible at the request's path; each route knows only its own."""
    scope = dict(request.scope)
    return [
        method
        for method in ("GET", "POST", "DELETE")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


async def _store(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return from_store(error).response()


def from_store(error: StoreError) -> ProblemError:
    """The problem that an error of the store is."""
    text = str(error)
    if isinstance(error, IdempotencyConflictError):
        return ProblemError(409, "conflict", "The key was used for another request", text)
    if isinstance(error, QueueFullError):
        return too_many(text, 60)
    if isinstance(error, DatabaseFullError):
        return ProblemError(507, "no-space", "The database has no space left", text, headers={"Retry-After": "60"})
    seconds = 1 if isinstance(error, DatabaseLockedError) else 5
    if isinstance(error, DatabaseLockedError | DatabaseUnreachableError | DatabaseFailedError):
        headers = {"Retry-After": str(seconds)}
        return ProblemError(503, "database", "The database cannot be had now", text, headers=headers)
    logging.getLogger("pfatune.http").error("the store refused: %s", one_line(text))
    return ProblemError(503, "database", "The database cannot be used", text, headers={"Retry-After": "60"})


async def _unexpected(request: Request, error: Exception) -> Response:
    text = f"unexpected {type(error).__name__}: the service's log has the details"
    return ProblemError(500, "unexpected", "The service failed", text).response()
