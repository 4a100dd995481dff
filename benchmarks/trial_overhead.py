"""What a trial costs the tuner, against the bare calls and against a plain script for every trial.

    python benchmarks/trial_overhead.py --configs 12 --seed 0 --out overhead.json

Draws configurations near the default one of a case and times each three ways, one at a time and
in turns, so that a machine that gets slower gets slower for all:

ours    a trial through the pool, from the submit to its result
bare    the call that compiles and simulates, timed inside a new process; neither its start nor
        its imports count. PyPTO has the platform of the chip, and draws neither plots nor graphs
plain   a new process from start to end, with PyPTO's own settings: only the platform and the
        numbers of cores are changed, without which it does not run

Every way has to find the same cycles. The compiler cache is empty at first unless ``--cache``
names one that is not, so the figures include compiling what differs between configurations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.legality import violations
from pfatune.kernel.shapes import CASES, PfaShape, Workload, case
from pfatune.kernel.soc import SOCS, Soc

WAYS = ("ours", "bare", "plain")
TIMEOUT = 600.0  # seconds of one process
#: What is changed near the default, and to what.
NEAR: dict[str, list[Any]] = {
    "s2_tile": [256, 512, 1024],
    "c1_tile_shape": [[[16, 16], [128, 128], [n, n]] for n in (128, 256)],
    "v1_tile_shape": [[12, 128], [12, 256], [8, 128], [4, 256]],
    "c2_tile_shape": [[[16, 16], [k, 2 * k], [128, 128]] for k in (64, 128)],
    "v2_tile_shape": [[12, 128], [12, 64], [4, 128]],
    "unroll_list": [[8, 4, 2, 1], [4, 2, 1], [8, 1], [2, 1]],
    "cube_l1_reuse_setting": [{"-1": n} for n in (2, 4, 8, 16)],
    "vec_nbuffer_setting": [{"-1": n} for n in (1, 2, 4, 8)],
    "cube_nbuffer_setting": [{"-1": n} for n in (1, 2, 4, 8)],
    "stitch_function_max_num": [64, 128, 256, 512],
}


def neighbours(shape: PfaShape, soc: Soc, rng: random.Random) -> Iterator[KernelConfig]:
    """Legal configurations that differ from the default in one to three fields, none of them twice."""
    default = canonical(default_config(shape), shape.family)
    seen = {default.digest}
    while True:
        fields = rng.sample(list(NEAR), rng.randint(1, 3))
        changed = default.to_json() | {field: rng.choice(NEAR[field]) for field in fields}
        config = canonical(KernelConfig.from_json(changed), shape.family)
        if config.digest not in seen and not violations(config, shape.family, soc):
            seen.add(config.digest)
            yield config


def plain_config(stock: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """PyPTO's own settings with the chip's generation and numbers of cores."""
    config: dict[str, Any] = json.loads(json.dumps(stock))
    simulation = config["global"]["simulation"]
    needed = [arg for arg in ours["global"]["simulation"]["args"] if "achineNumber" in arg or "deviceArch" in arg]
    names = {arg.partition("=")[0] for arg in needed}
    simulation["args"] = [arg for arg in simulation["args"] if arg.partition("=")[0] not in names] + needed
    return config


def run_here(job: Mapping[str, Any]) -> None:
    """In a process of its own: compile and simulate once, and print the seconds of that call."""
    import pypto

    from pfatune.kernel.inputs import empty_inputs
    from pfatune.kernel.pfa import build_kernel, flatten

    workload = Workload.from_json(job["workload"])
    family = workload.shape.family
    kernel = build_kernel(KernelConfig.from_json(job["config"]), family, run_mode=pypto.RunMode.SIM)
    tensors = flatten(empty_inputs(workload).tensors(), family)
    start = time.perf_counter()
    kernel(*tensors)
    print(f"seconds {time.perf_counter() - start}", flush=True)


def run_process(job: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """A process that does ``run_here``: seconds of the call and of all of it, and the cycles."""
    from pfatune.autotune import swimlane

    with tempfile.TemporaryDirectory(prefix="trial-overhead-") as name:
        folder = Path(name)
        env = {
            **environ,
            "TILE_FWK_OUTPUT_DIR": str(folder / "out"),
            "ASCEND_PROCESS_LOG_PATH": str(folder / "log"),
            "PYPTO_HOME": str(folder / "home"),
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--run-here", json.dumps(job)]
        start = time.perf_counter()
        done = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False
        )
        whole = time.perf_counter() - start
        said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("seconds ")]
        found = sorted(folder.glob("out/*/CostModelSimulationOutput/_simulate.swim.json"))
        if done.returncode or not said or not found:
            return {"error": done.stderr.strip()[-500:] or f"exit code {done.returncode}"}
        return {"call": float(said[-1]), "whole": whole, "cost": swimlane.parse(found[-1].read_bytes()).makespan}


def measure(options: argparse.Namespace, cache: Path) -> list[dict[str, Any]]:
    from pfatune.autotune import platform, toolchain
    from pfatune.autotune.trial import TrialPool

    soc, shape = SOCS[options.soc], case(options.case)
    workload = Workload(shape)
    toolchain.require_tools()
    overlay = platform.prepare(soc, cache)
    bare = overlay.environ(os.environ)
    # PyPTO's plotting scripts are run by the python3 on PATH.
    bare["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{bare.get('PATH', os.defpath)}"
    stock = json.loads((platform.installed_pypto() / "lib" / "configs" / "tile_fwk_config.json").read_text())
    plain_json = cache / "plain.json"
    plain_json.write_text(json.dumps(plain_config(stock, json.loads(overlay.config_path.read_text()))))
    plain = {**bare, "TILEFWK_CONFIG_PATH": str(plain_json)}
    ours = {**toolchain.compiler_environ(overlay.environ(os.environ), cache), "OMP_NUM_THREADS": "1"}

    rows: list[dict[str, Any]] = []
    with TrialPool(ours, "pfatune.autotune.sim_worker", folder=cache / "runs") as pool:

        def trial(config: KernelConfig) -> dict[str, Any]:
            job = {"job": "time", "config": config.to_json(), "workloads": [workload.to_json()]}
            start = time.perf_counter()
            pool.submit(job)
            (result,) = pool.wait()
            seconds = time.perf_counter() - start
            if result.reply is None:
                return {"error": f"{result.kind}: {result.message}"}
            return {"seconds": seconds, "cost": result.reply["results"][0]["cost"]}

        def one(way: str, config: KernelConfig) -> dict[str, Any]:
            if way == "ours":
                return trial(config)
            job = {"config": config.to_json(), "workload": workload.to_json()}
            done = run_process(job, bare if way == "bare" else plain)
            if "error" in done:
                return done
            return {"seconds": done["call" if way == "bare" else "whole"], "cost": done["cost"]}

        configs = neighbours(shape, soc, random.Random(options.seed))
        for index in range(options.configs):
            config = next(configs)
            turn = index % len(WAYS)
            row: dict[str, Any] = {"config": config.to_json()}
            for way in WAYS[turn:] + WAYS[:turn]:
                row[way] = one(way, config)
            rows.append(row)
            told = (f"{way} {row[way]['seconds']:.1f} s" if "seconds" in row[way] else f"{way} failed" for way in WAYS)
            print(f"{index + 1}/{options.configs}: {', '.join(told)}", file=sys.stderr, flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means, medians and ratios over the configurations that ran all three ways."""
    good = [row for row in rows if all("seconds" in row[way] for way in WAYS)]
    answer: dict[str, Any] = {
        "configs": len(rows),
        "timed": len(good),
        "same_cycles": sum(len({row[way]["cost"] for way in WAYS}) == 1 for row in good),
    }
    if not good:
        return answer
    seconds = {way: [row[way]["seconds"] for row in good] for way in WAYS}
    answer["mean_seconds"] = {way: statistics.fmean(values) for way, values in seconds.items()}
    answer["median_seconds"] = {way: statistics.median(values) for way, values in seconds.items()}
    for way in WAYS[1:]:
        ratios = [ours / other for ours, other in zip(seconds["ours"], seconds[way], strict=True)]
        answer[f"ours_to_{way}"] = {
            "of_means": answer["mean_seconds"]["ours"] / answer["mean_seconds"][way],
            "mean": statistics.fmean(ratios),
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
    return answer


def show(answer: Mapping[str, Any]) -> None:
    print(
        f"{answer['timed']} of {answer['configs']} configurations ran all three ways, "
        f"{answer['same_cycles']} of them with the same cycles"
    )
    if "mean_seconds" not in answer:
        return
    for way in WAYS:
        mean, median = answer["mean_seconds"][way], answer["median_seconds"][way]
        print(f"{way:5}  mean {mean:6.2f} s  median {median:6.2f} s")
    for way in WAYS[1:]:
        ratio = answer[f"ours_to_{way}"]
        print(
            f"ours / {way:5}  of the means {ratio['of_means']:.2f}  mean {ratio['mean']:.2f}  "
            f"median {ratio['median']:.2f}  from {ratio['least']:.2f} to {ratio['most']:.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=int, default=12, help="how many configurations; each takes about a minute")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--case", default="pfa_fp8_b16_s1_1_s2_8k_nkv_1", choices=list(CASES), metavar="NAME")
    parser.add_argument("--soc", default="950PR", choices=list(SOCS))
    parser.add_argument("--cache", type=Path, help="folder of the compiler cache; a new one if not given")
    parser.add_argument("--out", type=Path, help="write every measurement and the summary as JSON")
    parser.add_argument("--run-here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_here:
        run_here(json.loads(options.run_here))
        return 0
    if options.configs < 1:
        parser.error("--configs must be at least 1")
    with tempfile.TemporaryDirectory(prefix="trial-overhead-") as fresh:
        cache = (options.cache or Path(fresh)).absolute()
        cache.mkdir(parents=True, exist_ok=True)
        rows = measure(options, cache)
    answer = summary(rows)
    show(answer)
    if options.out:
        chosen = {"case": options.case, "soc": options.soc, "seed": options.seed}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**chosen, "summary": answer, "rows": rows}, indent=1) + "\n")
    return 0 if answer["timed"] == answer["same_cycles"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
