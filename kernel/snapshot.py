"""Everything that is served in one environment, as one JSON document with a checksum.

The answer of ``GET /configs``, the copy on a serving engine's disk, and files carried by hand:

    {"format": "pfatune-configs", "version": 1, "unit": "cycles", "environment": {...},
     "configs": [...],
     "families": [{"family": {...},
                   "shapes": [[b, s2, config, cost, default cost, measurement, verified at, full], ...],
                   "portfolio": [[b, s2, config], ...]}, ...],
     "checksum": "..."}

where ``config`` is an index into ``configs``. The checksum is the SHA-256, in hexadecimal, of the
document without it, written with sorted keys and no spaces; ``dump`` writes just that and the
checksum behind it, so a document need not be written again to be checked.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .config import ConfigError, KernelConfig, canonical
from .ladder import Entry, Ladder, Member
from .legality import violations
from .served import ENVIRONMENT_COLUMNS
from .shapes import MAX_BATCH, MAX_S2, PfaFamily, PfaShape, ShapeError
from .soc import Soc, UnknownSocError
from .soc import soc as soc_of

FORMAT = "pfatune-configs"
VERSION = 1
MAX_BYTES = 512 << 20
UNITS = ("cycles", "us")
_MAX_ID = 2**63 - 1
_MAX_TIME_CHARACTERS = 64
_HEX = 64
_FAMILY_FIELDS = tuple(PfaFamily.__dataclass_fields__)
_BEFORE = b',"checksum":"'
_AFTER = b'"}'


class SnapshotError(ValueError):
    """A document that is no snapshot, or not a whole one, or holds what may not be served."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is served in an environment; ``unit`` is that of its costs, ``cycles`` or ``us``."""

    environment: dict[str, str]
    unit: str
    ladder: Ladder
    checksum: str


def dump(environment: Mapping[str, str], unit: str, ladder: Ladder) -> bytes:
    """The document of what a ladder serves; equal contents give equal bytes.

    ``environment`` holds ``ENVIRONMENT_COLUMNS``. ``load`` refuses what is not as a snapshot must be.
    """
    configs = _Configs()
    shapes: dict[PfaFamily, list[list[Any]]] = {}
    for shape, entry in sorted(ladder, key=lambda one: one[0]):
        shapes.setdefault(shape.family, []).append(
            [
                shape.b,
                shape.s2,
                configs.index(entry.config),
                float(entry.cost),
                float(entry.default_cost),
                entry.measurement,
                entry.verified_at,
                entry.full,
            ]
        )
    portfolios = dict(ladder.portfolios())
    families = []
    for family in sorted({*shapes, *portfolios}):
        members = sorted(portfolios.get(family, ()), key=lambda member: (member[0], member[1], member[2].digest))
        portfolio = [[b, s2, configs.index(config)] for b, s2, config in members]
        families.append({"family": family.to_json(), "shapes": shapes.get(family, []), "portfolio": portfolio})
    text = _canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "environment": dict(environment),
            "unit": unit,
            "configs": [config.to_json() for config in configs],
            "families": families,
        }
    )
    return text[:-1] + _BEFORE + hashlib.sha256(text).hexdigest().encode() + _AFTER


def checksum_of(document: bytes) -> str:
    """The checksum in a document that ``dump`` has just written."""
    return document[-_HEX - len(_AFTER) : -len(_AFTER)].decode()


