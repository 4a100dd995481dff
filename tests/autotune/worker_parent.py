"""A worker of the job queue on the stand-in: ``worker_parent.py DATABASE FOLDER MARK LEASE``.

SIGTERM drains it, a second one stops it. Its log goes to stdout, a JSON line for each event.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import structlog
from stand_in import StandIn, stand_in_pool

from pfatune.autotune.job_worker import JobWorker
from pfatune.db import Store

parser = argparse.ArgumentParser()
parser.add_argument("database")
parser.add_argument("folder", type=Path)
parser.add_argument("mark")
parser.add_argument("lease", type=float)
parser.add_argument("--once", action="store_true")
parser.add_argument("--attempts", type=int, default=3)
parser.add_argument("--busy", type=float, default=5.0, help="seconds to wait for the database's lock")
parser.add_argument("--parallel", type=int, default=1)
parser.add_argument("--retry", type=float, default=0.2, help="seconds before a job that failed is tried again")
parser.add_argument("--special", type=json.loads, default={}, help="what is special with every configuration")
options = parser.parse_args()

log = structlog.wrap_logger(
    structlog.PrintLogger(sys.stdout),
    processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
    wrapper_class=structlog.make_filtering_bound_logger(0),
)
with (
    Store.open(options.database, busy_timeout=options.busy) as store,
    stand_in_pool(options.folder, options.mark) as pool,
):
    worker = JobWorker(
        store,
        StandIn(lambda config: options.special),
        pool,
        owner=f"worker:{os.getpid()}",
        lease_seconds=options.lease,
        poll_seconds=0.1,
        parallel=options.parallel,
        max_attempts=options.attempts,
        retry_seconds=options.retry,
        log=log,
    )
    signals = 0

    def handle(number: int, frame: FrameType | None) -> None:
        global signals
        signals += 1
        (worker.drain if signals == 1 else worker.stop)()

    signal.signal(signal.SIGTERM, handle)
    log.info("ready", server=pool.server_pid)
    worker.run(once=options.once)
