"""``pfatune shapes`` and ``pfatune tune --trace``. The trials are the stand-in's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, environ, fill

from pfatune.api.cli import main as cli
from pfatune.db import Store
from pfatune.kernel.shapes import PfaShape, Workload

TESTS = Path(__file__).parents[1]
AZURE = str(TESTS / "data" / "azure_requests.csv")
#: Two requests at once: every decode step is of b=2, up to 1024 tokens, the bucket that ``fill`` tunes.
MOONCAKE = '{"timestamp": 0, "input_length": 900, "output_length": 101}\n' * 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PFATUNE_DB", "PFATUNE_SOC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PFATUNE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "two.jsonl").write_text(MOONCAKE)
    return tmp_path


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_shapes_are_told_by_weight(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(["shapes", "--trace", AZURE], capsys)
    assert (found["requests"], found["max_batch"], found["step_ms"]) == (40, 64, 30)
    assert len(found["buckets"]) == found["total_buckets"]
    assert sum(bucket["weight"] for bucket in found["buckets"]) == pytest.approx(1)
    top = document(["shapes", "--trace", AZURE, "--top", "2"], capsys)
    assert top["buckets"] == found["buckets"][:2]
    assert "report" not in top
    assert cli.run(["shapes", "--trace", AZURE, "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "azure_requests.csv: 40 requests on nq=12 nkv=1" in out
    assert f"and {found['total_buckets'] - 2} more" in out


def test_shapes_follow_the_model_and_the_heads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(["shapes", "--trace", "two.jsonl", "--nkv", "2", "--nq", "16"], capsys)
    assert [(one["b"], one["s2"], one["steps"]) for one in found["buckets"]] == [(2, 1024, 100)]
    assert (found["family"]["nq"], found["family"]["nkv"]) == (16, 2)
    one = document(["shapes", "--trace", "two.jsonl", "--max-batch", "1", "--step-ms", "0.5"], capsys)
    assert [(one["b"], one["s2"], one["steps"]) for one in one["buckets"]] == [(1, 1024, 200)]
    assert one["full_steps"] == 200


def test_what_the_kernel_cannot_serve_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.jsonl").write_text('{"timestamp": 0, "input_length": 131070, "output_length": 9}')
    assert cli.run(["shapes", "--trace", "long.jsonl"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "1 requests that are longer than the kernel's largest s2: 6 tokens of theirs are not counted" in out


@pytest.mark.slow
def test_a_picture_is_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["shapes", "--trace", AZURE, "--plot", "t.png"]) == 0
    assert "picture: t.png" in capsys.readouterr().out
    assert Path("t.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_is_of_what_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = fill(folder / "pfatune.db")
    found = document(["shapes", "--trace", "two.jsonl", "--report"], capsys)["report"]
    assert (found["unit"], found["coverage"]) == ("cycles", 1)
    assert found["environment"]["digest"] == ENVIRONMENT.digest
    assert found["expected_cost"] == {"default": 2000, "tuned": 1000, "portfolio": 1000}
    assert found["speedup"] == {"tuned": 2, "portfolio": 2}
    assert found["portfolio_configs"] == [better.to_json()]
    assert [(one["covered"], one["provenance"]) for one in found["buckets"]] == [(True, "exact")]
    assert cli.run(["shapes", "--trace", "two.jsonl", "--report"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Expected cost of a decode step of the traffic, in cycles (cost model)" in out
    assert "tuned 1,000, 2.00x as fast as the default, with 1 configuration " in out
    assert "covered 1 of 1 buckets, 100.0% of the decode steps" in out
    assert "nothing ran on hardware" in out


def test_a_report_of_nothing_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "pfatune.db")
    assert document(["shapes", "--trace", "two.jsonl", "--nkv", "2", "--report"], capsys)["report"] is None
    assert cli.run(["shapes", "--trace", "two.jsonl", "--report", "--soc", "950DT"]) == 0
    assert "nothing of this family is tuned for 950DT: `pfatune tune --trace`" in capsys.readouterr().out
    Path("far.jsonl").write_text(MOONCAKE.replace("900", "90000"))
    assert cli.run(["shapes", "--trace", "far.jsonl", "--report"]) == 0
    assert "unknown: of no bucket" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shapes"], "--trace is missing: give the file"),
        (["shapes", "--trace", "none"], "--trace none cannot be read: No such file or directory"),
        (["shapes", "--trace", "."], "--trace . cannot be read: Is a directory"),
        (["shapes", "--trace", "bad.csv"], "--trace bad.csv: line 2: ContextTokens is 'x'"),
        (["shapes", "--trace", "idle.jsonl"], "--trace idle.jsonl: no request takes a decode step"),
        (["shapes", "--trace", AZURE, "--max-batch", "0"], "--max-batch is '0': give a whole number from 1 to 1024"),
        (["shapes", "--trace", AZURE, "--step-ms", "-1"], "--step-ms is '-1': give milliseconds above 0"),
        (["shapes", "--trace", AZURE, "--step-ms", "1e-9"], "--step-ms is 1e-09: give at least 0.000001"),
        (["shapes", "--trace", AZURE, "--cover", "95"], "--cover is '95': give a share"),
        (["shapes", "--trace", AZURE, "--nq", "5", "--nkv", "2"], "nq is 5, which nkv 2 does not divide"),
        (["shapes", "--trace", AZURE, "--plot", "t.jpg"], "--plot is 't.jpg': give a file that ends in .png"),
        (["shapes", "--trace", AZURE, "--plot", "no/t.png"], "no is no folder: create it first"),
        (["shapes", "--trace", AZURE, "--db", "x.db"], "--db is for --report"),
        (["shapes", "--trace", AZURE, "--report"], "no database is here to read"),
        (["tune", "--trace", AZURE, "--b", "3"], "--trace and --b are both given"),
        (["tune", "--trace", AZURE, "--case", "x"], "--trace and --case are both given"),
        (["tune", "--b", "3", "--s2", "5", "--top", "2"], "--top is for the shapes of a trace: give --trace FILE"),
        (["tune", "--trace", "none"], "--trace none cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,1\n")
    Path("idle.jsonl").write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}')
    assert cli.run(arguments) in (1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pfatune: error: ")
    assert message in err
    assert err.count("\n") == 1


def tune(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(TESTS / "autotune"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environ(folder / "cache", PYTHONPATH=path, PFATUNE_DB=str(folder / "tuned.db"))
    command = [sys.executable, str(TESTS / "autotune" / "worker_command.py"), str(folder), str(folder / "runs")]
    done = subprocess.run(
        [*command, "tune", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_a_trace_is_tuned_the_heaviest_first_and_reported(folder: Path) -> None:
    out = tune(folder, "--trace", AZURE, "--top", "2", "--trials", "3", "--json")
    found = json.loads(out.splitlines()[-1])
    buckets = found["traffic"]["buckets"]
    assert [(one["shape"]["b"], one["shape"]["s2"]) for one in found["results"]] == [
        (one["b"], one["s2"]) for one in buckets[:2]
    ]
    with Store.open(folder / "tuned.db", read_only=True) as store:
        [(env_id, _)] = store.served_environments()
        for one in found["results"]:
            workload = Workload(PfaShape.from_json(one["shape"]))
            assert len({row.config for row in store.measurements(env_id, workload=workload)}) >= 3
    report = found["traffic"]["report"]
    covered = [one for one in report["buckets"] if one["covered"]]
    assert covered == report["buckets"][:2]
    assert report["coverage"] == pytest.approx(sum(one["weight"] for one in covered))
    for name in ("default", "tuned", "portfolio"):
        expected = sum(one["weight"] * one[f"{name}_cost"] for one in covered) / report["coverage"]
        assert report["expected_cost"][name] == pytest.approx(expected)
    assert report["speedup"]["tuned"] >= report["speedup"]["portfolio"] > 0
    again = tune(folder, "--trace", AZURE, "--top", "2", "--trials", "3")
    assert "Expected cost of a decode step of the traffic, in us" in again
    assert "covered" in again
