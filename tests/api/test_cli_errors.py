"""Bad input and broken surroundings: one line on stderr, the right exit code, nothing left behind."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path

import pytest
from cli_tools import PFATUNE, SMALL, environ, fill, pfatune

from pfatune.api.cli import main as cli
from pfatune.api.errors import one_line
from pfatune.kernel.shapes import CASES

BAD_SHAPES = {
    "b is 0": ["--b", "0", "--s2", "128"],
    "b is -1": ["--b", "-1", "--s2", "128"],
    "b is 99999": ["--b", "99999", "--s2", "128"],
    "--b is 'x'": ["--b", "x", "--s2", "128"],
    "--b is '1.5'": ["--b", "1.5", "--s2", "128"],
    "--b is ''": ["--b", "", "--s2", "128"],
    "s2 is 99999999": ["--b", "1", "--s2", "99999999"],
    "s2 is 0": ["--b", "1", "--s2", "0"],
    "which nkv 5 does not divide": ["--b", "1", "--s2", "128", "--nkv", "5"],
    "block_size is 100": ["--b", "1", "--s2", "128", "--block-size", "100"],
    "qd is 33": ["--b", "1", "--s2", "128", "--qd", "33"],
    "s1 is 9": ["--b", "1", "--s2", "8", "--s1", "9"],
    "actual_seq has 1 lengths for b=2": ["--b", "2", "--s2", "128", "--actual-seq", "100"],
    "actual_seq holds 129": ["--b", "2", "--s2", "128", "--actual-seq", "100,129"],
    "--actual-seq is '1,,2'": ["--b", "2", "--s2", "128", "--actual-seq", "1,,2"],
    "did you mean pfa_fp8_b2_s1_1_s2_1k?": ["--case", "pfa_fp8_b2_s1_1_s2_1"],
    "use one of pfa_fp8_b1_s1_2_s2_2048_nkv_8": ["--case", "?"],
    "--case and --b are both given": ["--case", "pfa_fp8_b2_s1_1_s2_1k", "--b", "1"],
    "--case and --block-size are both given": ["--case", "pfa_fp8_b2_s1_1_s2_1k", "--block-size", "128"],
    "no shape is given": [],
    "--s2 is missing": ["--b", "1"],
    "--b is missing": ["--s2", "128"],
    "SoC '910B' is unknown: use one of 950PR, 950DT": ["--b", "1", "--s2", "128", "--soc", "910B"],
    "--db is ''": ["--b", "1", "--s2", "128", "--db", ""],
    "--soc is ' '": ["--b", "1", "--s2", "128", "--soc", " "],
    "mysql is not supported": ["--b", "1", "--s2", "128", "--db", "mysql://me:secret@host/d"],
    "No such option: --frobnicate": ["--frobnicate", "1"],
    "unexpected extra argument": ["--b", "1", "--s2", "128", "extra"],
    "requires an argument": ["--b"],
}
BAD_TUNE = {
    "--trials is '0'": ["--trials", "0"],
    "--trials is '-4'": ["--trials", "-4"],
    "--trials is 'many'": ["--trials", "many"],
    "--seconds is '0'": ["--seconds", "0"],
    "--seconds is 'nan'": ["--seconds", "nan"],
    "--seconds is '-1'": ["--seconds", "-1"],
    "--parallel is '0'": ["--parallel", "0"],
    "--parallel is '9999'": ["--parallel", "9999"],
    "--seed is '-1'": ["--seed", "-1"],
    "--timeout is 'inf'": ["--timeout", "inf"],
    "--memory-gib is '0'": ["--memory-gib", "0"],
    "make 1024 shapes": ["--b", ",".join(["1"] * 32), "--s2", ",".join(["128"] * 32)],
}
COMMANDS = {
    "tune": [],
    "config": [],
    "history": [],
    "verify": [],
    "explain": [],
    "trace": ["--out", "lanes"],
}


def told(captured: pytest.CaptureFixture[str], said: str) -> None:
    out, err = captured.readouterr()
    assert out == ""
    assert err.startswith("pfatune: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert said in err
    assert "secret" not in err


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with a cache that does not exist."""
    monkeypatch.chdir(tmp_path)
    for name in ("DB", "SOC", "PARALLEL", "TRIAL_TIMEOUT", "TRIAL_MEMORY_GIB"):
        monkeypatch.delenv(f"PFATUNE_{name}", raising=False)
    monkeypatch.setenv("PFATUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("said", BAD_SHAPES)
def test_a_bad_shape_is_refused_by_every_command(
    command: str, said: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command, *COMMANDS[command], *BAD_SHAPES[said]]) == 2
    told(capsys, said)
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize("said", BAD_TUNE)
def test_a_bad_option_of_tune_is_refused(said: str, alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [] if "--b" in BAD_TUNE[said] else SMALL
    assert cli.run(["tune", *shape, *BAD_TUNE[said]]) == 2
    told(capsys, said)
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("PARALLEL", "x"), ("PARALLEL", "0"), ("TRIAL_TIMEOUT", "-1"), ("DB", ""), ("CACHE", " "), ("SOC", "A3")],
)
def test_a_bad_variable_is_refused(
    name: str, value: str, alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"PFATUNE_{name}", value)
    assert cli.run(["tune", *SMALL]) == 2
    told(capsys, repr(value))
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tun"], "Did you mean 'tune'?"),
        (["history", *SMALL, "--kind", "fine"], "--kind is 'fine': use one of ok, illegal"),
        (["history", *SMALL, "--limit", "0"], "--limit is '0'"),
        (["config", "--b", "1,2", "--s2", "128"], "--b is '1,2': give a whole number"),
        (["explain", *SMALL, "--digest", "ab", "--default"], "--digest and --default are both given"),
        (["explain", *SMALL, "--digest", "ffff"], "--digest 'ffff' is no configuration measured"),
        (["explain", *SMALL, "--digest", ""], "--digest '' is no configuration measured"),
        (["explain", *SMALL, "--config", "none.json"], "--config 'none.json' cannot be read: No such file"),
        (["verify", *SMALL, "--config", "."], "--config '.' cannot be read"),
        (["trace", *SMALL], "Missing option '--out'"),
        (["trace", *SMALL, "--out", "no/where"], "no is no folder"),
        (["trace", *SMALL, "--out", ""], "--out is ''"),
        (["doctor", "--soc", "910B"], "SoC '910B' is unknown"),
    ],
)
def test_other_bad_input_is_refused(
    arguments: list[str], said: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    told(capsys, said)
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "lacks g_tile"),
        ('{"config": {"g_tile": 1}}', "lacks s2_tile"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not text"),
    ],
)
def test_a_bad_configuration_file_is_refused(
    text: str, said: str, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "c.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert cli.run(["explain", *SMALL, "--config", "c.json"]) == 2
    told(capsys, said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["tune", "--b", "0", "--s2", "128"], 2),
        (["tune", "--b", "\x1b[31mred", "--s2", "128"], 2),
        (["tune", "--case", "line\nbreak"], 2),
        (["tune", "--trials"], 2),
        (["nothing"], 2),
        (["history", *SMALL], 1),
    ],
)
def test_the_real_command_says_one_line(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = pfatune(arguments, tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("pfatune: error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["tune", "verify", "trace"])
def test_without_a_compiler_it_says_what_to_install(command: str, tmp_path: Path) -> None:
    env = environ(tmp_path / "cache", PATH=str(tmp_path / "bin"))
    done = pfatune([command, *SMALL, *COMMANDS[command]], tmp_path, env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "g++ is missing" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert list(tmp_path.iterdir()) == []


def make_foreign(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("create table songs (title text)")
    connection.close()
    return "belongs to another program"


def make_newer(path: Path) -> str:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("update pfatune_revision set version_num = '9999_later'")
    connection.close()
    return "written by a newer pfatune"


def make_garbage(path: Path) -> str:
    path.write_bytes(b"no database, " * 500)
    return "not a SQLite database"


def make_folder(path: Path) -> str:
    path.mkdir()
    return "is a directory"


@pytest.mark.parametrize("make", [make_foreign, make_newer, make_garbage, make_folder])
@pytest.mark.parametrize("command", ["config", "history", "explain", "tune"])
def test_a_database_that_cannot_be_used_is_refused_and_left_alone(
    command: str, make: object, alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfatune.autotune.toolchain.require_tools", lambda: None)
    path = alone / "some.db"
    assert callable(make)
    said = make(path)
    before = path.read_bytes() if path.is_file() else b""
    assert cli.run([command, *SMALL, "--db", str(path)]) == 1
    told(capsys, said)
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize("command", ["config", "explain", "history", "tune"])
def test_a_database_in_a_folder_that_is_not_there_is_refused(
    command: str, alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfatune.autotune.toolchain.require_tools", lambda: None)
    assert cli.run([command, *SMALL, "--db", "no/folder/x.db"]) == 1
    told(capsys, "its directory does not exist")


def test_a_cache_that_cannot_be_written_is_refused(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pfatune.autotune.toolchain.require_tools", lambda: None)
    (alone / "file").write_text("")
    monkeypatch.setenv("PFATUNE_CACHE", str(alone / "file" / "cache"))
    assert cli.run(["tune", *SMALL]) == 1
    told(capsys, "set PFATUNE_CACHE to a writable folder")
    assert [path.name for path in alone.iterdir()] == ["file"]


def test_the_unexpected_is_one_line_and_a_log_file(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("what\nnobody thought of")

    monkeypatch.setattr("pfatune.api.cli.lookup.served", fail)
    assert cli.run(["config", *SMALL]) == 1
    told(capsys, "unexpected KeyError")
    (log,) = (alone / "cache" / "errors").iterdir()
    assert "Traceback" in log.read_text()
    assert "nobody thought of" in log.read_text()


def test_the_unexpected_is_told_where_no_log_can_be_written(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFATUNE_CACHE", "/proc/none")
    monkeypatch.setattr("tempfile.tempdir", "/proc/none")

    def fail(*arguments: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("pfatune.api.cli.lookup.served", fail)
    assert cli.run(["config", *SMALL]) == 1
    told(capsys, "no file, since none could be written")


def test_one_line_holds_any_text() -> None:
    assert one_line("a\n\n  b \t c\r\nd") == "a; b c; d"
    assert one_line("\x1b[31mred\x07") == "\ufffd[31mred\ufffd"
    assert len(one_line("x" * 100_000)) < 2100


def test_a_case_that_is_suggested_exists() -> None:
    assert "pfa_fp8_b2_s1_1_s2_1k" in CASES


def test_the_console_script_is_there() -> None:
    assert Path(PFATUNE).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start(closed: str, alone: Path) -> None:
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', PFATUNE, "token", "list"]
    done = subprocess.run(command, env=environ(alone / "cache"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_stopped_before_it_has_begun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    monkeypatch.setattr(cli.stop, "signal", None)
    try:
        code = cli.run(["doctor"])
    except KeyboardInterrupt:  # which would end the tests
        pytest.fail("it is told as a traceback")
    assert code == 130
    assert capsys.readouterr().err == "pfatune: stopped\n"
