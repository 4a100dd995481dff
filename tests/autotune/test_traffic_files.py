"""Traces of requests: both formats, and what is said of files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfatune.autotune import traffic_files
from pfatune.autotune.traffic_files import MAX_TOKENS, Request, TrafficError, read

DATA = Path(__file__).parents[1] / "data"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:15:46.6805900,374,44"
MOONCAKE = '{"timestamp": 0, "input_length": 5, "output_length": 7}'


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_an_azure_trace_is_read() -> None:
    found = read(DATA / "azure_requests.csv")
    assert len(found) == 40
    assert found[0] == Request(0, 374, 44)
    assert found[1] == Request(4_314_579_000, 396, 109)


def test_columns_may_stand_in_any_order_among_others(tmp_path: Path) -> None:
    text = '\ufeffModel,GeneratedTokens,TIMESTAMP,ContextTokens\r\n"a,b",2,2024-05-10 00:00:00.5+00:00,3\r\n\r\n'
    assert read(write(tmp_path, text + "x,4,2024-05-10T01:00:01+01:00,5")) == [
        Request(0, 3, 2),
        Request(5 * 10**8, 5, 4),
    ]


def test_requests_come_in_order_of_arrival_and_together_as_in_the_file(tmp_path: Path) -> None:
    rows = [(7, 1), (3, 2), (7, 3), (3.5, 4)]
    lines = [json.dumps({"timestamp": when, "input_length": n, "output_length": 9}) for when, n in rows]
    found = read(write(tmp_path, "\n".join(lines)))
    assert [(one.arrival, one.context) for one in found] == [(0, 2), (500_000, 4), (4_000_000, 1), (4_000_000, 3)]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS)), min_size=1))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]) -> None:
    lines = [json.dumps({"timestamp": t, "input_length": c, "output_length": g, "hash_ids": []}) for t, c, g in rows]
    found = read(write(tmp_path_factory.getbasetemp(), "\n".join(lines)))
    first = min(rows)[0]
    assert found == [Request((t - first) * 10**6, c, g) for t, c, g in sorted(rows, key=lambda row: row[0])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no request: give a CSV with the columns TIMESTAMP"),
        (f"{HEADER}\n", "has no request"),
        ("a,b,c\n1,2,3", "line 1: 'a,b,c' is no header with TIMESTAMP and ContextTokens and GeneratedTokens"),
        ("TIMESTAMP,ContextTokens\n", "no header with GeneratedTokens"),
        ("not a trace", "no header with TIMESTAMP"),
        (f"{HEADER}\n{GOOD}\n2023-11-16 18:15:47,1", "line 3: '2023-11-16 18:15:47,1' has 2 columns, the header 3"),
        (f"{HEADER}\n\n2023-11-16,1,2", "line 3: TIMESTAMP is '2023-11-16': give a date and time like"),
        (f"{HEADER}\n2023-13-16 18:15:47,1,2", "TIMESTAMP is '2023-13-16 18:15:47'"),
        (f"{HEADER}\n2023-11-16 18:15:47,-1,2", "line 2: ContextTokens is '-1': give a whole number of tokens"),
        (f"{HEADER}\n2023-11-16 18:15:47,1.5,2", "ContextTokens is '1.5'"),
        (f"{HEADER}\n2023-11-16 18:15:47,1,", "GeneratedTokens is ''"),
        (f"{HEADER}\n2023-11-16 18:15:47,1,{MAX_TOKENS + 1}", f"from 0 to {MAX_TOKENS}"),
        (f"{HEADER}\n2023-11-16 18:15:47,1,{'9' * 5000}", "GeneratedTokens is '999"),
        (f'{HEADER}\n"2023-11-16', "no line of a CSV"),
        (f"{HEADER}\n{GOOD}\n".encode() + b"\xff\xfe,1,2", "line 3 is not UTF-8 (byte ff)"),
        (b"PK\x03\x04\x00\x80", "line 1 is not UTF-8 (byte 80)"),
        ('{"timestamp": 1', "line 1: '{\"timestamp\": 1' is not JSON"),
        (f"{MOONCAKE}\n[1]", "line 2: '[1]' is no JSON object"),
        (f"{MOONCAKE}\n{GOOD}", "line 2: '2023-11-16"),
        ("{" * 20, "is not JSON"),
        ('{"timestamp": 1, "input_length": 2}', "output_length is missing"),
        (MOONCAKE.replace("5", "-5"), "input_length is '-5': give a whole number"),
        (MOONCAKE.replace("7", "true"), "output_length is 'true'"),
        (MOONCAKE.replace("7", "7.0"), "output_length is '7.0'"),
        (MOONCAKE.replace("0", '"now"'), "timestamp is '\"now\"': give milliseconds"),
        (MOONCAKE.replace("0", "NaN"), "timestamp is 'NaN'"),
        (MOONCAKE.replace("0", "-1"), "timestamp is '-1'"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(TrafficError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(TrafficError, match="cannot be read: Is a directory"):
        read(tmp_path)
    with pytest.raises(TrafficError, match="the name is unusable"):
        read(Path("a\0b"))


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_files, "MAX_REQUESTS", 2)
    assert len(read(write(tmp_path, "\n".join([MOONCAKE] * 2)))) == 2
    with pytest.raises(TrafficError, match="more than 2 requests: give a part"):
        read(write(tmp_path, "\n".join([MOONCAKE] * 3)))
    with pytest.raises(TrafficError, match="line 2 is longer than 1024 KiB"):
        read(write(tmp_path, f"{MOONCAKE}\n" + "x" * (1 << 20) + "x"))
