"""The files that containers are built and run from, held to the compose specification and to the project.

Nothing is built or run here, so this says that they are well formed and agree, not that they work.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from deploy_files import (
    COMPOSE,
    DOCKERFILE,
    DOCS,
    FILES,
    IGNORED,
    IMAGES,
    OURS,
    ROOT,
    USER,
    VARIABLE,
    compose,
    health_command,
    instructions,
    last,
    stages,
)

from pfatune.api.cli import main as cli
from pfatune.api.errors import InputError
from pfatune.api.settings import Settings, load_settings


def parse(arguments: list[str]) -> None:
    """Parse a command line of pfatune without running it; an unknown command or option raises."""
    command: Any = typer.main.get_command(cli.app)
    while hasattr(command, "commands"):
        assert arguments[0] in command.commands, f"pfatune has no command {arguments[0]!r}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(command.name, list(arguments))


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [str(tool), "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_compose_file_follows_the_specification() -> None:
    done = check_schema(COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("read_only: true", "readonly: true"), ("profiles: [npu]", "profiles: npu"), ("services:", "service:")],
)
def test_the_schema_refuses_a_broken_file(right: str, wrong: str, tmp_path: Path) -> None:
    text = COMPOSE.read_text()
    assert right in text
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(text.replace(right, wrong))
    assert check_schema(broken).returncode == 1


def test_it_can_be_read_without_any_variable() -> None:
    assert set(compose()["services"]) == {*OURS, "postgres"}


@pytest.mark.parametrize("name", [*OURS, "postgres"])
def test_every_service_is_confined(name: str) -> None:
    service = compose()["services"][name]
    assert service["user"].partition(":")[0] not in ("", "0", "root")
    assert name not in OURS or service["user"] == USER
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "userns_mode"} & set(service)
    assert {"mem_limit", "cpus", "pids_limit"} <= set(service)
    assert any(mount.startswith("/tmp:") and "size=" in mount for mount in service["tmpfs"])


@pytest.mark.parametrize("name", [*OURS, "postgres"])
def test_every_service_is_watched_and_restarted(name: str) -> None:
    service = compose()["services"][name]
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"]
    health = service["healthcheck"]
    assert health["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(health)


def test_only_loopback_is_published_unless_asked() -> None:
    services = compose()["services"]
    assert {name: service.get("ports") for name, service in services.items() if "ports" in service} == {
        "api": ["127.0.0.1:8000:8000"]
    }
    assert compose(API_ADDRESS="10.0.0.1", API_PORT="80")["services"]["api"]["ports"] == ["10.0.0.1:80:8000"]


def test_plain_up_needs_no_profile_and_no_postgres() -> None:
    services = compose()["services"]
    assert {name: service.get("profiles") for name, service in services.items()} == {
        "api": None,
        "worker": None,
        "postgres": ["fleet"],
        "worker-npu": ["npu"],
    }
    for name in OURS:
        assert services[name]["depends_on"] == {"postgres": {"condition": "service_healthy", "required": False}}


def test_data_lives_on_named_volumes() -> None:
    document = compose()
    volumes = set(document["volumes"])
    mounts = {name: service["volumes"] for name, service in document["services"].items()}
    for name in OURS:
        assert "database:/data" in mounts[name]
        assert document["services"][name]["environment"]["PFATUNE_DB"].startswith("/data/")
    for name in ("worker", "worker-npu"):
        assert "cache:/cache" in mounts[name]
        assert document["services"][name]["environment"]["PFATUNE_CACHE"] == "/cache"
    named = {mount.partition(":")[0] for entries in mounts.values() for mount in entries if isinstance(mount, str)}
    assert named == volumes


def test_workers_can_load_what_they_build_and_drain_before_they_are_killed() -> None:
    services = compose()["services"]
    for name in ("worker", "worker-npu"):
        assert all("noexec" not in mount and "exec" in mount for mount in services[name]["tmpfs"])
        minutes = re.fullmatch(r"(\d+)m", services[name]["stop_grace_period"])
        assert minutes
        environment = services[name]["environment"]
        assert int(minutes[1]) * 60 > max(600, float(environment["PFATUNE_TRIAL_TIMEOUT"]))
        memory = int(environment["PFATUNE_PARALLEL"]) * float(environment["PFATUNE_TRIAL_MEMORY_GIB"])
        assert int(services[name]["mem_limit"].removesuffix("g")) >= memory + 3


def test_the_npu_worker_gets_devices_and_the_hosts_driver_read_only() -> None:
    service = compose()["services"]["worker-npu"]
    assert service["devices"] == ["/dev/davinci0", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    from_host = [mount for mount in service["volumes"] if isinstance(mount, dict)]
    assert {mount["source"] for mount in from_host} == {
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info",
        "/usr/local/dcmi",
        "/usr/local/bin/npu-smi",
        "/etc/ascend_install.info",
    }
    for mount in from_host:
        assert mount["target"] == mount["source"]
        assert (mount["type"], mount["read_only"], mount["bind"]) == ("bind", True, {"create_host_path": False})
    assert service["environment"]["ASCEND_RT_VISIBLE_DEVICES"] == "0"
    assert service["environment"]["PFATUNE_BACKEND"] == "npu"
    assert service["environment"]["PFATUNE_PARALLEL"] == 1


def test_there_is_no_password_until_one_is_given() -> None:
    for given, expected in (({}, ""), ({"POSTGRES_PASSWORD": "p@ss:/word"}, "p@ss:/word")):
        for name, service in compose(**given)["services"].items():
            held = {key: value for key, value in service["environment"].items() if "PASSWORD" in key}
            assert held == {"PGPASSWORD" if name in OURS else "POSTGRES_PASSWORD": expected}
    for file in (COMPOSE, DOCKERFILE, DOCS):
        assert not re.search(r"://[^\s/@]*:[^\s/@]*@", file.read_text()), f"a password in a URL of {file.name}"
    assert not re.search(r"POSTGRES_HOST_AUTH_METHOD|PFATUNE_TOKEN", COMPOSE.read_text() + DOCKERFILE.read_text())


def test_variables_are_settings() -> None:
    settings = {f"PFATUNE_{name.upper()}" for name in Settings.model_fields}
    for file in FILES:
        assert set(re.findall(r"PFATUNE_[A-Z_]*[A-Z]", file.read_text())) <= settings, file.name


def test_what_the_containers_set_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        environment = compose()["services"][name]["environment"]
        with monkeypatch.context() as patch:
            for key in [key for key in os.environ if key.startswith("PFATUNE_")]:
                patch.delenv(key)
            for key, value in environment.items():
                patch.setenv(key, str(value))
            settings = Settings()
        assert settings.parallel == int(environment.get("PFATUNE_PARALLEL", settings.parallel))


def test_the_docs_list_every_variable() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row.split("|")[1])}
    used = {match[1] for match in VARIABLE.finditer(COMPOSE.read_text()) if match[1]}
    assert listed == used
    defaults = {match[1]: match[3] for match in VARIABLE.finditer(COMPOSE.read_text())}
    for row in rows:
        if names := re.findall(r"`([A-Z_]+)`", row.split("|")[1]):
            shown = [text.strip().strip("`") for text in row.split("|")[2].split(",")]
            real = ["none" if defaults[name] in ("", "cann-image-not-given") else defaults[name] for name in names]
            assert shown == real, row


def test_the_docs_say_what_was_never_done() -> None:
    text = " ".join(DOCS.read_text().split())
    assert "No image was ever built or run" in text
    assert "ever been built or run" in DOCKERFILE.read_text()


def test_the_docs_say_whether_there_is_an_npu_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFATUNE_BACKEND", "npu")
    try:
        load_settings()
        exists = True
    except InputError:
        exists = False
    assert ("this release has no NPU worker" in " ".join(DOCS.read_text().split())) is not exists


def test_targets_are_stages() -> None:
    targets = {service["build"]["target"] for service in compose()["services"].values() if "build" in service}
    assert targets == set(IMAGES) <= set(stages())


@pytest.mark.parametrize("stage", IMAGES)
def test_images_end_as_another_user_than_root(stage: str) -> None:
    assert stages()[stage][1], stage
    assert last(stage, "USER") == USER
    own = [rest for name, rest in stages()[stage][1] if name == "USER"]
    assert not own or own[-1] == USER
    assert last(stage, "STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("stage", IMAGES)
def test_entry_points_take_signals_themselves(stage: str) -> None:
    entry, command = json.loads(last(stage, "ENTRYPOINT")), json.loads(last(stage, "CMD"))
    assert entry == ["pfatune"] or (entry[:2] == ["/bin/bash", "-c"] and "&& exec pfatune" in entry[2])
    services = compose()["services"].values()
    assert {tuple(service["command"]) for service in services if service.get("build", {}).get("target") == stage} == {
        tuple(command)
    }


def test_commands_are_the_command_lines() -> None:
    for name in OURS:
        parse(compose()["services"][name]["command"])
    asked = re.findall(r"docker compose run --rm api (.*?)(?:`|\s{2,}|\n)", DOCS.read_text())
    assert asked
    for line in asked:
        parse(line.split())


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    patterns = [line for line in IGNORED.read_text().splitlines() if line and not line.startswith("#")]
    assert patterns[0] == "*"
    let_in = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    copied = set()
    for stage, (_, found) in stages().items():
        for rest in (rest for name, rest in found if name in ("COPY", "ADD")):
            options = [word for word in rest.split() if word.startswith("--")]
            *sources, _ = (word for word in rest.split() if not word.startswith("--"))
            if origin := next((word.removeprefix("--from=") for word in options if word.startswith("--from=")), ""):
                assert list(stages()).index(origin) < list(stages()).index(stage)
            else:
                copied.update(sources)
    assert copied == let_in
    for source in copied:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in patterns[1:] if not pattern.startswith("!"))


def test_everything_the_package_is_made_of_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = set(project["tool"]["setuptools"]["package-dir"].values())
    copied = {word for name, rest in stages()["source"][1] if name == "COPY" for word in rest.split()[:-1]}
    assert {*folders, "pyproject.toml", "constraints.txt", project["project"]["readme"]} == copied
    extras = {
        extra
        for _, rest in instructions()
        for group in re.findall(r"'\.\[(.*?)\]'", rest)
        for extra in group.split(",")
    }
    assert extras == {"fleet", "npu"} <= set(project["project"]["optional-dependencies"])
    for _, rest in instructions():
        assert "pip install" not in rest or "-c constraints.txt" in rest, rest


def test_no_image_names_a_registry() -> None:
    images = [base for base, _ in stages().values()]
    images += [service["image"] for service in compose()["services"].values()]
    for image in images:
        host, slash, _ = image.partition("/")
        assert not slash or not (set(".:") & set(host) or host == "localhost"), image
    for file in FILES:
        assert not re.search(r"\b(docker\.io|(quay|ghcr|gcr)\.io|\w+\.aliyuncs\.com)\b", file.read_text()), file.name
        assert not re.search(r"https?://(?!127\.0\.0\.1)", file.read_text()), file.name


def test_compose_and_images_check_health_alike() -> None:
    for service in compose()["services"].values():
        if "build" in service:
            assert service["healthcheck"]["test"] == ["CMD", *health_command(service["build"]["target"])]
