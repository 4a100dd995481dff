"""How well the closed form of legality predicts the real compiler.

    python benchmarks/legality.py results.jsonl --configs 60 --illegal 20

Draws random configurations around the limits, compiles and simulates each on a small shape of its
family, and prints predicted legal or illegal against what became of it, with the reasons. Results
are kept in a JSON-lines file: run it again to measure more, or with ``--configs 0 --illegal 0``
to judge what was measured by the closed form as it is now. A configuration takes some ten
seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfatune.autotune import platform, toolchain
from pfatune.autotune.trial import TrialPool
from pfatune.kernel.config import CubeTile, KernelConfig, PfaTileShapeConfig, Setting, canonical
from pfatune.kernel.legality import violations
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import SOCS, Soc

#: Families that are drawn, with their weights.
FAMILIES = {PfaFamily(): 5, PfaFamily(nkv=2): 4, PfaFamily(s1=2, nq=48, nkv=8): 1}
S2_TILES = (128, 256, 384, 512, 640, 1024, 1280, 1536, 2048, 4096)
L0 = (32, 64, 96, 128, 256, 512)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
COLUMNS = (32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096)
ODD_COLUMNS = (8, 24, 40, 72, 104, 200)
UNROLLS = ((1,), (2, 1), (4, 1), (4, 2, 1), (8, 1), (8, 4, 2, 1), (16, 1), (16, 4, 1), (32, 1), (3, 1))
REUSE = (0, 1, 2, 4, 8, 16)
NBUFFERS = (1, 2, 4, 8)
STITCH = (1, 2, 8, 32, 128, 512, 1024)
SLOW = 60.0  # seconds of a trial worth a line in the report


def draw(rng: random.Random) -> tuple[PfaFamily, KernelConfig]:
    """One family and a canonical configuration of it, legal or not."""
    family = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    s2_tile = rng.choice(S2_TILES)
    columns = COLUMNS if rng.random() < 0.85 else ODD_COLUMNS
    config = KernelConfig(
        tile=PfaTileShapeConfig(
            g_tile=rng.choice([n for n in range(1, family.group + 1) if family.group % n == 0]),
            s2_tile=s2_tile,
            c1_tile_shape=_cube(rng),
            v1_tile_shape=(rng.choice(ROWS), rng.choice(columns)),
            c2_tile_shape=_cube(rng),
            v2_tile_shape=(rng.choice(ROWS), rng.choice(columns)),
        ),
        unroll_list=rng.choice(UNROLLS),
        cube_l1_reuse_setting=_setting(rng, REUSE),
        vec_nbuffer_setting=_setting(rng, NBUFFERS),
        cube_nbuffer_setting=_setting(rng, NBUFFERS),
        stitch_function_max_num=rng.choice(STITCH),
    )
    return family, canonical(config, family)


def _cube(rng: random.Random) -> CubeTile:
    k, n = rng.choice(L0), rng.choice(L0)
    return ((16, 16), (k, k * rng.choice((1, 1, 2, 3, 4))), (n, n))


def _setting(rng: random.Random, values: tuple[int, ...]) -> Setting:
    value = rng.choice((None, *values))
    return () if value is None else ((-1, value),)


def shape_for(family: PfaFamily, config: KernelConfig) -> PfaShape:
    """Small, with a tile that is not full, and enough tiles for a merge."""
    return PfaShape(2, 3 * config.tile.s2_tile + 100, family.s1, family.nq, family.nkv, family.qd, family.block_size)


def wanted(args: argparse.Namespace, known: set[str], soc: Soc) -> Iterator[tuple[PfaFamily, KernelConfig]]:
    """What is still to be measured: legal ones, and those that break one rule only."""
    rng = random.Random(args.seed)
    left = {True: args.configs, False: args.illegal}
    while any(left.values()):
        family, config = draw(rng)
        found = violations(config, family, soc)
        legal = not found
        if len(found) > 1 or key(family, config) in known or not left[legal]:
            continue
        if args.rule and not any(args.rule in v.message for v in found):
            continue
        known.add(key(family, config))
        left[legal] -= 1
        yield family, config


def key(family: PfaFamily, config: KernelConfig) -> str:
    return json.dumps([family.to_json(), config.digest])


def measure(pool: TrialPool, family: PfaFamily, config: KernelConfig) -> dict[str, Any]:
    """Compile and simulate one configuration."""
    workload = Workload(shape_for(family, config))
    pool.submit({"job": "time", "config": config.to_json(), "workloads": [workload.to_json()]})
    result = pool.wait()[0]
    reply = result.reply or {}
    return {
        "family": family.to_json(),
        "config": config.to_json(),
        "kind": result.kind.value,
        "seconds": round(result.seconds, 1),
        "compile_seconds": reply.get("compile_seconds"),
        "peak_bytes": result.peak_bytes,
        "cost": reply["results"][0]["cost"] if reply else None,
        "message": result.message,
    }


def report(rows: list[dict[str, Any]], soc: Soc, out: Any = sys.stdout) -> None:
    """The table of predictions, then the reasons."""
    table: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    slow = []
    for row in rows:
        family, config = PfaFamily(**row["family"]), KernelConfig.from_json(row["config"])
        found = violations(config, family, soc)
        predicted = "illegal" if found else "legal"
        table[predicted, row["kind"]] += 1
        if found:
            reasons[f"predicted illegal, {row['kind']}: {found[0].field}: {found[0].message}"] += 1
        elif row["kind"] != "ok":
            last = row["message"].splitlines()[:3]
            reasons[f"predicted legal, {row['kind']}: {brief(family, config)}\n      " + " | ".join(last)[:300]] += 1
        if row["seconds"] > SLOW:
            slow.append(f"{row['seconds']:.0f} s ({row['kind']}): {brief(family, config)}")
    kinds = sorted({kind for _, kind in table}, key=lambda kind: (kind != "ok", kind))
    print("predicted".ljust(10), *(kind.rjust(17) for kind in kinds), file=out)
    for predicted in ("legal", "illegal"):
        print(predicted.ljust(10), *(str(table[predicted, kind]).rjust(17) for kind in kinds), file=out)
    for title, lines in (("Reasons", sorted(reasons)), (f"Over {SLOW:.0f} seconds", sorted(slow))):
        if lines:
            print(f"\n{title}:", *lines, sep="\n  ", file=out)


def brief(family: PfaFamily, config: KernelConfig) -> str:
    """A configuration in one line."""
    t = config.tile
    c1, c2 = t.c1_tile_shape, t.c2_tile_shape
    return (
        f"nq={family.nq}/{family.nkv} g={t.g_tile} s2={t.s2_tile} "
        f"c1 k{list(c1[1])} n{c1[2][0]} v1{list(t.v1_tile_shape)} "
        f"c2 k{list(c2[1])} n{c2[2][0]} v2{list(t.v2_tile_shape)} unroll{list(config.unroll_list)} "
        f"reuse{dict(config.cube_l1_reuse_setting)} vec{dict(config.vec_nbuffer_setting)} "
        f"cube{dict(config.cube_nbuffer_setting)} stitch={config.stitch_function_max_num}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON-lines file of measurements; appended to")
    parser.add_argument("--configs", type=int, default=20, help="legal configurations to measure (default 20)")
    parser.add_argument(
        "--illegal", type=int, default=5, help="configurations to measure that break one rule (default 5)"
    )
    parser.add_argument("--rule", default="", help="only configurations whose message holds this text")
    parser.add_argument("--seed", type=int, default=0, help="of the random draw (default 0)")
    parser.add_argument("--soc", choices=sorted(SOCS), default="950PR")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds of one trial (default 180)")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("PFATUNE_CACHE", Path.home() / ".cache" / "pfatune")),
        help="folder for the platform overlay, ccache and runs (default $PFATUNE_CACHE)",
    )
    args = parser.parse_args()
    soc = SOCS[args.soc]
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    rows = [json.loads(line) for line in lines]
    known = {key(PfaFamily(**row["family"]), KernelConfig.from_json(row["config"])) for row in rows}
    if args.configs or args.illegal:
        toolchain.require_tools()
        chip = platform.prepare(soc, args.cache)
        env = toolchain.compiler_environ(chip.environ(os.environ), args.cache)
        env.setdefault("OMP_NUM_THREADS", "1")
        runs = args.cache / "runs"
        with (
            TrialPool(env, "pfatune.autotune.sim_worker", folder=runs, timeout=args.timeout) as pool,
            args.results.open("a") as file,
        ):
            for family, config in wanted(args, known, soc):
                row = measure(pool, family, config)
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(
                    f"{row['kind']:>13} {row['seconds']:6.1f} s  {brief(family, config)}", file=sys.stderr, flush=True
                )
    report(rows, soc)


if __name__ == "__main__":
    main()
