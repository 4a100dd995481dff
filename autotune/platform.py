"""The embedded 950 worker's platform: PyPTO's own files, described as an Ascend 950.

PyPTO 0.2.0 reads one platform description beside its libraries and knows no 950. An overlay
folder of links to the installed package, with a description of ours, makes it compile for one
without changing the installation. Newer releases choose by the same file name or by the JSON
configuration; both are written.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kernel.soc import Soc
from .errors import WorkerSetupError

#: AICPU machines that the cores are split over; the split changes the cycles, so it is fixed.
AICPU_MACHINES = 4
#: Platform descriptions that some release of PyPTO reads.
_DESCRIPTIONS = ("A2A3.ini", "950PR_957x.ini")
_CONFIG = "tile_fwk_config.json"


@dataclass(frozen=True, slots=True)
class Platform:
    """An overlay on disk: what a child process needs to see a 950."""

    soc: Soc
    root: Path
    digest: str

    @property
    def config_path(self) -> Path:
        """The JSON configuration for ``TILEFWK_CONFIG_PATH``."""
        return self.root / _CONFIG

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with what makes a Python process load PyPTO through the overlay."""
        path = base.get("PYTHONPATH")
        env = dict(base)
        env["PYTHONPATH"] = f"{self.root}{os.pathsep}{path}" if path else str(self.root)
        env["TILEFWK_CONFIG_PATH"] = str(self.config_path)
        env.pop("ASCEND_HOME_PATH", None)
        return env


def installed_pypto() -> Path:
    """The folder of the installed PyPTO package.

    Raises:
        WorkerSetupError: PyPTO is not installed.
    """
    try:
        folder = Path(str(importlib.metadata.distribution("pypto").locate_file("pypto")))
    except importlib.metadata.PackageNotFoundError:
        raise WorkerSetupError("PyPTO is not installed: run `pip install pypto==0.2.0`") from None
    if not (folder / "lib" / "configs" / _CONFIG).is_file():
        raise WorkerSetupError(f"{folder} lacks lib/configs/{_CONFIG}: reinstall PyPTO")
    return folder


def prepare(soc: Soc, cache: Path) -> Platform:
    """The overlay of a chip under ``cache``, made if it is not there yet.

    It is named by what it is made of, and put in place whole, so that several processes may
    ask for it at once.

    Raises:
        WorkerSetupError: PyPTO is not installed, or ``cache`` cannot be written.
    """
    package = installed_pypto()
    cache = cache.absolute()  # trials run elsewhere
    description = platform_description(soc)
    stock = json.loads((package / "lib" / "configs" / _CONFIG).read_text())
    config = json.dumps(simulation_config(stock, soc), indent=1, sort_keys=True)
    version = importlib.metadata.version("pypto")
    digest = hashlib.sha256(f"{version}\n{description}\n{config}".encode()).hexdigest()[:16]
    place = hashlib.sha256(str(package).encode()).hexdigest()[:8]
    root = cache / "overlay" / f"{soc.name}-{digest}-{place}"
    if not root.is_dir():
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=root.parent))
            try:
                _link(package, fresh / "pypto", description, config)
                (fresh / _CONFIG).write_text(config)
                fresh.chmod(0o755)
                fresh.rename(root)
            except OSError:
                shutil.rmtree(fresh, ignore_errors=True)
                if not root.is_dir():  # another process was faster
                    raise
        except OSError as error:
            raise WorkerSetupError(
                f"cannot write the platform overlay in {cache}: {error.strerror}; "
                "set PFATUNE_CACHE to a writable folder"
            ) from None
    return Platform(soc=soc, root=root, digest=digest)


def _link(package: Path, overlay: Path, description: str, config: str) -> None:
    configs = overlay / "lib" / "configs"
    configs.mkdir(parents=True)
    for source, target, replaced in (
        (package, overlay, {"lib", "__pycache__"}),
        (package / "lib", overlay / "lib", {"configs"}),
        (package / "lib" / "configs", configs, {*_DESCRIPTIONS, _CONFIG}),
    ):
        for entry in source.iterdir():
            if entry.name not in replaced:
                (target / entry.name).symlink_to(entry)
    for name in _DESCRIPTIONS:
        (configs / name).write_text(description)
    (configs / _CONFIG).write_text(config)


def platform_description(soc: Soc) -> str:
    """The platform ini of a chip: versions, core counts, buffer sizes in bytes, rates in bytes per cycle."""
    sections: dict[str, dict[str, object]] = {
        "version": {
            "SoC_version": soc.version,
            "Short_SoC_version": "Ascend950",
            "AIC_version": "AIC-C-310",
            "CCEC_AIC_version": "dav-c310-cube",
            "CCEC_AIV_version": "dav-c310-vec",
            "CCEC_CUBE_version": "dav-c310-cube",
            "CCEC_VECTOR_version": "dav-c310-vec",
            "Compiler_aicpu_support_os": "true",
            "NpuArch": soc.npu_arch.removeprefix("DAV_"),
        },
        "SoCInfo": {
            "ai_core_cnt": soc.cube_cores,
            "cube_core_cnt": soc.cube_cores,
            "vector_core_cnt": soc.vector_cores,
            "ai_cpu_cnt": 6,
            "l2_size": soc.l2_bytes,
            "core_type_list": "CubeCore,VectorCore",
            "cube_vector_combine": "split",
        },
        "AICoreSpec": {
            "cube_freq": soc.clock_mhz,
            "l0_a_size": soc.l0a_bytes,
            "l0_b_size": soc.l0b_bytes,
            "l0_c_size": soc.l0c_bytes,
            "l1_size": soc.l1_bytes,
            "ub_size": soc.ub_bytes,
        },
        "AICoreMemoryRates": {
            "ddr_rate": soc.ddr_read_bytes_per_cycle,
            "ddr_read_rate": soc.ddr_read_bytes_per_cycle,
            "ddr_write_rate": soc.ddr_read_bytes_per_cycle,
        },
        "VectorCoreSpec": {"vec_freq": soc.clock_mhz, "ub_size": soc.ub_bytes},
    }
    lines: list[str] = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in values.items()), ""]
    return "\n".join(lines)


def simulation_config(stock: Mapping[str, Any], soc: Soc) -> dict[str, Any]:
    """PyPTO's JSON configuration, set up for the cost model of a chip and for speed.

    The core counts per AICPU machine must add up to the chip's, and no plot is drawn: PyPTO's
    plotting scripts would take ten times as long as a simulation.
    """
    config: dict[str, Any] = json.loads(json.dumps(stock))
    simulation = config["global"]["simulation"]
    simulation["draw_function_graph"] = False
    cube, vector = soc.cube_cores // AICPU_MACHINES, soc.vector_cores // AICPU_MACHINES
    simulation["args"] = [
        "Model.deviceArch=A5",
        "Model.statisticReportToFile=false",
        "Model.useOOOPassSeq=true",
        f"Model.aicpuMachineNumber={AICPU_MACHINES}",
        f"Model.coreMachineNumberPerAICPU={cube + vector}",
        f"Model.cubeMachineNumberPerAICPU={cube}",
        f"Model.vecMachineNumberPerAICPU={vector}",
        "Model.drawPngThresholdCycle=0",
        "Core.logLabelMode=0",
        "Core.bufferBackPressure=false",
        f"Pipe.ubSizeThreshold={soc.ub_bytes}",
        f"Pipe.l0cSizeThreshold={soc.l0c_bytes}",
    ]
    config["global"]["pass"]["default_pass_configs"]["dump_pass_time_cost"] = False
    return config
