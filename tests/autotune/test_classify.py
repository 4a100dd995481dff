"""From endings and logs to kinds: every code that PyPTO is known to give, and anything else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fault_jobs import LOG_HEAD, LOG_LINES
from hypothesis import example, given
from hypothesis import strategies as st

from pfatune.autotune.classify import MAX_MESSAGE, Ending, classify, read_log
from pfatune.db.records import Kind

RUN_PASS = "ErrCode: FFFFFF! Run pass failed"

EXCEPTIONS: list[tuple[str, str, str, Kind]] = [
    ("RuntimeError", "ErrCode: FC4000! invalid", "", Kind.REJECTED),
    ("RuntimeError", "ErrCode: FC4001! invalid", "", Kind.REJECTED),
    ("RuntimeError", "ErrCode: FC1001! invalid", "", Kind.REJECTED),
    ("RuntimeError", "tile shape not set", "", Kind.REJECTED),
    ("RuntimeError", RUN_PASS, f"{LOG_HEAD}[a.cpp:1][PASS]:ErrCode: FC4000! x", Kind.REJECTED),
    ("RuntimeError", RUN_PASS, LOG_HEAD + LOG_LINES["ub"], Kind.DOES_NOT_FIT),
    ("RuntimeError", RUN_PASS, LOG_HEAD + LOG_LINES["l0a"], Kind.DOES_NOT_FIT),
    ("RuntimeError", RUN_PASS, LOG_HEAD + LOG_LINES["spill"], Kind.DOES_NOT_FIT),
    ("RuntimeError", RUN_PASS, LOG_HEAD + LOG_LINES["core"], Kind.CRASHED),
    ("RuntimeError", RUN_PASS, "", Kind.CRASHED),
    ("RuntimeError", "ErrCode: F3FFFF! unknown", "", Kind.CRASHED),
    ("RuntimeError", "ErrCode: F91001! core number", "", Kind.ENVIRONMENT_FAULT),
    ("RuntimeError", RUN_PASS, f"{LOG_HEAD}[a.cpp:1][SIM]:ErrCode: F91001! x", Kind.ENVIRONMENT_FAULT),
    ("RuntimeError", "g++: not found", "", Kind.ENVIRONMENT_FAULT),
    ("RuntimeError", "cmake is needed", "", Kind.ENVIRONMENT_FAULT),
    ("RuntimeError", "compile failed", "as: fatal error: No space left on device", Kind.ENVIRONMENT_FAULT),
    ("ValueError", "Input torch.dtype is not supported. Got torch.float8_e4m3fn", "", Kind.ENVIRONMENT_FAULT),
    ("ValueError", "only DAV_3510 architecture is supported", "", Kind.ENVIRONMENT_FAULT),
    ("ValueError", "the axis is odd", "", Kind.REJECTED),
    ("TypeError", "takes 2 arguments", "", Kind.REJECTED),
    ("NotImplementedError", "", "", Kind.REJECTED),
    ("ParserError", "line 7", "", Kind.REJECTED),
    ("FileNotFoundError", "[Errno 2] x", "", Kind.ENVIRONMENT_FAULT),
    ("NotADirectoryError", "[Errno 20] x", "", Kind.ENVIRONMENT_FAULT),
    ("ModuleNotFoundError", "No module named 'pypto'", "", Kind.ENVIRONMENT_FAULT),
    ("MemoryError", "", "", Kind.OUT_OF_MEMORY),
    ("RuntimeError", "std::bad_alloc", "", Kind.OUT_OF_MEMORY),
    ("NoOutputError", "the simulation left no swimlane", "", Kind.CRASHED),
    ("print", "no exception at all", "", Kind.CRASHED),
]


@pytest.mark.parametrize(("name", "text", "log", "kind"), EXCEPTIONS, ids=[f"{e[0]}-{e[3]}" for e in EXCEPTIONS])
def test_an_exception_gets_its_kind(name: str, text: str, log: str, kind: Kind) -> None:
    found, message = classify(Ending(1, error=(name, text), replied=True), log)
    assert found is kind
    assert message.startswith(text.removesuffix("\n") or name)


@pytest.mark.parametrize(
    ("ending", "log", "kind", "words"),
    [
        (Ending(-signal.SIGSEGV), "", Kind.CRASHED, "SIGSEGV"),
        (Ending(-signal.SIGABRT), "terminate called: std::bad_alloc", Kind.OUT_OF_MEMORY, "memory limit"),
        (Ending(-signal.SIGABRT), "write: No space left on device", Kind.ENVIRONMENT_FAULT, "No space left"),
        (Ending(-signal.SIGKILL), "", Kind.ENVIRONMENT_FAULT, "killed from outside"),
        (Ending(-200), "", Kind.CRASHED, "signal 200"),
        (Ending(-signal.SIGKILL, stopped="timeout"), "", Kind.TIMEOUT, "time limit"),
        (Ending(-signal.SIGKILL, stopped="memory"), "", Kind.OUT_OF_MEMORY, "memory limit"),
        (Ending(0, stopped="timeout", error=("ValueError", "")), "std::bad_alloc", Kind.TIMEOUT, "time limit"),
        (Ending(0), "", Kind.CRASHED, "code 0 and no reply"),
        (Ending(0, replied=True), "", Kind.CRASHED, "not the protocol's JSON"),
    ],
)
def test_an_ending_without_a_word_gets_its_kind(ending: Ending, log: str, kind: Kind, words: str) -> None:
    found, message = classify(ending, log)
    assert found is kind
    assert words in message


def test_a_message_holds_the_reason_first_and_no_times() -> None:
    noise = [f"{LOG_HEAD}[p.cpp:{n}][PLATFORM]:Cannot find attr {n}." for n in range(20)]
    log = "\n".join([*noise, noise[0], LOG_HEAD + LOG_LINES["ub"]])
    _, message = classify(Ending(1, error=("RuntimeError", RUN_PASS)), log)
    head, reason, *others = message.splitlines()
    assert head == RUN_PASS
    assert reason.endswith("tensor size 262144 exceeds MEM_UB size 253952")
    assert others == [f"Cannot find attr {n}." for n in range(5)]
    assert "2026" not in message


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (f"{LOG_HEAD}[a.cpp:1][MACHINE]:ErrCode: F7A001! idx < size_", "F7A001! idx < size_"),
        (f"{LOG_HEAD}[a.cpp:1][PASS]:[Pass.Function]:Run pass failed.", "[Pass.Function]:Run pass failed."),
        (f"{LOG_HEAD}plain words", "plain words"),
        ("[ERROR] something printed", "something printed"),
        ("an ERROR of another sort", "an ERROR of another sort"),
    ],
)
def test_the_head_of_a_log_line_is_dropped_and_its_text_kept(line: str, kept: str) -> None:
    assert classify(Ending(3), line)[1] == f"ended with code 3 and no reply\n{kept}"


_WORDS = st.sampled_from(
    [
        "[ERROR] ",
        "ERROR",
        "F91001",
        "FC4000",
        "bad_alloc",
        "is Full",
        "\n",
        "\0",
        "\x1b[2J",
        "\udcff",
        "[",
        "]",
        "é",
        "\t",
    ]
)
_TEXT = st.lists(_WORDS | st.text(max_size=20), max_size=30).map("".join) | st.text(min_size=1, max_size=5).map(
    lambda text: text * 2000
)
_ENDINGS = st.builds(
    Ending,
    status=st.integers(-300, 300),
    stopped=st.sampled_from(["", "timeout", "memory"]),
    error=st.none() | st.tuples(_TEXT | st.sampled_from(["ValueError", "OSError", "MemoryError", "type"]), _TEXT),
    replied=st.booleans(),
)


@given(_ENDINGS, _TEXT)
@example(Ending(1, error=("", "")), "")
@example(Ending(1, error=(" ", "\n")), "")
def test_anything_gets_one_kind_and_a_message_that_can_be_shown(ending: Ending, log: str) -> None:
    kind, message = classify(ending, log)
    assert kind in set(Kind) - {Kind.OK, Kind.ILLEGAL, Kind.WRONG_RESULT}
    assert 0 < len(message) <= MAX_MESSAGE
    assert all(char.isprintable() or char == "\n" for char in message)
    message.encode()
    assert classify(ending, log) == (kind, message)
    if ending.stopped:
        assert kind is {"timeout": Kind.TIMEOUT, "memory": Kind.OUT_OF_MEMORY}[ending.stopped]


def test_the_log_of_a_trial_is_its_error_lines(tmp_path: Path) -> None:
    deep = tmp_path / "log" / "debug" / "plog"
    deep.mkdir(parents=True)
    (deep / "a.log").write_text("[INFO] fine\n[ERROR] one\n")
    (deep / "b.log").write_bytes(b"[ERROR] two \xff\xfe\n" + b"x" * (2 << 20) + b"\n[ERROR] three\n")
    os.mkfifo(deep / "c.log")
    (deep / "d.log").symlink_to("/dev/zero")
    (deep / "e.log").symlink_to(deep)
    (deep / "f.log").symlink_to(tmp_path / "missing")
    (deep / os.fsdecode(b"\xff\n.log")).write_text("[ERROR] four\n")
    (tmp_path / "stdout").write_text("chatter\nMemoryError\n")
    (tmp_path / "stderr").write_text("chatter\ncannot write: No space left on device\n[ERROR] five\n")
    assert sorted(read_log(tmp_path).splitlines()) == sorted(
        [
            "[ERROR] one",
            "[ERROR] three",
            "[ERROR] four",
            "[ERROR] five",
            "MemoryError",
            "cannot write: No space left on device",
        ]
    )


def test_a_folder_that_is_gone_has_no_log(tmp_path: Path) -> None:
    assert read_log(tmp_path / "missing") == ""
    (tmp_path / "log").write_text("[ERROR] a file where a folder was")
    (tmp_path / "stderr").mkdir()
    assert read_log(tmp_path) == ""


def test_endless_logs_are_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for number in range(300):
        (tmp_path / "log" / f"{number}.log").write_bytes(b"[ERROR] x\n" * 1000)
    kind, message = classify(Ending(1), read_log(tmp_path))
    assert (kind, message) == (Kind.CRASHED, "ended with code 1 and no reply\nx")
