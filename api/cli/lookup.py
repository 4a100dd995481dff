"""What the database knows of a shape: what is served, and what was measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...kernel.config import ConfigError, KernelConfig, canonical, default_config
from ...kernel.ladder import Provenance
from ...kernel.shapes import Workload
from ...kernel.soc import Soc
from ...kernel.source import kernel_digest
from ..errors import InputError
from .options import shape_options

if TYPE_CHECKING:
    from ...db.records import Environment, TunedConfig
    from ...db.store import Store

MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Served:
    """The configuration that a shape gets, and why it gets that one.

    ``tuned`` is the evidence, None where it is a portfolio's or the default; unless ``provenance`` is
    ``exact`` it is of another shape. ``note`` says what to do then.
    """

    config: KernelConfig
    provenance: Provenance
    tuned: TunedConfig | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A configuration that a command is about. ``name`` tells people where it comes from."""

    name: str
    config: KernelConfig


def open_if_there(target: str, *, read_only: bool = True) -> Store | None:
    """The store, or None if there is no database; a file is never made.

    Raises:
        StoreError: something is there that cannot be used.
    """
    from ...db.store import Store
    from ...db.target import Target

    path = Target.parse(target).path
    if path is not None and not path.exists() and path.parent.is_dir():
        return None
    return Store.open(target, read_only=read_only)


def default_for(workload: Workload) -> KernelConfig:
    """The canonical form of the default configuration of a workload."""
    return canonical(default_config(workload.shape), workload.shape.family)


def served(store: Store | None, workload: Workload, chip: Soc) -> Served:
    """What a workload gets on a chip: tuned for it, for its bucket or for a shape close by, else the default."""
    options = f"{shape_options(workload)} --soc {chip.name}"
    tune = f"`pfatune tune {options}` finds one"
    rows = [] if store is None else [t for t in store.tuned(None, workload) if t.environment.soc == chip.name]
    current = [tuned for tuned in rows if tuned.environment.kernel_digest == kernel_digest()]
    if current:
        return Served(current[0].measurement.config, "exact", current[0])
    near = None if store is None else _near(store, workload, chip)
    if near is not None:
        return near
    if rows:
        note = f"this shape was tuned for another version of the kernel only: {tune} for this one"
    else:
        note = f"this shape was never tuned for {chip.name}: {tune}"
    return Served(default_for(workload), "default", note=note)


def _near(store: Store, workload: Workload, chip: Soc) -> Served | None:
    """What the ladder has for the shape, if it was not tuned for this very workload."""
    from ..serving import ServedView

    view = ServedView()
    view.take(view.news(store))
    found = view.lookup(workload.shape, chip.name)
    answer = found.answer
    if answer.provenance == "portfolio":
        note = (
            f"the family's common configuration, not measured at this shape: "
            f"`pfatune tune {shape_options(workload)} --soc {chip.name}` tunes it"
        )
        return Served(answer.config, "portfolio", note=note)
    measured = store.measurement(answer.entry.measurement) if answer.entry else None
    if measured is None or found.environment is None:
        return None
    rows = [t for t in store.tuned(measured[0], measured[1].workload) if t.environment == found.environment]
    if not rows:
        return None
    note = (
        f"tuned for {rows[0].workload} and not measured at this one: "
        f"`pfatune tune {shape_options(workload)} --soc {chip.name}` tunes it"
    )
    provenance: Provenance = "nearest" if answer.provenance == "exact" else answer.provenance
    return Served(answer.config, provenance, rows[0], note)


def environments(store: Store, chip: Soc) -> list[tuple[int, Environment]]:
    """The environments of a chip by id: those of this kernel first, the newest of them before the others."""
    found = [(key, env) for key, env in reversed(store.environments().items()) if env.soc == chip.name]
    return sorted(found, key=lambda pair: pair[1].kernel_digest != kernel_digest())


def environment_of(store: Store, workload: Workload, chip: Soc) -> tuple[int, Environment] | None:
    """The environment in which the workload was measured last, of this kernel if it was; None if it never was."""
    newest = [
        (env.kernel_digest == kernel_digest(), row.id or 0, key, env)
        for key, env in environments(store, chip)
        for row in store.measurements(key, workload=workload, limit=1, newest_first=True)
    ]
    return max(newest, key=lambda item: item[:2])[2:] if newest else None


