"""The pages' addresses: what each one takes, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from ...db.errors import StoreError
from ...db.job_records import JobState
from ...db.records import Environment
from ...kernel.ladder import Ladder
from ...kernel.shapes import PfaShape
from ..errors import one_line
from ..http.jobs import MAX_ID
from ..http.models import Closed, JobStateName, Soc
from ..http.problems import not_found
from ..http.state import State, StateDep, StoreDep
from ..serving import ServedView
from . import grid as grids
from . import site
from .errors import PageRoute
from .importance import ImportanceCache
from .jobs import JobView, job_view
from .lanes import LanePictures
from .shape import shape_in_memory, shape_view
from .site import page
from .tuned import TunedIndex
from .words import tune_command, tune_curl

JOBS_ON_START = 20
JOBS_ON_PAGE = 50
FAMILIES_ON_START = 30
_EXAMPLE = PfaShape(b=16, s2=8192)
_LONGEST_CACHE = 3600  # seconds for which a picture stays good

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(slots=True)
class Pages:
    """What the pages keep between requests."""

    lanes: LanePictures
    tuned: TunedIndex = field(default_factory=TunedIndex)
    importances: ImportanceCache = field(default_factory=ImportanceCache)


def install(app: FastAPI) -> None:
    """Give an app its pages; its state must be there."""
    app.state.pages = Pages(LanePictures(app.state.pfatune.store))
    app.include_router(router)


def _pages(request: Request) -> Pages:
    found: Pages = request.app.state.pages
    return found


def _ladders(view: ServedView) -> list[tuple[Environment, Ladder]]:
    """What every environment serves, npu before sim, newest first; to be called where lookups are."""
    pairs = [(one, view.ladder(one.digest)) for one in view.environments()]
    found = [(one, ladder) for one, ladder in pairs if ladder is not None]
    return sorted(found, key=lambda pair: pair[0].backend != "npu")


@router.get("/")
async def start(request: Request, state: StateDep) -> Response:
    """What this is, what is going on, and what is tuned."""
    ladders = _ladders(state.view)
    return await run_in_threadpool(_start, request, state, ladders)


def _start(request: Request, state: State, ladders: list[tuple[Environment, Ladder]]) -> Response:
    tuned = _pages(request).tuned
    found = [
        (environment, one)
        for environment, ladder in ladders
        for one in tuned.families(environment.digest, ladder).values()
    ]
    jobs, counts, trouble = _open_jobs(state)
    return page(
        "start.html",
        here="start",
        families=found[:FAMILIES_ON_START],
        family_count=len(found),
        jobs=jobs,
        counts=counts,
        trouble=trouble,
        example=_EXAMPLE,
        command=tune_command(_EXAMPLE, state.soc),
        curl=tune_curl(_EXAMPLE, state.soc, site.base_url(request)),
        base=site.base_url(request),
    )


def _open_jobs(state: State) -> tuple[list[JobView], dict[str, int], str]:
    """The jobs that run or wait, and how many are in each state; or why they cannot be had."""
    store = state.store
    try:
        found = [
            *store.jobs.list(state=JobState.RUNNING, limit=JOBS_ON_START),
            *store.jobs.list(state=JobState.QUEUED, limit=JOBS_ON_START),
        ]
        counts = {one.value: count for one, count in store.jobs.counts().items()}
    except StoreError as error:  # the rest of the page needs no database
        return [], {}, one_line(str(error))
    return [job_view(one) for one in found[:JOBS_ON_START]], counts, ""


@router.get("/jobs")
def jobs(
    store: StoreDep,
    state: Annotated[JobStateName | None, Query()] = None,
    before: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None,
) -> Response:
    """The jobs, newest first."""
    wanted = JobState(state) if state else None
    found = list(store.jobs.list(state=wanted, before=before, limit=JOBS_ON_PAGE + 1))
    shown = found[:JOBS_ON_PAGE]
    return page(
        "jobs.html",
        here="jobs",
        jobs=[job_view(one) for one in shown],
        counts={one.value: count for one, count in store.jobs.counts().items()},
        state=state,
        before=before,
        next=shown[-1].id if len(found) > JOBS_ON_PAGE else None,
    )


@router.get("/jobs/{job_id}")
def job(request: Request, job_id: Annotated[int, Path(ge=1, le=MAX_ID)], store: StoreDep) -> Response:
    """One job, live where there is JavaScript."""
    found = store.jobs.get(job_id)
    if found is None:
        raise not_found(f"job {job_id}", "/jobs lists the jobs")
    return page("job.html", here="jobs", view=job_view(found), base=site.base_url(request))


class GridQuery(Closed):
    """Which grid, and which part of it."""

    environment: Annotated[str | None, Field(pattern="^[0-9a-f]{16}$")] = None
    family: Annotated[str | None, Field(max_length=100)] = None
    b_from: Annotated[int, Field(ge=0, le=MAX_ID)] = 0
    s2_from: Annotated[int, Field(ge=0, le=MAX_ID)] = 0


@router.get("/grid")
async def grid(request: Request, query: Annotated[GridQuery, Query()], state: StateDep) -> Response:
    """What is tuned of one family, as a grid of b and s2; needs no database."""
    ladders = _ladders(state.view)
    chosen = next((one for one in ladders if query.environment in (None, one[0].digest)), None)
    if chosen is None and query.environment is not None:
        raise not_found(f"a tuned configuration of environment {query.environment}", "/grid shows the newest one")
    return await run_in_threadpool(_grid, request, query, [one for one, _ in ladders], chosen)


def _grid(
    request: Request, query: GridQuery, environments: list[Environment], chosen: tuple[Environment, Ladder] | None
) -> Response:
    environment, families = None, {}
    if chosen is not None:
        environment = chosen[0]
        families = _pages(request).tuned.families(environment.digest, chosen[1])
    family = grids.family_of(query.family, families)
    shown = None
    if environment is not None and family in families:
        shown = grids.grid_of(families[family], environment, query.b_from, query.s2_from)
    return page(
        "grid.html",
        here="grid",
        environments=environments,
        environment=environment,
        families=list(families.values())[: grids.MOST_FAMILIES],
        family=family,
        grid=shown,
        legend=grids.legend(),
        legend_last=2 ** ((grids.STEPS - 1) / grids.STEPS_AN_OCTAVE),
        most=grids.MOST,
    )


class ShapeQuery(Closed):
    """Which shape, and whose measurements of it."""

    b: int
    s2: int
    s1: int = 1
    nq: int = 12
    nkv: int = 1
    qd: int = 128
    block_size: int = 128
    soc: Soc | None = None
    environment: Annotated[str | None, Field(pattern="^[0-9a-f]{16}$")] = None

    def shape(self) -> PfaShape:
        """The shape.

        Raises:
            ShapeError: a field is out of its range, or does not fit the others.
        """
        return PfaShape(self.b, self.s2, self.s1, self.nq, self.nkv, self.qd, self.block_size)


@router.get("/shape")
async def shape(request: Request, query: Annotated[ShapeQuery, Query()], state: StateDep) -> Response:
    """Everything known of a shape, whether it was ever measured or not."""
    asked, soc = query.shape(), query.soc or state.soc
    served = state.view.lookup(asked, soc)
    importances = _pages(request).importances

    def made() -> Response:
        try:
            view = shape_view(state.store, asked, soc, served, query.environment, importances)
        except StoreError as error:  # what is served needs no database
            view = shape_in_memory(asked, soc, served, one_line(str(error)))
        return page(
            "shape.html",
            here="grid",
            view=view,
            command=tune_command(asked, soc),
            curl=tune_curl(asked, soc, site.base_url(request)),
            soc_query="" if soc == state.soc else f"&soc={soc}",
        )

    return await run_in_threadpool(made)


@router.get("/shape/lanes.png")
async def lanes(
    request: Request,
    default: Annotated[int, Query(ge=1, le=MAX_ID)],
    tuned: Annotated[int, Query(ge=1, le=MAX_ID)],
) -> Response:
    """The swim lanes of two measurements, one above the other."""
    png = await _pages(request).lanes.png(default, tuned)
    # Measurements and traces never change.
    headers = {"Cache-Control": f"private, max-age={_LONGEST_CACHE}"}
    return Response(png, headers=headers, media_type="image/png")


@router.get("/static/{name}")
async def static(name: str, request: Request) -> Response:
    """The stylesheet, the script and the icon."""
    return site.static(name, request)
