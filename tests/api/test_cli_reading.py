"""``config``, ``history`` and ``explain`` over a database that is known."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, PFATUNE, SMALL, default, environ, fill, other, pfatune

from pfatune.api.cli import main as cli
from pfatune.kernel.config import KernelConfig

CASE = ["--case", "pfa_fp8_b2_s1_1_s2_1k"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PFATUNE_DB", raising=False)
    monkeypatch.delenv("PFATUNE_SOC", raising=False)
    monkeypatch.setenv("PFATUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_config_serves_what_was_tuned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = fill(folder / "pfatune.db")
    found = document(["config", *CASE], capsys)
    assert found["provenance"] == "exact"
    assert KernelConfig.from_json(found["config"]) == better
    assert found["config_digest"] == better.digest
    assert (found["cost"], found["default_cost"], found["unit"]) == (1000, 2000, "cycles")
    assert (found["speedup"], found["verified"], found["max_abs_diff"]) == (2, True, 0)
    assert found["environment"]["digest"] == ENVIRONMENT.digest
    assert cli.run(["config", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "1,000 cycles (cost model), 2.00x as fast as the default" in out
    assert "nothing ran on hardware" in out


@pytest.mark.parametrize("database", [True, False])
def test_config_answers_with_the_default_and_says_how_to_tune(
    database: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if database:
        fill(folder / "pfatune.db")
    found = document(["config", "--b", "3", "--s2", "777", "--nkv", "2"], capsys)
    assert found["provenance"] == "default"
    assert "never tuned" in found["note"]
    assert "pfatune tune --b 3 --s2 777 --nkv 2" in found["note"]
    assert found["cost"] is None
    assert found["config"]["g_tile"] == 6
    assert (folder / "pfatune.db").exists() == database


@pytest.mark.parametrize(
    ("options", "provenance"),
    [
        (["--b", "2", "--s2", "1000"], "bucket"),
        (["--b", "3", "--s2", "2000"], "nearest"),
        (["--b", "2", "--s2", "1024", "--actual-seq", "1024,3"], "nearest"),
        (["--b", "16", "--s2", "1024"], "default"),
    ],
)
def test_config_has_the_ladder_of_the_service(
    options: list[str], provenance: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    better = fill(folder / "pfatune.db")
    found = document(["config", *options], capsys)
    assert found["provenance"] == provenance
    assert cli.run(["config", *options]) == 0
    out = capsys.readouterr().out
    if provenance == "default":
        assert found["measured_shape"] is found["cost"] is None
        return
    assert KernelConfig.from_json(found["config"]) == better
    assert (found["measured_shape"]["b"], found["measured_shape"]["s2"], found["cost"]) == (2, 1024, 1000)
    assert f"{provenance}, tuned for b=2" in out
    assert "not measured at this one" in " ".join(out.split())


def test_config_serves_no_other_chip_and_no_other_kernel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "old.db", replace(ENVIRONMENT, kernel_digest="0" * 16))
    found = document(["config", *SMALL, "--db", "old.db"], capsys)
    assert found["provenance"] == "default"
    assert "another version of the kernel" in found["note"]
    fill(folder / "new.db")
    found = document(["config", *SMALL, "--db", "new.db", "--soc", "950DT"], capsys)
    assert found["provenance"] == "default"
    assert "never tuned for 950DT" in found["note"]


@pytest.mark.slow
def test_what_config_prints_can_be_read_back(folder: Path) -> None:
    better = fill(folder / "pfatune.db")
    printed = pfatune(["config", *SMALL, "--json"], folder)
    explained = pfatune(["explain", *SMALL, "--config", "-", "--json"], folder, text=printed.stdout)
    assert json.loads(explained.stdout)["config_digest"] == better.digest


def test_history_lists_the_newest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = fill(folder / "pfatune.db")
    found = document(["history", *SMALL], capsys)
    assert [row["kind"] for row in found["measurements"]] == ["does_not_fit", "ok", "ok"]
    assert [row["speedup"] for row in found["measurements"]] == [None, 2, 1]
    assert found["measurements"][1]["config_digest"] == better.digest
    assert found["default_cost"] == 2000
    found = document(["history", *SMALL, "--kind", "ok", "--limit", "1"], capsys)
    assert found["total"] == 2
    assert len(found["measurements"]) == 1
    assert cli.run(["history", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "UB is full" in out
    assert "line two" not in out
    assert "2.00x" in out


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_history_keeps_every_column_on_a_narrow_terminal(columns: str, folder: Path) -> None:
    better = fill(folder / "pfatune.db")
    done = pfatune(["history", *SMALL], folder, environ(folder / "cache", COLUMNS=columns))
    if columns != "60":
        assert better.digest[:8] in done.stdout
        assert "does_not_fit" in done.stdout
    assert max(map(len, done.stdout.splitlines()[2:])) <= int(columns)


def test_history_of_a_shape_that_was_never_measured_is_empty(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "pfatune.db")
    found = document(["history", "--b", "5", "--s2", "128"], capsys)
    assert (found["measurements"], found["environment"], found["total"]) == ([], None, 0)
    assert cli.run(["history", "--b", "5", "--s2", "128"]) == 0
    assert "never measured; `pfatune tune --b 5 --s2 128` measures" in capsys.readouterr().out


def test_explain_tells_every_rule_that_is_broken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = other(g_tile=5, stitch_function_max_num=5000)
    (folder / "c.json").write_text(json.dumps(broken.to_json()))
    found = document(["explain", *SMALL, "--config", "c.json"], capsys)
    assert found["legal"] is False
    assert [item["field"] for item in found["violations"]] == ["g_tile", "stitch_function_max_num"]
    assert {"field", "value", "limit", "message"} == set(found["violations"][0])
    assert cli.run(["explain", *SMALL, "--config", "c.json"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "give" in line]
    assert len(lines) == 2
    assert "5000" in lines[1]
    assert "1024" in lines[1]


def test_explain_tells_how_a_measurement_failed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder / "pfatune.db")
    digest = other(stitch_function_max_num=32).digest
    found = document(["explain", *SMALL, "--digest", digest[:6]], capsys)
    assert found["legal"] is True
    assert found["measurement"]["kind"] == "does_not_fit"
    assert found["measurement"]["message"] == "UB is full\nline two"
    assert found["verification"] is None


def test_explain_tells_that_a_configuration_is_good(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    better = fill(folder / "pfatune.db")
    found = document(["explain", *SMALL], capsys)
    assert found["config_digest"] == better.digest
    assert (found["measurement"]["kind"], found["measurement"]["cost"]) == ("ok", 1000)
    assert found["verification"]["passed"] is True
    found = document(["explain", *SMALL, "--default"], capsys)
    assert found["config_digest"] == default().digest


def test_explain_needs_no_database(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", *SMALL, "--default"]) == 0
    assert "never; `pfatune tune --b 2 --s2 1024` measures" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


def test_verify_refuses_an_illegal_configuration_without_a_compiler(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.json").write_text(json.dumps(other(g_tile=5).to_json()))
    assert cli.run(["verify", *SMALL, "--config", "c.json"]) == 1
    assert "g_tile is 5" in capsys.readouterr().out
    assert cli.run(["verify", *SMALL, "--config", "c.json", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


@pytest.mark.slow
@pytest.mark.parametrize("command", ["config", "history", "explain"])
def test_piped_output_has_no_escape_codes_and_reading_writes_nothing(command: str, folder: Path) -> None:
    fill(folder / "pfatune.db")
    before = (folder / "pfatune.db").read_bytes()
    done = pfatune([command, *SMALL], folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert (folder / "pfatune.db").read_bytes() == before
    assert not (folder / "cache").exists()


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    fill(folder / "pfatune.db")
    with subprocess.Popen(
        [PFATUNE, "history", *SMALL],
        cwd=folder,
        env=environ(folder / "cache"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141


@pytest.mark.slow
def test_doctor_says_what_is_missing_and_fails(tmp_path: Path) -> None:
    env = environ(tmp_path / "cache", PATH=str(tmp_path / "bin"))
    done = pfatune(["doctor", "--json"], tmp_path, env)
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert (found["worker_ok"], found["npu_ok"]) == (False, False)
    gxx = next(check for check in found["checks"] if check["name"] == "g++")
    assert (gxx["ok"], gxx["required"]) == (False, True)
    assert gxx["remedy"] == "apt-get install g++"
    done = pfatune(["doctor"], tmp_path, env)
    assert done.returncode == 1
    assert "cannot run here: g++" in done.stdout
    assert "Nothing of pfatune has run on an NPU" in done.stdout
    assert "\x1b" not in done.stdout
