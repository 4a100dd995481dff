"""``pfatune portfolio``: from a database, from a landscape, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_tools import ENVIRONMENT, default, environ, other, pfatune
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pfatune.api.cli import main as cli
from pfatune.api.settings import Settings
from pfatune.autotune.landscape import Landscape, Point, write
from pfatune.autotune.sim import SimBackend
from pfatune.db import Environment, Kind, Measurement, Store, Verification
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import ASCEND_950PR

SIZES = [(1, 256), (4, 2048), (16, 8192)]
A, B = other(stitch_function_max_num=64), other(stitch_function_max_num=32)
COSTS = {A: (100.0, 104.0, 150.0), B: (190.0, 100.0, 100.0), default(): (200.0, 200.0, 200.0)}
FAR = ["--b", "512", "--s2", "131072"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PFATUNE_DB", "PFATUNE_SOC", "PFATUNE_PARALLEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PFATUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path


def tuned(
    path: Path, costs: Mapping[KernelConfig, tuple[float, ...]] = COSTS, where: Environment = ENVIRONMENT
) -> None:
    """A database in which the family is tuned at ``SIZES``, everything measured, all but the default verified."""
    with Store.open(path) as store:
        env = store.environment_id(where)
        for at, size in enumerate(SIZES):
            workload = Workload(PfaShape(*size))
            rows = [Measurement(workload, config, Kind.OK, costs[config][at]) for config in costs]
            ids = dict(zip(costs, store.add(env, rows), strict=True))
            best = min((config for config in costs if config != default()), key=lambda config: costs[config][at])
            verdict = Verification(workload.shape.family, best, True, 0.0, ())
            store.promote(env, ids[best], ids[default()], store.add_verification(env, verdict))


def result(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.run(["portfolio", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(["portfolio", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_the_choice_is_told_stored_and_served(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(folder / "pfatune.db")
    found = result(["--nq", "12", "--nkv", "1", "--no-measure"], capsys)
    assert [(one["config_digest"], one["shapes"]) for one in found["configs"]] == [(B.digest, 2), (A.digest, 1)]
    assert KernelConfig.from_json(found["configs"][0]["config"]) == B
    shapes = {(one["b"], one["s2"]): one for one in found["shapes"]}
    assert shapes[4, 2048]["config_digest"] == B.digest
    assert [(shapes[size]["cost"], shapes[size]["best_cost"]) for size in SIZES] == [(100.0, 100.0)] * 3
    assert (found["worst_regret"], found["asked"]) == (0.0, {"regret": 0.05, "max_configs": None})
    assert found["left_out"]["median"] == pytest.approx(0.5)
    assert found["left_out"]["worst"] == pytest.approx(0.9)
    assert (found["unit"], found["proven"], found["environment"]["digest"]) == ("cycles", True, ENVIRONMENT.digest)
    with Store.open(folder / "pfatune.db", read_only=True) as store:
        (stored,) = store.portfolios.list()
        assert (stored.id, stored.terms.limit, stored.terms.worst) == (found["stored"], 0.05, 0.0)
        assert [(b, s2, c.digest) for b, s2, c in sorted(stored.members, key=lambda one: one[:2])] == [
            (one["b"], one["s2"], one["config_digest"]) for one in found["anchors"]
        ]
    assert cli.run(["config", *FAR, "--json"]) == 0
    served = json.loads(capsys.readouterr().out)
    assert (served["provenance"], served["config_digest"]) == ("portfolio", B.digest)
    assert "pfatune tune --b 512 --s2 131072" in served["note"]
    assert served["cost"] is served["measured_shape"] is None
    assert cli.run(["config", *FAR]) == 0
    assert "portfolio" in capsys.readouterr().out
    assert cli.run(["explain", *FAR]) == 0
    assert "the family's portfolio" in capsys.readouterr().out


def test_people_get_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(folder / "pfatune.db")
    assert cli.run(["portfolio", "--no-measure", "--max-configs", "1"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if A.digest in line]
    assert rows[:2] == [
        ["1", "256", A.digest, "100", "100", "0.0", "%", "90.0", "%"],
        ["4", "2048", A.digest, "104", "100", "4.0", "%", "4.0", "%"],
    ]
    assert "\x1b" not in out
    words = " ".join(out.split())
    assert "1 for 3 shapes, of 2" in words
    assert "asked: at most 5.0 %, or the best 1" in words
    assert "pfatune.db, served as portfolio" in words
    assert "nothing ran on hardware" in words


def test_regret_and_number_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(folder / "pfatune.db")
    assert len(result(["--no-measure", "--regret", "50"], capsys)["configs"]) == 1
    assert len(result(["--no-measure", "--regret", "49"], capsys)["configs"]) == 2
    found = result(["--no-measure", "--regret", "0", "--max-configs", "1"], capsys)
    assert ([one["config_digest"] for one in found["configs"]], found["worst_regret"]) == ([A.digest], 0.5)
    with Store.open(folder / "pfatune.db", read_only=True) as store:
        assert len(store.portfolios.list()) == 1
        assert len(store.portfolios.list(history=True)) == 3


def test_what_has_no_verdict_is_not_chosen_without_measuring(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unchecked = other(stitch_function_max_num=16)
    tuned(folder / "pfatune.db", {**COSTS, unchecked: (101.0, 101.0, 101.0)})
    found = result(["--no-measure"], capsys)
    assert unchecked.digest not in {one["config_digest"] for one in found["configs"]}


def test_one_shape_has_no_other_to_be_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = Workload(PfaShape(2, 1024))
    with Store.open(folder / "pfatune.db") as store:
        env = store.environment_id(ENVIRONMENT)
        (row,) = store.add(env, [Measurement(workload, default(), Kind.OK, 5.0)])
        checked = store.add_verification(env, Verification(workload.shape.family, default(), True, 0.0, ()))
        store.promote(env, row, row, checked)
    assert result(["--no-measure"], capsys)["left_out"] == {"median": None, "worst": None}
    assert cli.run(["portfolio", "--no-measure"]) == 0
    assert "that takes two shapes" in capsys.readouterr().out


def landscape(path: Path) -> None:
    points = tuple(Point(config, Kind.OK, costs, costs) for config, costs in COSTS.items())
    failed = Point(other(stitch_function_max_num=16), Kind.CRASHED, message="SIGSEGV")
    workloads = tuple(Workload(PfaShape(*size)) for size in SIZES)
    write(Landscape(PfaFamily(), ENVIRONMENT, workloads, (failed, *points)), path)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_landscape_is_reported_on_and_nothing_is_stored(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    landscape(folder / name)
    found = result(["--landscape", name], capsys)
    assert [one["config_digest"] for one in found["configs"]] == [B.digest, A.digest]
    assert (found["stored"], found["database"], found["family"]) == (None, None, PfaFamily().to_json())
    assert cli.run(["portfolio", "--landscape", name]) == 0
    assert "nothing is stored" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regret", "-1"], "--regret is '-1': give per cent from 0 to 1000"),
        (["--regret", "nan"], "--regret is 'nan'"),
        (["--max-configs", "0"], "--max-configs is '0': give a whole number from 1 to 1000"),
        (["--nq", "13", "--nkv", "2"], "nq is 13, which nkv 2 does not divide"),
        (["--qd", "100"], "qd is 100: make it a multiple of 32"),
        ([], "there is no database pfatune.db: tune shapes of the family first"),
        (["--nkv", "2"], "`pfatune tune --nkv 2 --b 1,4,16 --s2 1024,8192`"),
        (["--landscape", "none.json"], "'none.json' cannot be read: No such file"),
        (["--landscape", "."], "'.' cannot be read: Is a directory"),
        (["--landscape", "bad.json"], "'bad.json' cannot be used"),
        (["--landscape", "bad.json.gz"], "'bad.json.gz' cannot be used"),
        (["--landscape", "a.json", "--nkv", "2"], "--landscape and --nkv are both given"),
        (["--landscape", "a.json", "--block-size", "64"], "--landscape and --block-size are both given"),
        (["--landscape", "a.json", "--db", "a.db"], "--landscape and --db are both given"),
        (["--landscape", "a.json", "--measure"], "--landscape and --measure are both given"),
    ],
)
def test_bad_input_is_told_on_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("bad.json", "bad.json.gz"):
        (folder / name).write_text("{")
    before = sorted(folder.iterdir())
    assert message in refusal(arguments, capsys)
    assert sorted(folder.iterdir()) == before


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_landscape_that_is_none_ends_in_anything_but_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    landscape(folder / "any.json")
    document = json.loads((folder / "any.json").read_text())
    values = st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda one: st.lists(one) | st.dictionaries(st.sampled_from(["shape", "b"]), one),
        max_leaves=4,
    )
    document[data.draw(st.sampled_from(["format", "version", "environment", "workloads", "points"]))] = data.draw(
        values
    )
    assume(document != json.loads((folder / "any.json").read_text()))
    (folder / "any.json").write_text(json.dumps(document))
    refusal(["--landscape", "any.json"], capsys)


def test_a_family_that_is_not_tuned_here_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(folder / "old.db", where=replace(ENVIRONMENT, kernel_digest="0" * 16))
    tuned(folder / "new.db")
    for options in (["--db", "old.db"], ["--db", "new.db", "--nkv", "2"], ["--db", "new.db", "--soc", "950DT"]):
        message = refusal(["--no-measure", *options], capsys)
        assert "no shape of s1=1" in message
        assert "pfatune tune" in message


@pytest.mark.sim
def test_the_worker_measures_and_verifies_what_is_missing(tmp_path: Path) -> None:
    cache = Settings().cache_folder
    unchecked = other(stitch_function_max_num=16)
    shapes = {A: Workload(PfaShape(1, 128)), B: Workload(PfaShape(1, 300))}
    with Store.open(tmp_path / "pfatune.db") as store:
        env_id = store.environment_id(SimBackend(ASCEND_950PR, cache).environment)
        for config, workload in shapes.items():
            ids = store.add(env_id, [Measurement(workload, one, Kind.OK, 1000.0) for one in (config, unchecked)])
            checked = store.add_verification(env_id, Verification(PfaFamily(), config, True, 0.0, ()))
            store.promote(env_id, ids[0], ids[0], checked)
    done = pfatune(["portfolio", "--parallel", "2", "--json"], tmp_path, environ(cache))
    assert (done.returncode, done.stderr) == (0, "")
    *progress, found = map(json.loads, done.stdout.splitlines())
    assert [(one["doing"], one["done"], one["total"]) for one in progress if one["last"]][-1] == ("verify", 1, 1)
    assert [one["config_digest"] for one in found["configs"]] == [unchecked.digest]
    assert found["stored"] == 1
    with Store.open(tmp_path / "pfatune.db") as store:
        measured = {(row.config, row.workload): row for row in store.measurements(env_id)}
        assert set(measured) == {(one, workload) for one in (A, B, unchecked) for workload in shapes.values()}
        assert all(row.kind is Kind.OK for row in measured.values())
        assert store.portfolios.list()[0].members == ((1, 128, unchecked), (1, 300, unchecked))
