"""What can go wrong around a measurement, one class for each condition.

None of these says anything about a configuration; those are kinds of a measurement.
"""

from __future__ import annotations


class WorkerSetupError(RuntimeError):
    """The worker cannot measure at all: something is missing or not writable. The message says what to do."""


class DefaultFailedError(RuntimeError):
    """The default configuration of a shape could not be measured, so nothing can be compared with it.

    ``by_machine``: it was the machine that failed, so that another attempt may do better.
    """

    def __init__(self, message: str, *, by_machine: bool = False) -> None:
        super().__init__(message)
        self.by_machine = by_machine
