"""A program that tunes until it is killed: ``tuner_parent.py DATABASE FOLDER MARK TRIALS``.

It prints each configuration and its kind once the loop has shown it as finished.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stand_in import LARGE, SMALL, StandIn, stand_in_pool

from pfatune.autotune.progress import Budget, Progress
from pfatune.autotune.tuner import Tuner
from pfatune.db import Store

database, folder, mark, trials = sys.argv[1:]
shown = set[str]()


def show(progress: Progress) -> None:
    if progress.trials > progress.known and progress.last not in shown:
        shown.add(progress.last)
        print(progress.last, flush=True)


with Store.open(database) as store, stand_in_pool(Path(folder), mark) as pool:
    backend = StandIn(lambda config: {"seconds": 0.03})
    Tuner(store, backend, pool, [LARGE, SMALL], budget=Budget(int(trials)), parallel=2, watch=show).run()
