"""What the service takes and gives, as the API's description has it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from ...kernel.ladder import Provenance
from ...kernel.shapes import (
    MAX_BATCH,
    MAX_BLOCK_SIZE,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_S1,
    MAX_S2,
    PfaShape,
    ShapeError,
    Workload,
)

MAX_SHAPES = 256  # of one request to tune
MAX_TRIALS = 100_000
MAX_SECONDS = 30 * 86400
DEFAULT_TRIALS = 40

JobStateName = Literal["queued", "running", "done", "failed", "cancelled"]

B = Annotated[int, Field(strict=True, ge=1, le=MAX_BATCH, description="Requests in the batch.", examples=[16])]
S2 = Annotated[
    int, Field(strict=True, ge=1, le=MAX_S2, description="KV tokens of the longest request.", examples=[8192])
]
S1 = Annotated[int, Field(strict=True, ge=1, le=MAX_S1, description="Query tokens of each request.")]
Nq = Annotated[int, Field(strict=True, ge=1, le=MAX_HEADS, description="Query heads, a multiple of nkv.")]
Nkv = Annotated[int, Field(strict=True, ge=1, le=MAX_HEADS, description="KV heads.")]
Qd = Annotated[int, Field(strict=True, ge=32, le=MAX_HEAD_DIM, multiple_of=32, description="Elements of a head.")]
BlockSize = Annotated[
    int,
    Field(strict=True, ge=32, le=MAX_BLOCK_SIZE, multiple_of=32, description="Tokens in a page of the KV cache."),
]
Soc = Annotated[Literal["950PR", "950DT"], Field(description="The chip.")]
Backend = Annotated[
    Literal["sim", "npu"],
    Field(description="`sim` costs are cycles of the cost model, `npu` costs are microseconds."),
]


class Closed(BaseModel):
    """Nothing is taken that is not named."""

    model_config = ConfigDict(extra="forbid")


class ShapeFields(Closed):
    """A shape; what is left out has the kernel's own default."""

    b: B
    s2: S2
    s1: S1 = 1
    nq: Nq = 12
    nkv: Nkv = 1
    qd: Qd = 128
    block_size: BlockSize = 128

    def shape(self) -> PfaShape:
        """The shape.

        Raises:
            ShapeError: its fields do not fit each other.
        """
        return PfaShape(self.b, self.s2, self.s1, self.nq, self.nkv, self.qd, self.block_size)


class WorkloadFields(ShapeFields):
    """A shape and, where they differ, the KV tokens of each request."""

    actual_seq: Annotated[
        list[Annotated[int, Field(strict=True, ge=1, le=MAX_S2)]] | None,
        Field(
            min_length=1,
            max_length=MAX_BATCH,
            description="KV tokens of each request, from s1 to s2, one number for each. Left out: all have s2.",
        ),
    ] = None

    def workload(self) -> Workload:
        """The workload.

        Raises:
            ShapeError: its fields do not fit each other.
        """
        return Workload(self.shape(), None if self.actual_seq is None else tuple(self.actual_seq))


class TuneFields(Closed):
    """How much to search, and for what."""

    trials: Annotated[
        int | None,
        Field(
            strict=True,
            ge=1,
            le=MAX_TRIALS,
            description=f"Configurations measured in all, earlier runs included. {DEFAULT_TRIALS} without `seconds`.",
            examples=[40],
        ),
    ] = None
    seconds: Annotated[
        float | None,
        Field(strict=True, gt=0, le=MAX_SECONDS, allow_inf_nan=False, description="Longest time to search."),
    ] = None
    priority: Annotated[
        int, Field(strict=True, ge=-100, le=100, description="Higher ones first; equal ones in their order.")
    ] = 0
    soc: Soc | None = None
    backend: Backend | None = None


class TuneOne(TuneFields, WorkloadFields):
    """One shape to tune."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"b": 16, "s2": 8192}]})

    def workloads(self) -> tuple[Workload, ...]:
        """The one workload.

        Raises:
            ShapeError: its fields do not fit each other.
        """
        return (self.workload(),)


class TuneMany(TuneFields):
    """Several shapes to tune in one job; those of a family are searched together."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"shapes": [{"b": 1, "s2": 2048}, {"b": 16, "s2": 8192}], "trials": 60}]}
    )
    shapes: Annotated[list[WorkloadFields], Field(min_length=1, max_length=MAX_SHAPES)]

    def workloads(self) -> tuple[Workload, ...]:
        """The workloads, each once.

        Raises:
            ShapeError: the fields of one do not fit each other; its place is in the error's ``field``.
        """
        found = []
        for index, one in enumerate(self.shapes):
            try:
                found.append(one.workload())
            except ShapeError as error:
                raise ShapeError(f"shapes.{index}.{error.field}", f"shapes.{index}: {error}") from None
        return tuple(dict.fromkeys(found))


def _one_or_many(body: Any) -> str:
    if isinstance(body, dict):
        return "many" if "shapes" in body else "one"
    return "many" if isinstance(body, TuneMany) else "one"


TuneRequest = Annotated[
    Annotated[TuneOne, Tag("one")] | Annotated[TuneMany, Tag("many")],
    Discriminator(_one_or_many),
]


