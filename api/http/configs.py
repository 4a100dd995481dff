"""``GET /config`` and ``GET /configs``: what is served."""

from __future__ import annotations

import gzip
import json
import re
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ...db.errors import StoreError
from ...db.job_records import JobRequest
from ...kernel.config import KernelConfig
from ...kernel.legality import violations
from ...kernel.shapes import PfaShape, ShapeError, Workload
from ...kernel.soc import SOCS
from ..errors import one_line
from ..serving import Document, Served
from .auth import require_token_to_enqueue
from .models import DEFAULT_TRIALS, ConfigOut, ConfigQuery
from .problems import describe, invalid
from .state import State, StateDep, state_of

router = APIRouter(tags=["configurations"])

SocQuery = Annotated[Literal["950PR", "950DT"] | None, Query(description="The chip; left out: the service's.")]
BackendQuery = Annotated[Literal["sim", "npu"] | None, Query(description="Only what was measured so.")]
PyptoQuery = Annotated[
    str | None, Query(min_length=1, max_length=64, description="Only what this version of PyPTO was measured with.")
]

_SHAPE_FIELDS = ("b", "s2", "s1", "nq", "nkv", "qd", "block_size")
_MOST_PARAMETERS = 50
_OTHER_SHAPE = "a tuned configuration of another shape, not measured at this one: POST /tune finds this shape's own"
_NOTES = {
    "exact": "",
    "bucket": _OTHER_SHAPE,
    "nearest": _OTHER_SHAPE,
    "portfolio": "the family's common configuration, not measured at this shape: POST /tune finds this shape's own",
    "default": "never tuned: this is the kernel's own configuration; POST /tune finds a faster one",
}


def _parameters() -> list[dict[str, Any]]:
    """The query's description: the endpoint reads it by itself, which takes a fifth of the time."""
    schema = ConfigQuery.model_json_schema()
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": field.get("description", ""),
            "schema": {key: value for key, value in field.items() if key not in ("description", "title")},
        }
        for name, field in schema["properties"].items()
    ]


@router.get(
    "/config",
    response_class=Response,
    responses={200: {"model": ConfigOut, "description": "The configuration."}, **describe(401, 403, 422)},
    openapi_extra={"parameters": _parameters()},
)
async def config(request: Request) -> Response:
    """The configuration to run a shape with, and where it comes from.

    Every legal shape gets one: tuned for it (`exact`), for its bucket (`bucket`) or for a shape
    close by (`nearest`), the family's common one (`portfolio`), or the kernel's own (`default`).
    """
    state = state_of(request)
    query = _quick_query(request.scope["query_string"]) or _checked_query(request)
    shape, soc, backend, pypto, enqueue = query
    served = state.view.lookup(shape, soc or state.soc, backend, pypto)
    provenance = served.answer.provenance
    state.metrics.looked_up(provenance)
    job, note = "null", _note(served, shape, soc or state.soc)
    if enqueue:
        await run_in_threadpool(require_token_to_enqueue, request)
        if provenance != "exact":
            job, problem = await run_in_threadpool(_enqueue, state, shape, soc or state.soc, backend)
            note = problem or note
    return Response(_document(served, shape, soc or state.soc, job, note), media_type="application/json")


Asked = tuple[PfaShape, str | None, str | None, str | None, bool]


def _quick_query(text: bytes) -> Asked | None:
    """The query if it holds nothing but whole numbers of a legal shape; None: look closer."""
    fields: dict[bytes, int] = {}
    for part in text.split(b"&"):
        name, _, value = part.partition(b"=")
        if not value.isdigit() or len(value) > 9 or name in fields:
            return None
        fields[name] = int(value)
    try:
        shape = PfaShape(**{name.decode("ascii"): value for name, value in fields.items()})
    except (ShapeError, TypeError, UnicodeDecodeError):
        return None
    return shape, None, None, None, False


