"""A program that runs trials until it is killed: ``pool_parent.py FOLDER MARK READY JOB...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from trial_tools import environ

from pfatune.autotune.trial import TrialPool

folder, mark, ready, *jobs = sys.argv[1:]
with TrialPool(environ(mark), "fault_jobs", folder=Path(folder)) as pool:
    for text in jobs:
        pool.submit(json.loads(text))
    Path(ready).write_text(str(pool.server_pid))
    while pool.running:
        pool.wait(1)
