"""The overlay that describes a 950 to the installed PyPTO, which is looked at and never imported."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.platform import AICPU_MACHINES, Platform, installed_pypto, platform_description, prepare
from pfatune.kernel.soc import ASCEND_950DT, ASCEND_950PR, SOCS, Soc

PREPARE = """
import sys
from pathlib import Path
from pfatune.autotune.platform import prepare
from pfatune.kernel.soc import ASCEND_950PR
sys.stdin.read()
print(prepare(ASCEND_950PR, Path(sys.argv[1])).root)
assert "pypto" not in sys.modules
"""


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    return prepare(ASCEND_950PR, tmp_path_factory.mktemp("cache"))


def model_arguments(platform: Platform) -> dict[str, int]:
    config = json.loads(platform.config_path.read_text())
    pairs = (argument.split("=") for argument in config["global"]["simulation"]["args"])
    return {key: int(value) for key, value in pairs if value.isdigit()}


def test_made_twice_it_is_the_same(overlay: Platform) -> None:
    before = sorted(path.stat(follow_symlinks=False).st_mtime_ns for path in overlay.root.rglob("*"))
    assert prepare(ASCEND_950PR, overlay.root.parents[1]) == overlay
    assert sorted(path.stat(follow_symlinks=False).st_mtime_ns for path in overlay.root.rglob("*")) == before
    assert list(overlay.root.parent.iterdir()) == [overlay.root]


def test_four_processes_make_one(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    roots = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert roots == {str(prepare(ASCEND_950PR, tmp_path).root)}
    assert [str(path) for path in (tmp_path / "overlay").iterdir()] == list(roots)


def test_everything_but_the_description_is_the_installed_package(overlay: Platform) -> None:
    package, linked = installed_pypto(), overlay.root / "pypto"
    own = {"A2A3.ini", "950PR_957x.ini", "tile_fwk_config.json"}
    for place in ("", "lib", "lib/configs"):
        theirs = {path.name for path in (package / place).iterdir()} - {"__pycache__"}
        ours = {path.name: path for path in (linked / place).iterdir()}
        assert set(ours) == theirs | (own if place == "lib/configs" else set())
        for name, path in ours.items():
            if name in own or (place, name) in {("", "lib"), ("lib", "configs")}:
                assert not path.is_symlink()
            else:
                assert path.is_symlink()
                assert path.resolve(strict=True) == (package / place / name).resolve()


@pytest.mark.parametrize("soc", SOCS.values(), ids=SOCS)
def test_the_description_is_of_the_chip(soc: Soc, tmp_path: Path) -> None:
    platform = prepare(soc, tmp_path)
    for name in ("A2A3.ini", "950PR_957x.ini"):
        text = (platform.root / "pypto" / "lib" / "configs" / name).read_text()
        assert text == platform_description(soc)
        ini = configparser.ConfigParser()
        ini.read_string(text)
        assert ini["version"]["NpuArch"] == "3510"
        assert ini["version"]["SoC_version"] == soc.version
        assert (ini["SoCInfo"]["cube_core_cnt"], ini["SoCInfo"]["vector_core_cnt"]) == ("28", "56")
        assert int(ini["AICoreSpec"]["ub_size"]) == soc.ub_bytes
        assert int(ini["AICoreMemoryRates"]["ddr_read_rate"]) == soc.ddr_read_bytes_per_cycle


def test_the_cost_models_cores_add_up_to_the_chips(overlay: Platform) -> None:
    arguments = model_arguments(overlay)
    cube, vector = arguments["Model.cubeMachineNumberPerAICPU"], arguments["Model.vecMachineNumberPerAICPU"]
    assert arguments["Model.aicpuMachineNumber"] == AICPU_MACHINES
    assert arguments["Model.coreMachineNumberPerAICPU"] == cube + vector
    assert (cube * AICPU_MACHINES, vector * AICPU_MACHINES) == (28, 56)


def test_the_configuration_is_the_stock_one_with_the_simulation_changed(overlay: Platform) -> None:
    stock = json.loads((installed_pypto() / "lib" / "configs" / "tile_fwk_config.json").read_text())
    config = json.loads(overlay.config_path.read_text())
    assert (overlay.root / "pypto" / "lib" / "configs" / "tile_fwk_config.json").read_text() == json.dumps(
        config, indent=1, sort_keys=True
    )
    assert config["global"]["simulation"]["draw_function_graph"] is False
    config["global"]["simulation"] = stock["global"]["simulation"]
    config["global"]["pass"]["default_pass_configs"]["dump_pass_time_cost"] = stock["global"]["pass"][
        "default_pass_configs"
    ]["dump_pass_time_cost"]
    assert config == stock


def test_chips_have_overlays_and_digests_of_their_own(overlay: Platform) -> None:
    other = prepare(ASCEND_950DT, overlay.root.parents[1])
    assert other.digest != overlay.digest
    assert other.root != overlay.root
    assert overlay.root.is_dir()


def test_the_digest_does_not_depend_on_the_place(overlay: Platform, tmp_path: Path) -> None:
    assert prepare(ASCEND_950PR, tmp_path / "deep" / "er").digest == overlay.digest


def test_the_environ_leads_python_to_the_overlay(overlay: Platform) -> None:
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": "/mine", "ASCEND_HOME_PATH": "/usr/local/Ascend"}
    env = overlay.environ(base)
    assert env["PYTHONPATH"] == f"{overlay.root}{os.pathsep}/mine"
    assert env["TILEFWK_CONFIG_PATH"] == str(overlay.config_path)
    assert "ASCEND_HOME_PATH" not in env
    assert base["ASCEND_HOME_PATH"]
    code = "import importlib.util; print(importlib.util.find_spec('pypto').origin)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=overlay.environ({}), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(overlay.root / "pypto" / "__init__.py")


def test_a_relative_cache_works_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    platform = prepare(ASCEND_950PR, Path("cache"))
    assert platform == prepare(ASCEND_950PR, tmp_path / "cache")
    assert platform.root.is_absolute()


def test_a_cache_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkerSetupError, match="PFATUNE_CACHE") as caught:
        prepare(ASCEND_950PR, tmp_path / "file" / "cache")
    assert str(tmp_path / "file" / "cache") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_half_made_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", full)
        with pytest.raises(WorkerSetupError, match="No space left on device"):
            prepare(ASCEND_950PR, tmp_path)
    assert list((tmp_path / "overlay").iterdir()) == []
    assert prepare(ASCEND_950PR, tmp_path).root.is_dir()


def test_a_machine_without_pypto_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(WorkerSetupError, match="pip install pypto") as caught:
        prepare(ASCEND_950PR, tmp_path)
    assert "\n" not in str(caught.value)
