"""Tune the six cases of the kernel's own test and write a table: default against tuned, in cycles.

    python benchmarks/six_cases.py --db six.db --out benchmarks/results/six_cases.json

Runs `pfatune tune --case NAME --trials 40 --json` for each case and reads the result from its
last line. A run that was stopped goes on where it was: measured configurations are in the
database. Figures are cycles of PyPTO's cost model, not time; nothing here ran on hardware.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from pfatune.kernel.shapes import CASES

#: What a kernel written by hand before this one cost with the same default, where it was measured.
EARLIER_DEFAULT = {"pfa_fp8_b16_s1_1_s2_8k_nkv_1": 427_028}


def tune(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("pfatune")), "tune", "--case", name, "--json"]
    command += ["--trials", str(options.trials), "--seed", str(options.seed), "--db", options.db]
    command += ["--parallel", str(options.parallel)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(name: str, result: dict[str, Any]) -> dict[str, Any]:
    shape = result["results"][0]
    kinds = result["trials"]["kinds"]
    started = sum(kinds.values())
    return {
        "case": name,
        "default_cycles": shape["default_cost"],
        "tuned_cycles": shape["cost"],
        "speedup": shape["speedup"],
        "verified": shape["verified"],
        "max_abs_diff": shape["max_abs_diff"],
        "trials": started,
        "ok": kinds.get("ok", 0),
        "kinds": kinds,
        "config": shape["config"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| case | default, cycles | tuned, cycles | default / tuned | verified | trials ok |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for r in rows:
        verified = f"max diff {r['max_abs_diff']:g}" if r["verified"] else "no"
        lines.append(
            f"| {r['case']} | {r['default_cycles']:,.0f} | {r['tuned_cycles']:,.0f} | {r['speedup']:.2f} "
            f"| {verified} | {r['ok']} of {r['trials']} |"
        )
    mean = math.exp(sum(math.log(r["speedup"]) for r in rows) / len(rows))
    ok, trials = sum(r["ok"] for r in rows), sum(r["trials"] for r in rows)
    lines.append(f"| geometric mean | | | {mean:.2f} | | {ok} of {trials} ({ok / trials:.0%}) |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default="six_cases.db", help="database of the runs; an existing one is continued")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="NAME")
    parser.add_argument("--out", type=Path, help="write the rows as JSON, and the table beside it as .md")
    options = parser.parse_args()
    rows = []
    for name in options.cases:
        print(f"tuning {name} …", file=sys.stderr, flush=True)
        rows.append(row(name, tune(name, options)))
        print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    print(table(rows))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "command": f"python benchmarks/six_cases.py --trials {options.trials} --seed {options.seed} "
            f"--parallel {options.parallel}",
            "machine": platform.machine(),
            "unit": "cycles (cost model)",
        }
        about["earlier_default_cycles"] = EARLIER_DEFAULT
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
