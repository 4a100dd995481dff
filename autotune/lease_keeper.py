"""Holding on to a job while its trials run, and noticing when it is another worker's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..db.errors import LeaseLostError
from ..db.job_records import Lease
from ..db.jobs import JobQueue

_RETRY_SECONDS = 1.0  # between attempts while the database does not answer


class LeaseKeeper:
    """A thread that renews a lease three times as often as it runs out, for as long as the block lasts.

    ``cancel`` is called, from that thread, when the job is to be cancelled or its lease is lost:
    taken over by another worker, or not renewed for so long that it must have run out. The clock
    for that is this machine's, started before each renewal, so that it errs on the safe side.
    """

    def __init__(self, jobs: JobQueue, lease: Lease, *, seconds: float, cancel: Callable[[], None]) -> None:
        self._jobs = jobs
        self._lease = lease
        self._seconds = seconds
        self._cancel = cancel
        self._renewed = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of job {lease.job_id}", daemon=True)
        self.lost = False
        self.cancel_requested = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def lose(self) -> None:
        """The lease was found to be lost."""
        self.lost = True
        self._cancel()

    def request_cancel(self) -> None:
        """The job was found to be cancelled."""
        self.cancel_requested = True
        self._cancel()

    def _keep(self) -> None:
        pause = self._seconds / 3
        while not self._end.wait(pause):
            asked = time.monotonic()
            try:
                cancelled = self._jobs.heartbeat(self._lease, seconds=self._seconds)
            except LeaseLostError:
                if not self._end.is_set():  # else it was this worker that ended the job
                    self.lose()
                return
            except Exception:  # whatever keeps the database from answering, it may pass
                if time.monotonic() - self._renewed > self._seconds:
                    self.lose()
                    return
                pause = min(_RETRY_SECONDS, self._seconds / 3)
                continue
            self._renewed = asked
            pause = self._seconds / 3
            if cancelled and not self.cancel_requested:
                self.request_cancel()
