"""Settings from the environment: every one starts with PFATUNE_."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from .errors import InputError


def default_parallel() -> int:
    """Trials at once: the cores this process may use, less one, at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class Settings(BaseSettings):
    """What a machine, rather than a command, decides. Options of a command win over these."""

    model_config = SettingsConfigDict(env_prefix="PFATUNE_", extra="ignore")

    db: str = Field(default="pfatune.db", description="Database: a file's path or an SQLAlchemy URL.")
    cache: Path = Field(
        default=Path("~/.cache/pfatune"),
        description="Folder for what outlives a run: overlay, interpreter, compiler cache.",
    )
    soc: str = Field(default="950PR", description="Chip to tune for: 950PR or 950DT.")
    parallel: int = Field(default_factory=default_parallel, ge=1, le=256, description="Trials at once.")
    trial_timeout: float = Field(default=300.0, gt=0, le=86400, description="Seconds that one trial may take.")
    trial_memory_gib: float = Field(
        default=8.0, gt=0, le=1024, description="GiB that one trial may use, with all it starts."
    )
    backend: str = Field(default="sim", description="What measures: sim, the embedded worker.")
    lease_seconds: float = Field(
        default=30.0, ge=1, le=3600, description="Seconds after which the job of a worker that is gone is another's."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address that the service listens at.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port that the service listens at.")
    allowed_hosts: str = Field(
        default="", description="Names that the service may be called by beside localhost, separated by commas."
    )
    max_jobs: int = Field(default=1000, ge=1, le=1_000_000, description="Jobs that may be open at once.")
    max_body_kib: int = Field(default=1024, ge=1, le=65536, description="Largest body of a request, in KiB.")

    @property
    def cache_folder(self) -> Path:
        """``cache`` as an absolute path, with ~ expanded.

        Raises:
            RuntimeError: there is no home folder.
        """
        return self.cache.expanduser().absolute()


def load_settings(*, db: str | None = None, soc_name: str | None = None) -> Settings:
    """The settings of the environment, with what the options of a command say instead.

    Raises:
        InputError: a variable or an option cannot be used.
    """
    given = {name: value for name, value in (("db", db), ("soc", soc_name)) if value is not None}
    for name, value in given.items():
        if not value.strip():
            raise InputError(f"--{name} is {value!r}: give a value, or leave the option out")
    try:
        settings = Settings(**given)  # type: ignore[arg-type]  # texts only
    except ValidationError as error:
        first = error.errors()[0]
        name = f"PFATUNE_{'_'.join(map(str, first['loc'])).upper()}"
        raise InputError(f"{name} is {first['input']!r}: {first['msg']}; correct the variable or unset it") from None
    if settings.backend != "sim":
        remedy = "there is no NPU worker yet, use sim" if settings.backend == "npu" else "use sim"
        raise InputError(f"PFATUNE_BACKEND is {settings.backend!r}: {remedy}")
    for name, value in (("PFATUNE_DB", settings.db), ("PFATUNE_CACHE", str(settings.cache))):
        if not value.strip() or "\0" in value:
            raise InputError(f"{name} is {value!r}: give a path, or unset it")
    try:
        settings.cache_folder  # noqa: B018  # may raise
    except RuntimeError:
        raise InputError(
            f"PFATUNE_CACHE is {str(settings.cache)!r}, but there is no home folder: give a path"
        ) from None
    return settings