def _checked_query(request: Request) -> Asked:
    """The query, checked field by field.

    Raises:
        RequestValidationError: with every field that is wrong.
    """
    text = request.scope["query_string"].decode("ascii", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        text = f"the query has over {_MOST_PARAMETERS} parameters: give each at most once"
        raise invalid("query", text) from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name in fields:
            raise RequestValidationError([_error(name, value, "give it once")])
        fields[name] = value
    try:
        query = ConfigQuery.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    return query.shape(), query.soc, query.backend, query.pypto, query.enqueue


def _error(name: str, value: str, message: str) -> dict[str, Any]:
    return {"type": "repeated", "loc": ("query", name), "msg": message, "input": value}


def _note(served: Served, shape: PfaShape, soc: str) -> str:
    note = _NOTES[served.answer.provenance]
    if served.answer.provenance == "default":
        broken = violations(served.answer.config, shape.family, SOCS[soc])
        if broken:
            note = f"the default configuration is illegal here ({one_line(broken[0].message)}); {note}"
    return note


def _enqueue(state: State, shape: PfaShape, soc: str, backend: str | None) -> tuple[str, str]:
    """The job for a shape as JSON, and why there is none."""
    request = JobRequest((Workload(shape),), trials=DEFAULT_TRIALS, soc=soc, backend=backend or state.backend)
    try:
        job, _ = state.store.jobs.submit(request, max_open=state.max_jobs)
    except StoreError as error:  # the answer itself is good without
        return "null", f"no job was enqueued: {one_line(str(error))}"
    return json.dumps({"id": job.id, "url": f"/tune/{job.id}", "state": job.state.value}), ""


@lru_cache(maxsize=4096)
def _config_text(config: KernelConfig) -> str:
    return f'"config":{_json(config.to_json())},"config_digest":"{config.digest}"'


@lru_cache(maxsize=256)
def _environment_text(environment: Any) -> str:
    return _json({**environment.to_json(), "digest": environment.digest})


def _document(served: Served, shape: PfaShape, soc: str, job: str, note: str) -> str:
    answer, environment = served.answer, served.environment
    entry = answer.entry
    parts = [
        f'{{"shape":{_shape_text(shape)},"soc":"{soc}","provenance":"{answer.provenance}",',
        _config_text(answer.config),
        ',"measured_shape":',
        "null" if answer.shape is None else _shape_text(answer.shape),
    ]
    if entry is None or environment is None:
        parts.append(
            ',"unit":null,"cost":null,"default_cost":null,"speedup":null,"measurement":null,"verified_at":null,'
            '"environment":'
        )
        parts.append("null" if environment is None else _environment_text(environment))
    else:
        verified = _json(entry.verified_at or None)
        parts.append(
            f',"unit":"{environment.unit}","cost":{entry.cost!r},"default_cost":{entry.default_cost!r},'
            f'"speedup":{entry.default_cost / entry.cost!r},"measurement":{entry.measurement or "null"},'
            f'"verified_at":{verified},"environment":{_environment_text(environment)}'
        )
    parts.append(f',"job":{job},"note":{_json(note)}}}')
    return "".join(parts)


def _shape_text(shape: PfaShape) -> str:
    return (
        f'{{"b":{shape.b},"s2":{shape.s2},"s1":{shape.s1},"nq":{shape.nq},"nkv":{shape.nkv},"qd":{shape.qd},'
        f'"block_size":{shape.block_size}}}'
    )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@router.get(
    "/configs",
    response_class=Response,
    responses={
        200: {
            "description": "Everything served in one environment, as `TunedConfigs` reads it.",
            "content": {"application/json": {"schema": {"type": "object"}}},
            "headers": {"ETag": {"description": "Changes with the contents.", "schema": {"type": "string"}}},
        },
        304: {"description": "Nothing has changed since the `If-None-Match` given."},
        **describe(422),
    },
)
def configs(
    request: Request, state: StateDep, soc: SocQuery = None, backend: BackendQuery = None, pypto: PyptoQuery = None
) -> Response:
    """The snapshot of an environment: npu before sim, the newest first, of those that match."""
    document = state.view.snapshot(soc or state.soc, backend, pypto)
    headers = {"ETag": f'"{document.tag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    wanted = [tag.strip().removeprefix("W/").strip('"') for tag in request.headers.get("if-none-match", "").split(",")]
    if document.tag in wanted or "*" in wanted:
        return Response(status_code=304, headers=headers)
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
        return Response(_compressed(document), headers=headers, media_type="application/json")
    return Response(document.body, headers=headers, media_type="application/json")


def _takes_gzip(accepted: str) -> bool:
    """Whether an ``Accept-Encoding`` names gzip, other than to refuse it with ``q=0``."""
    for part in accepted.lower().split(","):
        name, _, quality = part.replace(" ", "").partition(";")
        if name == "gzip":
            return not re.fullmatch(r"q=0(\.0*)?", quality)
    return False


@lru_cache(maxsize=4)
def _compressed(document: Document) -> bytes:
    return gzip.compress(document.body, compresslevel=5, mtime=0)
