"""From a template to an answer, and what every page has in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import jinja2
from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from ... import __version__
from ..cli.output import duration
from ..http.problems import not_found
from . import words

_HERE = Path(__file__).parent
_TYPES = {
    "pages.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_FILES = {name: (_HERE / "static" / name).read_bytes() for name in _TYPES}
_TAGS = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in _FILES.items()}


def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": words.number,
        "cost": words.cost,
        "unit": words.unit_name,
        "ratio": words.ratio,
        "when": words.when,
        "duration": duration,
        "shape": words.shape_text,
        "shape_query": words.shape_query,
        "family": words.family_text,
        "family_key": words.family_key,
        "field": words.field,
    }
    made.globals["version"] = __version__
    return made


_TEMPLATES = _templates()


def page(
    template: str, *, status: int = 200, headers: Mapping[str, str] | None = None, **context: object
) -> HTMLResponse:
    """A page; what it shows is escaped, wherever it comes from."""
    text = _TEMPLATES.get_template(template).render(context)
    # A lone surrogate in a query would fail to encode.
    body = text.encode("utf-8", "replace")
    return HTMLResponse(body, status, {"Cache-Control": "no-cache", **(headers or {})})


def base_url(request: Request) -> str:
    """Where the service is, as whoever asks knows it."""
    return str(request.base_url).rstrip("/")


def static(name: str, request: Request) -> Response:
    """One of the few files that the pages load.

    Raises:
        ProblemError: there is no such file.
    """
    if name not in _FILES:
        raise not_found(f"/static/{name}", "the pages load only their stylesheet, script and icon")
    headers = {"ETag": _TAGS[name], "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == _TAGS[name]:
        return Response(status_code=304, headers=headers)
    return Response(_FILES[name], headers=headers, media_type=_TYPES[name])
