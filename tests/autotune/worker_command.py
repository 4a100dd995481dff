"""The command line with the stand-in for the embedded worker: ``worker_command.py MARK FOLDER ARGUMENTS``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stand_in import StandIn, stand_in_pool

from pfatune.api.cli import embedded, main, tune
from pfatune.autotune.trial import TrialPool

mark, folder, *arguments = sys.argv[1:]


@contextmanager
def worker(*args: Any, **options: Any) -> Iterator[tuple[StandIn, TrialPool]]:
    with stand_in_pool(Path(folder), mark) as pool:
        yield StandIn(lambda config: {"seconds": 0.3}), pool


embedded.check = lambda *args: None
embedded.worker = worker
tune.check, tune.worker = embedded.check, embedded.worker  # which it imported by name
main.stop.install()
sys.exit(main.run(arguments))
