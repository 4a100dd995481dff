"""Options that several commands share, and the way from them to workloads and configurations."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ...autotune.strategy import DEFAULT, NAMES
from ...kernel.shapes import CASES, PfaShape, Workload
from ...kernel.soc import Soc, soc
from ..errors import InputError

if TYPE_CHECKING:
    from ..settings import Settings

MAX_WORKLOADS = 256  # of one command
_DEFAULTS = {f.name: f.default for f in fields(PfaShape)}


def whole(name: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of one option's whole number within limits."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise InputError(f"{name} is {text!r}: give a whole number from {low} to {high}")
        return value

    return parse


def number(name: str, high: float, unit: str) -> Callable[[str], float]:
    """A parser of one option's number above 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= high:
            raise InputError(f"{name} is {text!r}: give {unit} above 0, up to {high:.0f}")
        return value

    return parse


class Request(NamedTuple):
    """What the options of a command for one shape come to."""

    workload: Workload
    chip: Soc
    settings: Settings


class Wholes(tuple[int, ...]):
    """Several whole numbers of one option; a plain tuple would be several arguments to typer."""


def _wholes(name: str) -> Callable[[str], Wholes]:
    """A parser of whole numbers separated by commas; whether a shape may have them is the shape's to say."""

    def parse(text: str) -> Wholes:
        try:
            return Wholes(int(part) for part in text.split(","))
        except ValueError:
            raise InputError(f"{name} is {text!r}: give a whole number, or several separated by commas") from None

    return parse