def environment_text(environment: Environment) -> str:
    """An environment for people, with a warning if it is of another kernel."""
    text = (
        f"{environment.backend}, pypto {environment.pypto}, torch {environment.torch}, "
        f"kernel {environment.kernel_digest[:8]}, model {environment.model_digest[:8]}"
    )
    return text if environment.kernel_digest == kernel_digest() else f"{text}: another version of the kernel"


def choose(
    store: Store | None, workload: Workload, chip: Soc, *, file: str | None, digest: str | None, default: bool
) -> Chosen:
    """The configuration that the options name, in its own spelling if it comes from a file.

    Raises:
        InputError: two are named, or the one named cannot be found or read.
    """
    given = [name for name, is_given in (("--config", file), ("--digest", digest), ("--default", default)) if is_given]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are both given: name one configuration")
    if file is not None:
        return Chosen(f"of {'standard input' if file == '-' else file}", read_config(file))
    if digest is not None:
        return Chosen("measured", _by_digest(store, workload, chip, digest))
    if default:
        return Chosen("default", default_for(workload))
    found = served(store, workload, chip)
    if found.tuned is None:
        where = "the family's portfolio" if found.provenance == "portfolio" else "default"
        return Chosen(f"{where}, since the shape is not tuned", found.config)
    return Chosen("tuned" if found.provenance == "exact" else f"tuned for {found.tuned.workload}", found.config)


def read_config(source: str) -> KernelConfig:
    """The configuration in a JSON file, or on standard input if ``source`` is ``-``.

    It may stand alone or under ``config`` in a larger document, as ``pfatune config --json`` writes it.

    Raises:
        InputError: it cannot be read or is no configuration.
    """
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            text = sys.stdin.read(MAX_CONFIG_BYTES + 1)
        else:
            with Path(source).open(encoding="utf-8") as file:
                text = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise InputError(f"--config {source!r} cannot be read: {error.strerror}; give a JSON file") from None
    except UnicodeDecodeError:
        raise InputError(f"--config {source!r} is not text: give a JSON file") from None
    if len(text) > MAX_CONFIG_BYTES:
        raise InputError(f"{name} is larger than {MAX_CONFIG_BYTES >> 20} MiB: give the JSON of one configuration")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not JSON ({error}): give what `pfatune config --json` prints") from None
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        data = data["config"]
    if not isinstance(data, dict):
        raise InputError(f"{name} holds no JSON object: give what `pfatune config --json` prints")
    try:
        return KernelConfig.from_json(data)
    except ConfigError as error:
        raise InputError(f"{name}: {error}") from None


def _by_digest(store: Store | None, workload: Workload, chip: Soc, digest: str) -> KernelConfig:
    known = {default_for(workload)}
    if store is not None:
        for key, _ in environments(store, chip):
            known.update(row.config for row in store.measurements(key, workload=workload))
    found = [config for config in known if config.digest.startswith(digest.lower())] if digest else []
    if len(found) > 1:
        raise InputError(f"--digest {digest!r} fits {len(found)} configurations: give more of its 16 digits")
    if not found:
        raise InputError(
            f"--digest {digest!r} is no configuration measured for this shape: "
            f"`pfatune history {shape_options(workload)}` lists them"
        )
    return found[0]


def shape_document(workload: Workload, chip: Soc) -> dict[str, Any]:
    """How JSON output names what it is about."""
    seq: Sequence[int] | None = workload.actual_seq
    return {
        "shape": workload.shape.to_json(),
        "actual_seq": None if seq is None else list(seq),
        "soc": chip.name,
    }


def environment_document(environment: Environment) -> dict[str, str]:
    """How JSON output names an environment."""
    return {**environment.to_json(), "digest": environment.digest}


def config_document(workload: Workload, chip: Soc, config: KernelConfig) -> dict[str, Any]:
    """How JSON output names a configuration of a shape."""
    return {
        **shape_document(workload, chip),
        "config": config.to_json(),
        "config_digest": config.digest,
    }
