"""Help that teaches, and a start that is quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli_tools import SMALL, environ, fill, pfatune

from pfatune.api.cli import main as cli

COMMAND = typer.main.get_command(cli.app)
NAMES = [
    "tune",
    "shapes",
    "config",
    "history",
    "verify",
    "explain",
    "trace",
    "doctor",
    "serve",
    "worker",
    "token",
    "portfolio",
    "replay",
]
HEAVY = ("torch", "pypto", "optuna", "sqlalchemy", "alembic", "matplotlib")


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_examples_and_explains_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Examples" in out
    assert f"pfatune {name}" in out
    assert "\x1b" not in out
    for parameter in COMMAND.commands[name].params:  # type: ignore[attr-defined]  # a group
        assert parameter.help, parameter.name
        assert (parameter.opts[0] in out) != parameter.hidden


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_eighty_columns(name: str) -> None:
    for line in (COMMAND.commands[name].epilog or "").splitlines():  # type: ignore[attr-defined]  # a group
        assert len(line) <= 77, line


@pytest.mark.parametrize("name", ["create", "list", "revoke"])
def test_help_of_tokens_explains_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["token", name, "--help"]) == 0
    out = capsys.readouterr().out
    for parameter in COMMAND.commands["token"].commands[name].params:  # type: ignore[attr-defined]  # groups
        assert parameter.help, parameter.name
        assert parameter.opts[0] in out or parameter.metavar in out


def test_help_without_a_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 0
    out = capsys.readouterr().out
    for name in NAMES:
        assert name in out


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--version"], ["tune", "-h"], ["-h"]])
def test_version_and_help_end_well(arguments: list[str], tmp_path: Path) -> None:
    done = pfatune(arguments, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert list(tmp_path.iterdir()) == []


def loaded(arguments: list[str], folder: Path) -> set[str]:
    """The heavy modules that a command has imported at its end."""
    code = (
        "import sys; from pfatune.api.cli import main as cli; cli.run(sys.argv[1:]); "
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environ(folder / "cache"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.slow
def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    assert loaded(["--help"], tmp_path) == set()
    assert loaded(["tune", "--help"], tmp_path) == set()


@pytest.mark.slow
def test_reading_commands_import_neither_torch_nor_optuna(tmp_path: Path) -> None:
    fill(tmp_path / "pfatune.db")
    for command in ("config", "history", "explain"):
        assert not {"torch", "pypto", "optuna"} & loaded([command, *SMALL], tmp_path)
