"""What is asked of the kernel: a shape, its family, and the six named cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

MAX_BATCH = 1024
MAX_S1 = 64
MAX_S2 = 131072
MAX_HEADS = 256
MAX_HEAD_DIM = 512
MAX_BLOCK_SIZE = 1024
FP8_ALIGN = 32  # elements; an FP8 row must fill whole 32-byte blocks


class ShapeError(ValueError):
    """A shape, or the sequence lengths that go with it, that the kernel cannot serve.

    ``field`` names what is wrong; the message gives its value and the remedy.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, order=True)
class PfaFamily:
    """The static part of a shape: one compiled kernel serves every b and s2 of a family."""

    s1: int = 1
    nq: int = 12
    nkv: int = 1
    qd: int = 128
    block_size: int = 128

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.nq // self.nkv

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True, order=True)
class PfaShape:
    """One decode problem of paged flash attention.

    ``b`` requests of ``s1`` query tokens each attend to at most ``s2`` cached tokens;
    ``nq`` query heads share ``nkv`` KV heads of ``qd`` elements; the KV cache is paged in
    blocks of ``block_size`` tokens. Field names and defaults are those of the kernel's
    ``create_config``.

    Raises:
        ShapeError: a field is out of range or does not fit the others.
    """

    b: int
    s2: int
    s1: int = 1
    nq: int = 12
    nkv: int = 1
    qd: int = 128
    block_size: int = 128

    def __post_init__(self) -> None:
        limits = (
            ("b", MAX_BATCH),
            ("s1", MAX_S1),
            ("s2", MAX_S2),
            ("nq", MAX_HEADS),
            ("nkv", MAX_HEADS),
            ("qd", MAX_HEAD_DIM),
            ("block_size", MAX_BLOCK_SIZE),
        )
        for name, limit in limits:
            value = getattr(self, name)
            if type(value) is not int:
                raise ShapeError(name, f"{name} is {value!r}: give a whole number from 1 to {limit}")
            if not 1 <= value <= limit:
                raise ShapeError(name, f"{name} is {value}: give a whole number from 1 to {limit}")
        if self.nq % self.nkv:
            raise ShapeError("nq", f"nq is {self.nq}, which nkv {self.nkv} does not divide: make nq a multiple of nkv")
        for name in ("qd", "block_size"):
            value = getattr(self, name)
            if value % FP8_ALIGN:
                raise ShapeError(
                    name, f"{name} is {value}: make it a multiple of {FP8_ALIGN}, the FP8 alignment of the cube unit"
                )
        if self.s1 > self.s2:
            raise ShapeError("s1", f"s1 is {self.s1}, more than s2 {self.s2}: a query token attends at least to itself")

    @property
    def family(self) -> PfaFamily:
        return PfaFamily(self.s1, self.nq, self.nkv, self.qd, self.block_size)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.nq // self.nkv

    @property
    def blocks_per_query(self) -> int:
        """Entries of the block table in one row: ceil(s2 / block_size)."""
        return -(-self.s2 // self.block_size)

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PfaShape:
        """The shape with the given fields; fields left out take their defaults.

        Raises:
            ShapeError: an unknown or missing field, or a value out of range.
        """
        known = [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise ShapeError(str(name), f"{name!r} is no field of a shape: use {', '.join(known)}")
        for name in ("b", "s2"):
            if name not in data:
                raise ShapeError(name, f"{name} is missing: give a whole number")
        return cls(**data)

    def __str__(self) -> str:
        b, s2, s1, nq, nkv, qd, block_size = astuple(self)
        return f"b={b} s1={s1} s2={s2} nq={nq} nkv={nkv} qd={qd} block_size={block_size}"


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """A shape with the KV lengths it is measured at.

    ``actual_seq`` holds one length for each request, in tokens; None means every request is
    full (``s2`` tokens), which is what a shape is tuned at unless told otherwise.

    Raises:
        ShapeError: the number of lengths is not b, or one lies outside s1 … s2.
    """

    shape: PfaShape
    actual_seq: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        seq = self.actual_seq
        if seq is None:
            return
        shape = self.shape
        if len(seq) != shape.b:
            raise ShapeError(
                "actual_seq", f"actual_seq has {len(seq)} lengths for b={shape.b}: give one length for each request"
            )
        for length in seq:
            if type(length) is not int or not shape.s1 <= length <= shape.s2:
                raise ShapeError(
                    "actual_seq",
                    f"actual_seq holds {length!r}: give lengths from s1 ({shape.s1}) to s2 ({shape.s2}) tokens",
                )
        if all(length == shape.s2 for length in seq):
            object.__setattr__(self, "actual_seq", None)

    @property
    def lengths(self) -> tuple[int, ...]:
        """KV length of each request, in tokens."""
        return self.actual_seq if self.actual_seq is not None else (self.shape.s2,) * self.shape.b

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"shape": self.shape.to_json()}
        if self.actual_seq is not None:
            data["actual_seq"] = list(self.actual_seq)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        seq: Sequence[int] | None = data.get("actual_seq")
        return cls(PfaShape.from_json(data["shape"]), None if seq is None else tuple(seq))

    def __str__(self) -> str:
        if self.actual_seq is None:
            return str(self.shape)
        return f"{self.shape} actual_seq={min(self.actual_seq)}…{max(self.actual_seq)}"


#: The cases of the kernel's own test, by name.
CASES: dict[str, PfaShape] = {
    "pfa_fp8_b1_s1_2_s2_2048_nkv_8": PfaShape(b=1, s1=2, s2=2048, nq=48, nkv=8),
    "pfa_fp8_b16_s1_1_s2_8195_nkv_2": PfaShape(b=16, s2=8195, nkv=2),
    "pfa_fp8_b16_s1_1_s2_8k_nkv_1": PfaShape(b=16, s2=8192, nkv=1),
    "pfa_fp8_b16_s1_1_s2_8k_nkv_2": PfaShape(b=16, s2=8192, nkv=2),
    "pfa_fp8_b2_s1_1_s2_1k": PfaShape(b=2, s2=1024),
    "pfa_fp8_b16_s1_1_s2_256_nkv_4": PfaShape(b=16, s2=256, nq=16, nkv=4),
}


def case(name: str) -> PfaShape:
    """The named case.

    Raises:
        ShapeError: no case has that name.
    """
    try:
        return CASES[name]
    except KeyError:
        raise ShapeError("case", f"case {name!r} is unknown: use one of {', '.join(CASES)}") from None
