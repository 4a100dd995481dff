"""Ctrl-C and its relatives: what was begun is ended in order, and nothing that finished is lost.

A signal becomes a ``KeyboardInterrupt``: at once in general, but while a tuning run is going on
only where the run is between two steps, so that a result is never dropped half stored.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_IMPATIENT = 3  # signals after which nothing is waited for any longer


class Stop:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._count = 0
        self._deferred = False

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells have it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + (self.signal or signal.SIGINT)

    def install(self) -> None:
        """Handle SIGINT, SIGTERM and, unless ``nohup`` had it ignored, SIGHUP."""
        self.signal, self._count = None, 0
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._handle)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block a signal only takes effect in ``check``; the third one at once."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def request(self, number: int) -> None:
        """Ask for a stop as that signal would, at the next ``check``."""
        self.signal = self.signal or number

    def check(self) -> None:
        """Here it is safe to stop.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        if self.signal is not None:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or number
        self._count += 1
        if not self._deferred or self._count >= _IMPATIENT:
            raise KeyboardInterrupt


#: The process's own; a process has one set of signal handlers.
stop = Stop()