def _field(name: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{name} is {text!r}: give a whole number") from None

    return parse


def _option(name: str, parser: Callable[[str], Any], metavar: str, text: str, panel: str | None = None) -> Any:
    return typer.Option(name, parser=parser, metavar=metavar, help=text, rich_help_panel=panel, show_default=False)


_SHAPE = "Shape: --case, or --b and --s2"
SEARCH_PANEL = "Search"
TRIALS_PANEL = "Trials"


def _shape_option(field: str, text: str) -> Any:
    name = f"--{field.replace('_', '-')}"
    return _option(name, _field(name), "N", f"{text} Default {_DEFAULTS[field]}.", _SHAPE)


_CASE_HELP = "A case of the kernel's own test, for example pfa_fp8_b2_s1_1_s2_1k."
_B_HELP = "Requests in the batch."
_S2_HELP = "KV tokens of the longest request."


def _complete_case(incomplete: str) -> list[str]:
    return [name for name in CASES if name.startswith(incomplete)]


def _case_option(text: str) -> Any:
    return typer.Option(
        "--case", metavar="NAME", help=text, autocompletion=_complete_case, rich_help_panel=_SHAPE, show_default=False
    )


Case = Annotated[str | None, _case_option(_CASE_HELP)]
Cases = Annotated[list[str] | None, _case_option(f"{_CASE_HELP} May be given several times.")]
B = Annotated[int | None, _option("--b", _field("--b"), "N", _B_HELP, _SHAPE)]
S2 = Annotated[int | None, _option("--s2", _field("--s2"), "N", _S2_HELP, _SHAPE)]
Bs = Annotated[
    Wholes | None, _option("--b", _wholes("--b"), "N[,N…]", f"{_B_HELP} Several: every combination.", _SHAPE)
]
S2s = Annotated[
    Wholes | None,
    _option("--s2", _wholes("--s2"), "N[,N…]", f"{_S2_HELP} Several: every combination.", _SHAPE),
]
S1 = Annotated[int | None, _shape_option("s1", "Query tokens of each request.")]
Nq = Annotated[int | None, _shape_option("nq", "Query heads, a multiple of nkv.")]
Nkv = Annotated[int | None, _shape_option("nkv", "KV heads.")]
Qd = Annotated[int | None, _shape_option("qd", "Elements of a head, a multiple of 32.")]
BlockSize = Annotated[int | None, _shape_option("block_size", "Tokens in a page of the KV cache, a multiple of 32.")]
ActualSeq = Annotated[
    Wholes | None,
    _option(
        "--actual-seq",
        _wholes("--actual-seq"),
        "N,N,…",
        "KV tokens of each request, one number for each. Default: all have s2.",
        _SHAPE,
    ),
]

_CONFIG = "Configuration: what is served for the shape, unless one is named"
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A JSON file with a configuration, as `pfatune config --json` prints it; - reads standard input.",
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
Digest = Annotated[
    str | None,
    typer.Option(
        "--digest",
        metavar="DIGEST",
        help="A configuration that was measured, by the first digits of its digest, as `pfatune history` shows it.",
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
UseDefault = Annotated[
    bool,
    typer.Option("--default", help="The kernel's own configuration for the shape.", rich_help_panel=_CONFIG),
]

_WHERE = "Where"
Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH|URL",
        help="Database of measurements. Default: PFATUNE_DB, else pfatune.db.",
        rich_help_panel=_WHERE,
        show_default=False,
    ),
]
SocName = Annotated[
    str | None,
    typer.Option(
        "--soc",
        metavar="NAME",
        help="Chip: 950PR or 950DT. Default: PFATUNE_SOC, else 950PR.",
        rich_help_panel=_WHERE,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _set_verbosity(value: bool) -> bool:
    if value:
        from ..log import be_verbose

        be_verbose()
    return value


Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Tell on stderr what is being done.", callback=_set_verbosity)
]

Timeout = Annotated[
    float | None,
    _option(
        "--timeout",
        number("--timeout", 86400, "seconds"),
        "SECONDS",
        "Longest that one trial may take. Default: PFATUNE_TRIAL_TIMEOUT, else 300.",
        TRIALS_PANEL,
    ),
]
MemoryGib = Annotated[
    float | None,
    _option(
        "--memory-gib",
        number("--memory-gib", 1024, "GiB"),
        "GIB",
        "Most memory of one trial. Default: PFATUNE_TRIAL_MEMORY_GIB, else 8.",
        TRIALS_PANEL,
    ),
]


def _strategy(text: str) -> str:
    if text not in NAMES:
        near = difflib.get_close_matches(text, NAMES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(NAMES)}"
        raise InputError(f"--strategy is {text!r}: {remedy}")
    return text


Strategy = Annotated[
    str | None,
    _option("--strategy", _strategy, "NAME", f"How to search: {', '.join(NAMES)}. Default {DEFAULT}.", SEARCH_PANEL),
]


def find_case(name: str) -> PfaShape:
    """The named case.

    Raises:
        InputError: no case has that name; the message suggests one that is like it.
    """
    if name in CASES:
        return CASES[name]
    near = difflib.get_close_matches(name, CASES, n=1, cutoff=0.4)
    remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(CASES)}"
    raise InputError(f"case {name!r} is unknown: {remedy}")


def workloads(
    cases: Sequence[str],
    bs: Sequence[int] | None,
    s2s: Sequence[int] | None,
    static: dict[str, int | None],
    actual_seq: Sequence[int] | None,
) -> list[Workload]:
    """The workloads that the options of a command name, each once, in their order.

    Raises:
        InputError, ShapeError: they contradict one another, or a shape is not one.
    """
    given = {name: value for name, value in static.items() if value is not None}
    if cases:
        for name, value in {"b": bs, "s2": s2s, **given}.items():
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"--case and {option} are both given: a case fixes its shape; give one or the other")
        shapes = [find_case(name) for name in cases]
    else:
        missing = [name for name, value in (("--b", bs), ("--s2", s2s)) if value is None]
        if len(missing) == 2:
            raise InputError("no shape is given: give --b and --s2, or --case NAME")
        if missing:
            raise InputError(f"{missing[0]} is missing: a shape needs --b and --s2")
        combinations = list(itertools.product(bs or (), s2s or ()))
        if len(combinations) > MAX_WORKLOADS:
            raise InputError(
                f"--b and --s2 make {len(combinations)} shapes: give at most {MAX_WORKLOADS} at once, and tune twice"
            )
        shapes = [PfaShape(b, s2, **given) for b, s2 in combinations]
    seq = None if actual_seq is None else tuple(actual_seq)
    return list(dict.fromkeys(Workload(shape, seq) for shape in shapes))


def request(
    case: str | None,
    b: int | None,
    s2: int | None,
    static: dict[str, int | None],
    actual_seq: Sequence[int] | None,
    db: str | None,
    soc_name: str | None,
) -> Request:
    """What the options of a command for one shape come to.

    Raises:
        InputError, ShapeError, UnknownSocError: they contradict one another, or name nothing that there is.
    """
    from ..settings import load_settings

    cases = [] if case is None else [case]
    found = workloads(cases, None if b is None else [b], None if s2 is None else [s2], static, actual_seq)
    settings = load_settings(db=db, soc_name=soc_name)
    return Request(found[0], soc(settings.soc), settings)


def shape_options(workload: Workload) -> str:
    """The options that name a workload, without those that are at their defaults."""
    shape = workload.shape
    parts = [
        f"--{field.replace('_', '-')} {value}"
        for field in ("b", "s2", "s1", "nq", "nkv", "qd", "block_size")
        if (value := getattr(shape, field)) != _DEFAULTS[field]
    ]
    if workload.actual_seq is not None:
        parts.append(f"--actual-seq {','.join(map(str, workload.actual_seq))}")
    return " ".join(parts)