class ConfigQuery(Closed):
    """The query of ``GET /config``: texts, as a URL has them."""

    b: Annotated[int, Field(ge=1, le=MAX_BATCH, description="Requests in the batch.", examples=[16])]
    s2: Annotated[int, Field(ge=1, le=MAX_S2, description="KV tokens of the longest request.", examples=[8192])]
    s1: Annotated[int, Field(ge=1, le=MAX_S1, description="Query tokens of each request.")] = 1
    nq: Annotated[int, Field(ge=1, le=MAX_HEADS, description="Query heads, a multiple of nkv.")] = 12
    nkv: Annotated[int, Field(ge=1, le=MAX_HEADS, description="KV heads.")] = 1
    qd: Annotated[int, Field(ge=32, le=MAX_HEAD_DIM, multiple_of=32, description="Elements of a head.")] = 128
    block_size: Annotated[
        int, Field(ge=32, le=MAX_BLOCK_SIZE, multiple_of=32, description="Tokens in a page of the KV cache.")
    ] = 128
    soc: Annotated[Literal["950PR", "950DT"] | None, Field(description="The chip; left out: the service's.")] = None
    backend: Annotated[
        Literal["sim", "npu"] | None, Field(description="Only what was measured so; left out: npu before sim.")
    ] = None
    pypto: Annotated[
        str | None, Field(min_length=1, max_length=64, description="Only what this version of PyPTO was measured with.")
    ] = None
    enqueue: Annotated[
        bool, Field(description="Enqueue a job if the shape itself is not tuned; needs a token where writes do.")
    ] = False

    @model_validator(mode="after")
    def _fields_fit(self) -> ConfigQuery:
        self.shape()
        return self

    def shape(self) -> PfaShape:
        """The shape.

        Raises:
            ShapeError: its fields do not fit each other.
        """
        return PfaShape(self.b, self.s2, self.s1, self.nq, self.nkv, self.qd, self.block_size)


class ShapeOut(BaseModel):
    """A shape."""

    b: int
    s2: int
    s1: int
    nq: int
    nkv: int
    qd: int
    block_size: int


class EnvironmentOut(BaseModel):
    """Where something was measured."""

    backend: str
    soc: str
    pypto: str
    torch: str
    kernel_digest: str
    model_digest: str
    torch_npu: str
    cann: str
    driver: str
    digest: str


class KernelConfigOut(BaseModel):
    """A configuration; ``KernelConfig.from_json`` reads it, under PyPTO's names."""

    g_tile: int
    s2_tile: int
    c1_tile_shape: list[list[int]]
    v1_tile_shape: list[int]
    c2_tile_shape: list[list[int]]
    v2_tile_shape: list[int]
    unroll_list: list[int]
    cube_l1_reuse_setting: dict[str, int]
    vec_nbuffer_setting: dict[str, int]
    cube_nbuffer_setting: dict[str, int]
    stitch_function_max_num: int
    device_sched_mode: int


class JobLink(BaseModel):
    """Where a job can be watched."""

    id: int
    url: str
    state: JobStateName


class ConfigOut(BaseModel):
    """What a shape is served, and why.

    Costs are of ``measured_shape``; null where it is a portfolio's or the default.
    """

    shape: ShapeOut
    soc: str
    provenance: Provenance
    config: KernelConfigOut
    config_digest: str
    measured_shape: ShapeOut | None = Field(description="The shape that the costs were measured at.")
    unit: str | None = Field(description="`cycles` of the cost model, or `us`.")
    cost: float | None
    default_cost: float | None = Field(description="What the kernel's own configuration costs there.")
    speedup: float | None = Field(description="default_cost over cost.")
    measurement: int | None
    verified_at: str | None = Field(description="When its numbers were checked against the golden, UTC.")
    environment: EnvironmentOut | None
    job: JobLink | None = Field(description="With `enqueue`: the job that tunes the shape.")
    note: str


class WorkloadOut(BaseModel):
    """A shape and, where they differ, the KV tokens of each request."""

    shape: ShapeOut
    actual_seq: list[int] | None = None


class ShapeProgress(WorkloadOut):
    """How far one shape of a job is; costs are null until measured."""

    default_cost: float | None = None
    best_cost: float | None = None


class ProgressOut(BaseModel):
    """How far a job is."""

    model_config = ConfigDict(extra="ignore")

    families: int = 0
    families_done: int = 0
    trials: int = 0
    budget_trials: int | None = None
    known: int = 0
    running: int = 0
    verifying: int = 0
    unit: str | None = None
    shapes: list[ShapeProgress] = []
    speedup: float | None = None
    kinds: dict[str, int] = {}
    failures: dict[str, int] = Field(default={}, description="Failed configurations by kind.")
    last: str = ""
    elapsed_seconds: float = 0.0
    seconds_left: float | None = Field(default=None, description="An estimate.")


class JobOut(BaseModel):
    """A request to tune, and what became of it."""

    id: int
    url: str
    events_url: str
    state: JobStateName
    reason: str = Field(description="Why it failed, was cancelled or was tried again.")
    priority: int
    workloads: list[WorkloadOut]
    trials: int | None
    seconds: float | None
    soc: str
    backend: str
    attempts: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: ProgressOut


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobOut]
    next: str | None = Field(description="Where the next page is; null at the end.")


class MeasurementOut(BaseModel):
    """One configuration on one workload in one environment."""

    id: int
    environment: str = Field(description="Its digest.")
    unit: str
    shape: ShapeOut
    actual_seq: list[int] | None
    config: KernelConfigOut
    config_digest: str
    kind: str
    cost: float | None
    samples: list[float]
    seconds: float
    compile_seconds: float
    run_seconds: float
    peak_bytes: int
    message: str
    study: str
    created_at: datetime | None
    trace: str | None = Field(description="Where its swim lanes are, if they were recorded.")


class MeasurementPage(BaseModel):
    """Measurements, newest first."""

    measurements: list[MeasurementOut]
    next: str | None = Field(description="Where the next page is; null at the end.")


class Health(BaseModel):
    """Whether the service is alive, or ready."""

    status: Literal["ok"]
