"""Traces of requests to language models, as files of other projects have them.

Two formats, told apart by their content:

- CSV with the columns ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, as in the Azure LLM
  inference traces (Azure/AzurePublicDataset, CC-BY 4.0); the timestamp is ISO 8601, UTC unless it says otherwise;
- a JSON object on each line with ``timestamp`` (milliseconds), ``input_length`` and ``output_length``, as in
  the Mooncake traces.

Further columns and names are ignored, and so are empty lines.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

#: Limits of what is read, so that memory is bounded: some 300 MB for the most requests.
MAX_REQUESTS = 1_000_000
MAX_LINE = 1 << 20  # bytes
MAX_TOKENS = 2**31 - 1
_MAX_MILLISECONDS = 10**15

_CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_JSON_NAMES = ("timestamp", "input_length", "output_length")
_FORMATS = f"give a CSV with the columns {', '.join(_CSV_COLUMNS)}, or JSON lines with {', '.join(_JSON_NAMES)}"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60  # characters of a value in a message


class TrafficError(ValueError):
    """A file that is no trace of requests. The message has the file, the line, the value and the remedy."""


class Request(NamedTuple):
    """One request: when it arrived, in nanoseconds from the first one's arrival, and its tokens.

    ``context`` are those of the prompt, ``generated`` those of the answer.
    """

    arrival: int
    context: int
    generated: int


def read(path: Path) -> list[Request]:
    """The requests of a trace in order of arrival; those that arrived together as the file has them.

    Raises:
        TrafficError: the file cannot be read, has no request or more than ``MAX_REQUESTS``, or a line is not
            UTF-8, longer than ``MAX_LINE`` bytes, or lacks a number or has one that is out of range.
    """
    found: list[Request] = []
    try:
        with path.open("rb") as file:
            for request in _requests(file):
                if len(found) == MAX_REQUESTS:
                    raise _LineError(f"there are more than {MAX_REQUESTS:,} requests: give a part of the trace")
                found.append(request)
    except OSError as error:
        raise TrafficError(f"{path} cannot be read: {error.strerror}; give the file of a trace") from None
    except ValueError as error:
        text = str(error) if isinstance(error, _LineError) else f"the name is unusable ({error}): give a file's path"
        raise TrafficError(f"{path}: {text}") from None
    if not found:
        raise TrafficError(f"{path} has no request: {_FORMATS}")
    found.sort(key=lambda request: request.arrival)
    first = found[0].arrival
    return [Request(arrival - first, context, generated) for arrival, context, generated in found]


class _LineError(ValueError):
    pass


def _requests(file: BinaryIO) -> Iterator[Request]:
    parse: Callable[[str], Request] | None = None
    for number, text in _lines(file):
        try:
            if parse is not None:
                yield parse(text)
            elif text.startswith("{"):
                parse = _from_json
                yield parse(text)
            else:
                parse = _csv_parser(text)
        except _LineError as error:
            raise _LineError(f"line {number}: {error}") from None


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, after their numbers."""
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise _LineError(f"line {number} is longer than {MAX_LINE >> 10} KiB: {_FORMATS}")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            bad = line[error.start : error.end].hex(" ")
            raise _LineError(f"line {number} is not UTF-8 (byte {bad}): {_FORMATS}") from None
        if text:
            yield number, text


def _csv_parser(header: str) -> Callable[[str], Request]:
    columns = [column.strip() for column in _cells(header)]
    missing = [column for column in _CSV_COLUMNS if column not in columns]
    if missing:
        raise _LineError(f"{_short(header)} is no header with {' and '.join(missing)}: {_FORMATS}")
    places = [columns.index(column) for column in _CSV_COLUMNS]

    def parse(text: str) -> Request:
        cells = _cells(text)
        if len(cells) != len(columns):
            raise _LineError(
                f"{_short(text)} has {len(cells)} columns, the header {len(columns)}: give a value for each"
            )
        when, context, generated = (cells[place].strip() for place in places)
        return Request(_time(when), _whole("ContextTokens", context), _whole("GeneratedTokens", generated))

    return parse


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise _LineError(f"{_short(text)} is no line of a CSV ({error}): {_FORMATS}") from None


def _time(text: str) -> int:
    """Nanoseconds since 1970."""
    remedy = "give a date and time like 2023-11-16 18:15:46.6805900"
    parts = _TIME.fullmatch(text)
    if parts is None:
        raise _LineError(f"TIMESTAMP is {_short(text)}: {remedy}")
    day, clock, fraction, zone = parts.groups()
    try:
        when = datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}")
    except ValueError as error:
        raise _LineError(f"TIMESTAMP is {_short(text)} ({error}): {remedy}") from None
    return (when - _EPOCH) // timedelta(seconds=1) * 10**9 + int((fraction or "").ljust(9, "0"))


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= MAX_TOKENS):
        raise _LineError(f"{name} is {_short(text)}: give a whole number of tokens from 0 to {MAX_TOKENS}")
    return int(text)


def _from_json(text: str) -> Request:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise _LineError(f"{_short(text)} is not JSON ({reason}): give an object on each line") from None
    if not isinstance(data, dict):
        raise _LineError(f"{_short(text)} is no JSON object: give one with {', '.join(_JSON_NAMES)}")
    for name in _JSON_NAMES:
        if name not in data:
            raise _LineError(f"{name} is missing: give an object with {', '.join(_JSON_NAMES)}")
    when = data["timestamp"]
    if type(when) not in (int, float) or not (math.isfinite(when) and 0 <= when <= _MAX_MILLISECONDS):
        raise _LineError(
            f"timestamp is {_short(json.dumps(when))}: give milliseconds from 0 to {_MAX_MILLISECONDS:.0e}"
        )
    lengths = []
    for name in _JSON_NAMES[1:]:
        value = data[name]
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            raise _LineError(
                f"{name} is {_short(json.dumps(value))}: give a whole number of tokens from 0 to {MAX_TOKENS}"
            )
        lengths.append(value)
    return Request(when * 10**6 if type(when) is int else round(when * 1e6), *lengths)


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
