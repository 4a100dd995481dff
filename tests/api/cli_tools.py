"""Running ``pfatune`` as people do, and databases for it to read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.source import kernel_digest

#: The console script beside the interpreter that runs the tests.
PFATUNE = str(Path(sys.executable).with_name("pfatune"))
SMALL = ["--b", "2", "--s2", "1024"]
WORKLOAD = Workload(PfaShape(2, 1024))
ENVIRONMENT = Environment("sim", "950PR", "0.2.0", "2.13.0", kernel_digest(), "0123456789abcdef")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")


def environ(cache: Path, **more: str) -> dict[str, str]:
    """An environment that has nothing of pfatune's but the cache."""
    return {**{name: os.environ[name] for name in _KEPT if name in os.environ}, "PFATUNE_CACHE": str(cache), **more}


def pfatune(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in ``folder``, with a cache that is not there yet."""
    return subprocess.run(
        [PFATUNE, *arguments],
        cwd=folder,
        env=dict(env or environ(folder / "cache")),
        input=text,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def default() -> KernelConfig:
    """The default configuration of ``WORKLOAD`` as it is measured."""
    return canonical(default_config(WORKLOAD.shape), WORKLOAD.shape.family)


def other(**fields: int) -> KernelConfig:
    """The default with some whole-number fields changed."""
    return KernelConfig.from_json({**default().to_json(), **fields})


def fill(path: Path, environment: Environment = ENVIRONMENT) -> KernelConfig:
    """A database in which ``WORKLOAD`` is tuned, with a failure among its measurements; returns what is served."""
    better = other(stitch_function_max_num=64)
    with Store.open(path) as store:
        env = store.environment_id(environment)
        rows = [
            Measurement(WORKLOAD, default(), Kind.OK, 2000.0, seconds=3, peak_bytes=300 << 20),
            Measurement(WORKLOAD, better, Kind.OK, 1000.0, seconds=2),
            Measurement(
                WORKLOAD, other(stitch_function_max_num=32), Kind.DOES_NOT_FIT, None, message="UB is full\nline two"
            ),
        ]
        ids = store.add(env, rows)
        shapes = (WORKLOAD.shape,)
        verdict = store.add_verification(env, Verification(WORKLOAD.shape.family, better, True, 0.0, shapes))
        store.promote(env, ids[1], ids[0], verdict)
    return better