def load(data: bytes) -> Snapshot:
    """The snapshot in a document, whole, unaltered, and with nothing in it that is not legal.

    Raises:
        SnapshotError: it is anything else; the message says what, and what to do.
    """
    try:
        document = _parse(data)
        checksum = _check(data, document)
        return _read(document, checksum)
    except SnapshotError:
        raise
    except (ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        # Numbers of thousands of digits, for one, which Python will not even print.
        raise SnapshotError(f"the snapshot cannot be read ({type(error).__name__}): fetch it again") from error


class _Configs(dict[KernelConfig, int]):
    """Distinct configurations in the order of their first use."""

    def index(self, config: KernelConfig) -> int:
        return self.setdefault(config, len(self))


def _canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _parse(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise SnapshotError(f"the snapshot has {len(data)} bytes, limit {MAX_BYTES}: serve fewer shapes")
    if not data.strip():
        raise SnapshotError("the snapshot is empty: fetch it again")
    try:
        document = json.loads(data.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise SnapshotError("the snapshot is no text: give a file that pfatune wrote") from None
    except json.JSONDecodeError as error:
        whole = data.rstrip().endswith(b"}")
        what = f"no JSON ({error})" if whole or not data.lstrip().startswith(b"{") else "truncated"
        raise SnapshotError(f"the snapshot is {what}: fetch it again") from None
    except RecursionError:
        raise SnapshotError("the snapshot is nested too deeply: give a file that pfatune wrote") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise SnapshotError(f"this is no snapshot: it lacks the format {FORMAT!r}; give a file that pfatune wrote")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise SnapshotError(f"the snapshot has version {_show(version)}, newer than {VERSION}: upgrade pfatune here")
    if type(version) is not int or version != VERSION:
        raise SnapshotError(f"the snapshot has version {_show(version)}: give one of version {VERSION}")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise SnapshotError(f"the snapshot holds {name}, which is no JSON number: fetch it again")


def _check(data: bytes, document: dict[str, Any]) -> str:
    """The checksum, once it is known to be right; takes it out of the document."""
    checksum = document.pop("checksum", None)
    if not isinstance(checksum, str):
        raise SnapshotError("the snapshot lacks its checksum: fetch it again")
    end = _BEFORE + checksum.encode(errors="replace") + _AFTER
    data = data.rstrip()
    if data.endswith(end):
        hashed = hashlib.sha256(memoryview(data)[: -len(end)])
        hashed.update(b"}")
        if hashed.hexdigest() == checksum:
            return checksum
    # Somebody may have formatted the document, which changes nothing.
    if hashlib.sha256(_canonical_json(document)).hexdigest() != checksum:
        raise SnapshotError("the snapshot was altered: its checksum does not match; fetch it again")
    return checksum


def _read(document: dict[str, Any], checksum: str) -> Snapshot:
    environment = document.get("environment")
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise SnapshotError("the snapshot's environment is no object of texts: fetch it again")
    for name in ENVIRONMENT_COLUMNS:
        if name not in environment:
            raise SnapshotError(f"the snapshot's environment lacks {name}: fetch it again")
    unit = document.get("unit")
    if unit not in UNITS:
        raise SnapshotError(f"the snapshot's unit is {_show(unit)}: give one of {', '.join(UNITS)}")
    try:
        chip = soc_of(environment["soc"])
    except UnknownSocError as error:
        raise SnapshotError(f"the snapshot is of another chip: {_cut(str(error))}") from None
    configs = [_config(index, one) for index, one in enumerate(_list(document, "configs"))]
    ladder = Ladder()
    seen = set()
    for one in _list(document, "families"):
        if not isinstance(one, dict):
            raise SnapshotError(f"a family of the snapshot is {_show(one)}: give an object")
        family = _family(one.get("family"))
        if family in seen:
            raise SnapshotError(f"the snapshot has the family {family} twice: fetch it again")
        seen.add(family)
        reader = _FamilyReader(family, configs, chip)
        ladder.add_all(family, reader.entries(_list(one, "shapes")))
        portfolio = reader.portfolio(_list(one, "portfolio"))
        if portfolio:
            ladder.set_portfolio(family, portfolio)
    ladder.settle()
    return Snapshot(environment, unit, ladder, checksum)


class _FamilyReader:
    """Rows of one family: their sizes checked, and each configuration's legality once."""

    def __init__(self, family: PfaFamily, configs: list[KernelConfig], chip: Soc) -> None:
        self._family = family
        self._configs = configs
        self._chip = chip
        self._legal: dict[int, KernelConfig] = {}
        self._times: dict[str, str] = {}

    def entries(self, rows: Iterable[Any]) -> list[tuple[int, int, Entry]]:
        entries = []
        sizes = set()
        for row in rows:
            if type(row) is not list or len(row) != 8:
                raise SnapshotError(f"a shape of the snapshot is {_show(row)}: give a list of 8")
            b, s2, index, cost, default_cost, measurement, verified_at, full = row
            self._check_sizes(b, s2)
            if (b, s2) in sizes:
                raise SnapshotError(f"the snapshot has b={b} s2={s2} twice in {self._family}: fetch it again")
            sizes.add((b, s2))
            cost, default_cost = _cost(cost), _cost(default_cost)
            if type(measurement) is not int or not 0 <= measurement <= _MAX_ID:
                raise SnapshotError(f"a measurement's id is {_show(measurement)}: give a whole number from 0")
            if type(verified_at) is not str or len(verified_at) > _MAX_TIME_CHARACTERS:
                raise SnapshotError(f"a time of verification is {_show(verified_at)}: give ISO 8601, or ''")
            if type(full) is not bool:
                raise SnapshotError(f"full is {_show(full)} in a shape of the snapshot: give true or false")
            verified_at = self._times.setdefault(verified_at, verified_at)  # many share one
            entries.append((b, s2, Entry(self._config(index), cost, default_cost, measurement, verified_at, full)))
        return entries

    def portfolio(self, rows: Iterable[Any]) -> list[Member]:
        members = []
        for row in rows:
            if type(row) is not list or len(row) != 3:
                raise SnapshotError(f"a portfolio's member is {_show(row)}: give a list of 3")
            b, s2, index = row
            self._check_sizes(b, s2)
            members.append((b, s2, self._config(index)))
        return members

    def _check_sizes(self, b: Any, s2: Any) -> None:
        if type(b) is not int or not 1 <= b <= MAX_BATCH:
            raise SnapshotError(f"b is {_show(b)} in the snapshot: give a whole number from 1 to {MAX_BATCH}")
        if type(s2) is not int or not self._family.s1 <= s2 <= MAX_S2:
            raise SnapshotError(
                f"s2 is {_show(s2)} in the snapshot: give a whole number from s1 ({self._family.s1}) to {MAX_S2}"
            )

    def _config(self, index: Any) -> KernelConfig:
        if type(index) is not int:
            raise SnapshotError(f"a configuration's index is {_show(index)}: give a whole number")
        config = self._legal.get(index)
        if config is None:
            if not 0 <= index < len(self._configs):
                raise SnapshotError(
                    f"the snapshot refers to configuration {_show(index)} of {len(self._configs)}: fetch it again"
                )
            config = self._configs[index]
            broken = violations(config, self._family, self._chip)
            if broken:
                raise SnapshotError(f"configuration {index} of the snapshot is illegal: {_cut(broken[0].message)}")
            config = self._legal[index] = canonical(config, self._family)
        return config


def _family(value: Any) -> PfaFamily:
    if not isinstance(value, dict) or sorted(value) != sorted(_FAMILY_FIELDS):
        raise SnapshotError(f"a family of the snapshot is {_show(value)}: give {', '.join(_FAMILY_FIELDS)}")
    try:
        return PfaShape(b=1, s2=MAX_S2, **value).family
    except ShapeError as error:
        raise SnapshotError(f"a family of the snapshot is not legal: {_cut(str(error))}") from None


def _config(index: int, value: Any) -> KernelConfig:
    if not isinstance(value, dict):
        raise SnapshotError(f"configuration {index} of the snapshot is {_show(value)}: give an object")
    try:
        return KernelConfig.from_json(value)
    except ConfigError as error:
        raise SnapshotError(f"configuration {index} of the snapshot cannot be read: {_cut(str(error))}") from None


def _cost(value: Any) -> float:
    # A whole number may be too large for a float, and is then refused as any other.
    if type(value) not in (float, int) or not (0 < value < math.inf) or value > 1e300:
        raise SnapshotError(f"a cost is {_show(value)} in the snapshot: give a finite number above 0")
    return float(value)


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise SnapshotError(f"{name} is {_show(value)} in the snapshot: give a list")
    return value


def _show(value: object) -> str:
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too long to show"


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"
