"""The command line's log: warnings on stderr, and with -v what is being done."""

from __future__ import annotations

import logging
import sys
from functools import cache

import structlog

_level = logging.WARNING


def be_verbose() -> None:
    """Let the log tell more than warnings."""
    global _level
    _level = logging.INFO
    log.cache_clear()


@cache
def log() -> structlog.typing.FilteringBoundLogger:
    """The logger, which writes to stderr: in colour only on a terminal."""
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level),
    )
    return logger
