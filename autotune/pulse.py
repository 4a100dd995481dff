"""The sign of life that a health check looks for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_EVERY = 1.0  # seconds
#: Seconds in which the main loop must have come by; starting the trial server may take two minutes.
_LONGEST_SILENCE = 180.0


class Pulse:
    """A thread that calls ``beat`` every second, unless the main loop has not called ``sign`` for long."""

    def __init__(self, beat: Callable[[], None], *, every: float = _EVERY, silence: float = _LONGEST_SILENCE) -> None:
        self._beat = beat
        self._every = every
        self._silence = silence
        self._seen = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def sign(self) -> None:
        """The main loop has come by."""
        self._seen = time.monotonic()

    def _run(self) -> None:
        while True:
            if time.monotonic() - self._seen < self._silence:
                with suppress(OSError):  # no beat is what is seen of it, and nothing else depends on it
                    self._beat()
            if self._end.wait(self._every):
                return
