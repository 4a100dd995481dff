"""``/measurements`` and ``/trace``: the evidence."""

from __future__ import annotations

import gzip
import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from ...autotune.swimlane import Swimlane, to_perfetto
from ...db.records import Environment, Kind, Measurement
from ...db.store import Store
from ...kernel.shapes import PfaShape, Workload
from .jobs import MAX_ID
from .models import Closed, MeasurementOut, MeasurementPage
from .problems import describe, invalid, not_found
from .state import StoreDep

router = APIRouter(tags=["measurements"])


class MeasurementQuery(Closed):
    """Which measurements to list."""

    environment: Annotated[
        str | None, Field(pattern="^[0-9a-f]{16}$", description="Only of this environment, by its digest.")
    ] = None
    kind: Annotated[Kind | None, Field(description="Only of this kind.")] = None
    b: Annotated[int | None, Field(description="Only of one shape: requests in its batch.")] = None
    s2: Annotated[int | None, Field(description="KV tokens of its longest request.")] = None
    s1: Annotated[int | None, Field(description="Query tokens of each of its requests.")] = None
    nq: Annotated[int | None, Field(description="Its query heads.")] = None
    nkv: Annotated[int | None, Field(description="Its KV heads.")] = None
    qd: Annotated[int | None, Field(description="Elements of a head.")] = None
    block_size: Annotated[int | None, Field(description="Tokens in a page of its KV cache.")] = None
    limit: Annotated[int, Field(ge=1, le=1000, description="Measurements on a page.")] = 100
    before: Annotated[int | None, Field(ge=1, le=MAX_ID, description="Only measurements with a smaller id.")] = None

    def workload(self) -> Workload | None:
        """The workload asked for, if one is.

        Raises:
            ProblemError: only a part of a shape is given.
            ShapeError: it is no shape.
        """
        names = ("b", "s2", "s1", "nq", "nkv", "qd", "block_size")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not given:
            return None
        for name in ("b", "s2"):
            if name not in given:
                raise invalid(name, f"{name} is missing: a shape needs b and s2")
        return Workload(PfaShape(**given))


@router.get("/measurements", response_model=MeasurementPage, responses=describe(404, 422, 503))
def measurements(request: Request, query: Annotated[MeasurementQuery, Query()], store: StoreDep) -> MeasurementPage:
    """Everything measured, newest first: what failed too, and why."""
    environments = store.environments()
    env_id = None
    if query.environment is not None:
        env_id = next((key for key, env in environments.items() if env.digest == query.environment), None)
        if env_id is None:
            raise not_found(f"environment {query.environment}", "leave `environment` out to see all")
    found = store.measurement_page(
        env_id=env_id, workload=query.workload(), kind=query.kind, before=query.before, limit=query.limit + 1
    )
    following = None
    if len(found) > query.limit:
        found = found[: query.limit]
        following = f"/measurements?{request.url.include_query_params(before=found[-1][1].id).query}"
    if any(key not in environments for key, _ in found):  # added since they were read
        environments = store.environments()
    traced = store.traces.has([row.id for _, row in found if row.id is not None])
    return MeasurementPage(
        measurements=[_document(environments[key], row, row.id in traced) for key, row in found], next=following
    )


def _document(environment: Environment, row: Measurement, traced: bool) -> MeasurementOut:
    seq = row.workload.actual_seq
    return MeasurementOut.model_validate(
        {
            "id": row.id,
            "environment": environment.digest,
            "unit": environment.unit,
            "shape": row.workload.shape.to_json(),
            "actual_seq": None if seq is None else list(seq),
            "config": row.config.to_json(),
            "config_digest": row.config.digest,
            "kind": row.kind.value,
            "cost": row.cost,
            "samples": list(row.samples),
            "seconds": row.seconds,
            "compile_seconds": row.compile_seconds,
            "run_seconds": row.run_seconds,
            "peak_bytes": row.peak_bytes,
            "message": row.message,
            "study": row.study,
            "created_at": row.created_at,
            "trace": f"/trace/{row.id}" if traced else None,
        }
    )


@router.get(
    "/trace/{measurement}",
    response_class=Response,
    responses={
        200: {
            "description": "Trace events, as Perfetto and chrome://tracing read them.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **describe(404, 422, 503),
    },
)
def trace(
    measurement: Annotated[int, Path(ge=1, le=MAX_ID, description="The measurement's id.")], store: StoreDep
) -> Response:
    """When each core was busy, in cycles of the cost model, for https://ui.perfetto.dev.

    A tuning job records it for the default and for the configuration it found.
    """
    lanes = swimlane(store, measurement)
    body: dict[str, Any] = to_perfetto({f"measurement {measurement}": lanes})
    return Response(json.dumps(body, separators=(",", ":"), allow_nan=False), media_type="application/json")


def swimlane(store: Store, measurement: int) -> Swimlane:
    """The recorded swim lanes of a measurement.

    Raises:
        ProblemError: there is no such measurement, or none were recorded.
    """
    data = store.traces.get(measurement)
    if data is not None:
        return Swimlane.from_json(json.loads(gzip.decompress(data)))
    if store.measurement(measurement) is None:
        raise not_found(f"measurement {measurement}", "GET /measurements lists them")
    raise not_found(
        f"a trace of measurement {measurement}",
        "jobs record it for the default and the tuned configuration; `pfatune trace` makes others",
    )
