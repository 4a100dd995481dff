"""Snapshots: they read back, equal contents are equal bytes, and whatever is not whole or legal is refused."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ladder_tools import FAMILIES, config, entry, ladder_of, ladders, small_ladder

from pfatune.kernel import snapshot
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.ladder import Entry, Ladder
from pfatune.kernel.shapes import MAX_S2, PfaFamily, PfaShape
from pfatune.kernel.snapshot import Snapshot, SnapshotError, dump, load

ENVIRONMENT = {
    "backend": "sim",
    "soc": "950PR",
    "pypto": "0.2.0",
    "torch": "2.13.0",
    "kernel_digest": "k" * 16,
    "model_digest": "m" * 16,
    "torch_npu": "",
    "cann": "",
    "driver": "",
    "digest": "e" * 16,
}
LADDER = ladder_of(
    [
        (PfaShape(2, 1024), entry(1)),
        (PfaShape(16, 8192), entry(2, full=False)),
        (PfaShape(16, 8192, nkv=2), entry(1, FAMILIES[1])),
    ]
)
LADDER.set_portfolio(PfaFamily(), [(4, 2048, config(3)), (1, 128, config(1))])
DATA = dump(ENVIRONMENT, "cycles", LADDER)


def contents(ladder: Ladder) -> Any:
    return sorted(ladder, key=lambda one: one[0]), {
        family: sorted(members, key=repr) for family, members in ladder.portfolios()
    }


def sealed(document: Any) -> bytes:
    """The document with the checksum that it should have."""
    rest = {name: value for name, value in document.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return json.dumps({**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}).encode()


def changed(change: Callable[[Any], object]) -> bytes:
    document = json.loads(DATA)
    change(document)
    return sealed(document)


def refuses(data: bytes, message: str) -> None:
    with pytest.raises(SnapshotError, match=message) as caught:
        load(data)
    assert len(str(caught.value)) < 1000


@given(ladders(), st.sampled_from(["cycles", "us"]))
def test_a_snapshot_reads_back(ladder: Ladder, unit: str) -> None:
    data = dump(ENVIRONMENT, unit, ladder)
    found = load(data)
    assert (found.environment, found.unit) == (ENVIRONMENT, unit)
    assert contents(found.ladder) == contents(ladder)
    assert dump(found.environment, found.unit, found.ladder) == data


@given(ladders(), st.randoms())
def test_the_order_of_adding_changes_nothing(ladder: Ladder, chance: random.Random) -> None:
    entries = list(ladder)
    chance.shuffle(entries)
    other = ladder_of(entries)
    for family, members in sorted(ladder.portfolios(), reverse=True):
        other.set_portfolio(family, members[::-1])
    assert dump(ENVIRONMENT, "us", other) == dump(ENVIRONMENT, "us", ladder)


def test_the_checksum_is_that_of_the_canonical_rest() -> None:
    document = json.loads(DATA)
    checksum = document.pop("checksum")
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert checksum == hashlib.sha256(text.encode()).hexdigest() == load(DATA).checksum


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_may_be_formatted_anew(indent: int | None) -> None:
    data = json.dumps(json.loads(DATA), indent=indent).encode()
    assert contents(load(data).ladder) == contents(LADDER)
    assert contents(load(DATA + b"\n").ladder) == contents(LADDER)


def test_other_contents_have_another_checksum() -> None:
    other = ladder_of(LADDER)
    assert load(dump(ENVIRONMENT, "cycles", other)).checksum != load(DATA).checksum
    assert load(dump(ENVIRONMENT, "us", LADDER)).checksum != load(DATA).checksum
    newer = {**ENVIRONMENT, "torch": "2.14.0"}
    assert load(dump(newer, "cycles", LADDER)).checksum != load(DATA).checksum


def test_a_loaded_ladder_answers_as_the_dumped_one() -> None:
    found = load(DATA).ladder
    for shape in (PfaShape(2, 1024), PfaShape(3, 1500), PfaShape(16, 8000, nkv=2), PfaShape(1, MAX_S2), PfaShape(9, 9)):
        assert found.lookup(shape) == LADDER.lookup(shape)


def test_configurations_are_given_out_in_canonical_form() -> None:
    loose = KernelConfig.from_json({**config(5).to_json(), "unroll_list": [2, 4], "stitch_function_max_num": 512})
    found = load(dump(ENVIRONMENT, "cycles", ladder_of([(PfaShape(2, 1024), Entry(loose, 1.0, 2.0, 0, ""))])))
    ((_, one),) = found.ladder
    assert one.config.unroll_list == (4, 2, 1)
    assert one.config.stitch_function_max_num == 128


@given(st.integers(0, len(DATA) - 1))
def test_a_truncated_snapshot_is_refused(length: int) -> None:
    with pytest.raises(SnapshotError, match=r"truncated|empty|no JSON"):
        load(DATA[:length])


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(place: int, by: int) -> None:
    data = bytearray(DATA)
    data[place] ^= by
    with pytest.raises(SnapshotError):
        load(bytes(data))


def refused_or_loaded(data: bytes) -> Snapshot | None:
    try:
        return load(data)
    except SnapshotError as error:
        print(error)  # anything that can be logged
        return None


@given(st.binary())
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 200_000)
@example(b'{"a":' * 200_000)
@example(b"9" * 10_000)
@example(b"{" + b" " * 1000)
@example(b"\x00" * 64)
def test_any_bytes_are_refused(data: bytes) -> None:
    assert refused_or_loaded(data) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_any_json_is_refused(value: Any) -> None:
    assert refused_or_loaded(json.dumps(value).encode()) is None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything in a document is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


PLACES = [place for place in places(json.loads(DATA)) if place]


@given(st.sampled_from(PLACES), JSON_VALUES | st.sampled_from([10**400, -(10**4200), 2**63, 2**31, 0, -1, "", [], {}]))
def test_whatever_is_put_anywhere_the_answer_is_a_snapshot_or_an_error(place: tuple[Any, ...], value: Any) -> None:
    def put(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    found = refused_or_loaded(changed(put))
    if found is not None:
        assert load(dump(found.environment, found.unit, found.ladder)).checksum
        found.ladder.lookup(PfaShape(2, 1024))


@given(st.sampled_from(PLACES))
def test_whatever_is_left_out_the_answer_is_a_snapshot_or_an_error(place: tuple[Any, ...]) -> None:
    def remove(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        del document[place[-1]]

    refused_or_loaded(changed(remove))


def shapes_of(document: Any) -> Any:
    return document["families"][0]["shapes"]


def test_a_foreign_document_is_refused() -> None:
    refuses(b'{"format": "other"}', "no snapshot: it lacks the format 'pfatune-configs'")
    refuses(b"[1]", "no snapshot")
    refuses(b"SQLite format 3\0", "no JSON")
    refuses(b"\xff\xfe", "no text")
    refuses(b" \n", "empty")


def test_a_version_is_refused_with_the_remedy() -> None:
    refuses(changed(lambda document: document.update(version=2)), "version 2, newer than 1: upgrade pfatune")
    refuses(changed(lambda document: document.update(version=0)), "version 0: give one of version 1")
    refuses(changed(lambda document: document.update(version=True)), "version True")


def test_an_altered_document_is_refused() -> None:
    refuses(DATA.replace(b"2000.0", b"2000.5"), "altered: its checksum does not match")
    document = json.loads(DATA)
    del document["checksum"]
    refuses(json.dumps(document).encode(), "lacks its checksum")
    refuses(json.dumps({**document, "checksum": "\ud800"}).encode(), "altered")


def test_a_document_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_BYTES", len(DATA) - 1)
    refuses(DATA, f"has {len(DATA)} bytes, limit {len(DATA) - 1}")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_number_is_refused(constant: str) -> None:
    refuses(DATA.replace(b"2000.0", constant.encode()), constant)


@pytest.mark.parametrize("cost", [0, -1.0, 10**400, "3", None, True, 1e301])
@pytest.mark.parametrize("column", [3, 4])
def test_a_cost_that_is_none_is_refused(cost: object, column: int) -> None:
    refuses(changed(lambda document: shapes_of(document)[0].__setitem__(column, cost)), "cost is .*: give a finite")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, 0, "b is 0"),
        (0, 1025, "b is 1025"),
        (0, True, "b is True"),
        (0, 2.0, "b is 2.0"),
        (1, 0, "s2 is 0"),
        (1, MAX_S2 + 1, f"s2 is {MAX_S2 + 1}"),
        (2, 99, "refers to configuration 99"),
        (2, -1, "refers to configuration -1"),
        (2, "0", "index is '0'"),
        (5, -1, "id is -1"),
        (5, 2**63, "id is 9223372036854775808"),
        (6, None, "verification is None"),
        (6, "x" * 65, "verification is 'xxx"),
        (7, 1, "full is 1"),
    ],
)
def test_a_row_that_cannot_be_is_refused(column: int, value: object, message: str) -> None:
    refuses(changed(lambda document: shapes_of(document)[0].__setitem__(column, value)), message)


def test_a_shape_or_family_given_twice_is_refused() -> None:
    refuses(changed(lambda document: shapes_of(document).append(shapes_of(document)[0])), "b=2 s2=1024 twice")
    refuses(changed(lambda document: document["families"].append(document["families"][0])), "family .* twice")


def test_an_illegal_configuration_is_refused_where_it_is_served() -> None:
    refuses(changed(lambda document: document["configs"][0].update(s2_tile=100)), "illegal: s2_tile is 100")
    refuses(changed(lambda document: document["configs"][0].update(more=1)), "unknown field 'more'")
    refuses(changed(lambda document: document["configs"].__setitem__(0, 5)), "configuration 0 .* is 5")
    huge = int("9" * 4000)
    refuses(changed(lambda document: document["configs"][0].update(vec_nbuffer_setting={"-1": huge})), "snapshot")
    refuses(changed(lambda document: document["configs"][0].update(unroll_list=[huge])), "illegal: unroll_list")


def test_a_family_that_cannot_be_is_refused() -> None:
    refuses(changed(lambda document: document["families"][0]["family"].update(nkv=5)), "nq is 12")
    refuses(changed(lambda document: document["families"][0]["family"].update(b=5)), "family of the snapshot is")
    refuses(changed(lambda document: document["families"].append([])), "a family of the snapshot is")
    refuses(changed(lambda document: document.update(families={})), "families is {}")


def test_the_chip_and_the_unit_must_be_known() -> None:
    refuses(changed(lambda document: document["environment"].update(soc="910B")), "another chip: SoC '910B'")
    refuses(changed(lambda document: document["environment"].pop("digest")), "lacks digest")
    refuses(changed(lambda document: document["environment"].update(torch=2)), "no object of texts")
    refuses(changed(lambda document: document.update(unit="ms")), "unit is 'ms': give one of cycles, us")


def test_an_environment_may_say_more_than_is_known_here() -> None:
    data = changed(lambda document: document["environment"].update(firmware="7.1"))
    assert load(data).environment == {**ENVIRONMENT, "firmware": "7.1"}


def test_an_empty_ladder_is_a_snapshot() -> None:
    assert len(load(dump(ENVIRONMENT, "us", Ladder())).ladder) == 0


@pytest.mark.slow
def test_many_shapes_are_written_and_read_in_reasonable_time() -> None:
    ladder = Ladder()
    one = entry(1)
    ladder.add_all(PfaFamily(), [(b, s2, one) for b in range(1, 101) for s2 in range(1, 1001)])
    start = time.monotonic()
    found = load(dump(ENVIRONMENT, "us", ladder))
    assert len(found.ladder) == 100_000
    assert time.monotonic() - start < 30


def test_a_snapshot_of_a_million_digits_is_refused_without_a_stir() -> None:
    refuses(changed(lambda document: None).replace(b"2000.0", b"9" * 1_000_000), "cannot be read")


def test_the_small_ladder_survives_a_file(tmp_path: Any) -> None:
    path = tmp_path / "served.json"
    path.write_bytes(dump(ENVIRONMENT, "cycles", small_ladder()))
    assert contents(load(path.read_bytes()).ladder) == contents(small_ladder())
