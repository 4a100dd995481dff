"""The command line's log: warnings on stderr, and with -v what is being done."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from functools import cache
from typing import TextIO

import structlog

_level = logging.WARNING


def be_verbose() -> None:
    """Let the log tell more than warnings."""
    global _level
    _level = logging.INFO
    log.cache_clear()


class _Lenient:
    """A stream that drops what cannot be written: a worker goes on when its log's reader or disk is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


@cache
def log() -> structlog.typing.FilteringBoundLogger:
    """The logger, which writes to stderr: in colour only on a terminal."""
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(_Lenient(sys.stderr)),  # type: ignore[arg-type]  # what print() needs of a file
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level),
    )
    return logger
