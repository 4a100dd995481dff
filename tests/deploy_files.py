"""Reading the files that containers are built and run from, as Docker and Compose read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
DOCS = ROOT / "docs" / "deploy.md"
IGNORED = ROOT / ".dockerignore"
FILES = (COMPOSE, DOCKERFILE, DOCS, IGNORED)
IMAGES = ("api", "worker", "npu")
OURS = ("api", "worker", "worker-npu")
USER = "10001:10001"
VARIABLE = re.compile(r"\$\{(\w+)(?::?([-?+])((?:[^{}]|\$\{[^}]*\})*))?\}|\$(\w+)")


def expand(text: str, values: dict[str, str]) -> str:
    """The text as Compose and Docker read it: ``${NAME}``, ``${NAME:-default}``, ``${NAME:+other}``."""

    def value(match: re.Match[str]) -> str:
        name, kind, other, bare = match.groups()
        found = values.get(name or bare, "")
        if kind == "-":
            return found or expand(other, values)
        if kind == "+":
            return expand(other, values) if found else ""
        assert kind is None or found, f"{name} is demanded, even of who does not use its profile"
        return found

    return VARIABLE.sub(value, text)


def compose(**values: str) -> dict[str, Any]:
    """The compose file, as it is read in an environment of ``values`` alone."""

    def put_in(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: put_in(value) for key, value in node.items()}
        if isinstance(node, list):
            return [put_in(value) for value in node]
        return expand(node, values) if isinstance(node, str) else node

    document = put_in(YAML(typ="safe").load(COMPOSE.read_text()))
    assert isinstance(document, dict)
    return document


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: the name, and the rest as one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    return [
        (name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By name, each stage's base image with the defaults put in, and its instructions."""
    defaults: dict[str, str] = {}
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            assert stage, f"FROM {rest} has no name"
            current: list[tuple[str, str]] = []
            found[stage] = (expand(base, defaults), current)
        elif found:
            current.append((name, rest))
        else:
            assert name == "ARG"
            argument, _, default = rest.partition("=")
            defaults[argument] = default
    return found


def inherited(stage: str) -> list[tuple[str, str]]:
    """The instructions of a stage after those of the stages it builds on."""
    base, own = stages()[stage]
    return (inherited(base) if base in stages() else []) + own


def last(stage: str, name: str) -> str:
    """What the last instruction of a name in a stage says."""
    return [rest for found, rest in inherited(stage) if found == name][-1]


def health_command(stage: str) -> list[str]:
    """A stage's health check, as an argument vector."""
    command = json.loads(last(stage, "HEALTHCHECK").partition("CMD ")[2])
    assert isinstance(command, list)
    return command
