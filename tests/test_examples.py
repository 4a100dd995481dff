"""The examples run as their help says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.source import kernel_digest

ROOT = Path(__file__).parents[1]
DECODE_LOOP = ROOT / "examples" / "decode_loop.py"
#: Kept from run to run: the interpreter takes a minute to build.
CACHE = os.environ.get("PFATUNE_CACHE") or str(Path.home() / ".cache" / "pfatune")


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The decode loop, run to its end as people run it."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(DECODE_LOOP), *arguments],
        cwd=folder,
        env={**os.environ, "PFATUNE_CACHE": CACHE},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def table(output: str) -> list[list[str]]:
    """The rows of the printed table, cell by cell."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("step"))
    rows = [line.split() for line in lines[start + 1 :]]
    return [row for row in rows if row[0].isdigit()]


@pytest.mark.sim
def test_a_decode_loop_on_an_empty_database(tmp_path: Path) -> None:
    Store.open(tmp_path / "empty.db").close()
    done = run("--db", "empty.db", "--steps", "2", "--batch", "1", "--tokens", "128", folder=tmp_path)
    assert done.returncode == 0
    assert "configurations: built-in, 0 tuned shapes (empty.db serves nothing" in done.stdout
    assert len(done.stderr.splitlines()) == 1  # the same, from the log
    assert "Nothing here ran on hardware." in done.stdout
    shape = PfaShape(b=1, s2=27)
    (row,) = table(done.stdout)
    assert row[:5] == ["0", "1", "27", "default", canonical(default_config(shape), shape.family).digest]
    assert int(row[5].replace(",", "")) > 0
    assert row[5] == row[6]


@pytest.mark.sim
def test_a_decode_loop_runs_what_was_tuned(tmp_path: Path) -> None:
    shape = PfaShape(b=1, s2=128)
    default = canonical(default_config(shape), shape.family)
    better = canonical(KernelConfig.from_json({**default.to_json(), "g_tile": 4}), shape.family)
    with Store.open(tmp_path / "tuned.db") as store:
        env = store.environment_id(Environment("sim", "950PR", "0.2.0", "2.13.0", kernel_digest(), "0123456789abcdef"))
        workload = Workload(shape)
        ids = store.add(
            env, [Measurement(workload, one, Kind.OK, cost) for one, cost in ((default, 2.0), (better, 1.0))]
        )
        verdict = store.add_verification(env, Verification(shape.family, better, True, 0.0, (shape,)))
        store.promote(env, ids[1], ids[0], verdict)
    done = run("--db", "tuned.db", "--steps", "1", "--batch", "1", "--tokens", "128", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = table(done.stdout)
    assert row[3:5] == ["bucket", better.digest]
    assert row[5] != row[6]


@pytest.mark.torch
def test_the_help_names_every_source() -> None:
    done = run("--help", folder=ROOT)
    assert done.returncode == 0
    for option in ("--db", "--url", "--snapshot", "--steps"):
        assert option in done.stdout


@pytest.mark.torch
@pytest.mark.parametrize("arguments", [("--steps", "0"), ("--db", "a", "--url", "http://b"), ("--soc", "310")])
def test_what_cannot_be_run_is_said(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.torch
def test_what_the_page_for_engines_imports_is_there() -> None:
    text = (ROOT / "docs" / "engines.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    imports = [line for block in blocks for line in block.splitlines() if line.startswith("from pfatune")]
    assert len(imports) == 3
    for block in blocks:
        compile(block, "engines.md", "exec")
    exec("\n".join(imports), {})
