"""Record a landscape: hundreds of configurations of one family, each compiled once and timed on the same shapes.

    python benchmarks/record_landscape.py nkv1
    python benchmarks/record_landscape.py nkv1-grid --of benchmarks/landscapes/nkv1.json.gz

The first part is spread over the legal space, or the best of each shape of another landscape; the
rest is denser where it is good: changes of one to three parameters of the best so far, in turn for
each shape. The file is written anew as each trial ends, so that a run that was stopped goes on
where it was, on any machine whose environment is the same. Costs are cycles of PyPTO's cost
model; nothing here ran on hardware.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pfatune.api.settings import load_settings
from pfatune.autotune import landscape
from pfatune.autotune.search import starting_points
from pfatune.autotune.sim import SimBackend
from pfatune.autotune.space import Params, Space, space_for
from pfatune.db.records import Kind, Measurement
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.shapes import PfaShape, Workload
from pfatune.kernel.soc import soc

FOLDER = Path(__file__).parent / "landscapes"
FEW = [(1, 256), (1, 4096), (1, 16384), (2, 1024), (4, 8192), (8, 1100), (16, 8192), (32, 2048)]
#: All powers of two up to 131,072 tokens in a batch, and the same that is not aligned.
GRID = [(8, 1100), *((1 << i, 256 << j) for i in range(6) for j in range(7) if i + j <= 9)]
SHAPES = {"nkv1": FEW, "nkv2": FEW, "nkv1-grid": GRID}
CONFIGS = {"nkv1": 320, "nkv2": 110, "nkv1-grid": 100}
SPREAD = 0.4  # of the configurations
DRAWN = 3000  # of which the spread ones are chosen
BEST = 12  # configurations of a shape whose surroundings are sought
TAKEN = 10  # configurations of each shape of another landscape
GIB = 1 << 30


def workloads_of(name: str) -> tuple[Workload, ...]:
    nkv = int(name.removeprefix("nkv").partition("-")[0])
    return tuple(Workload(PfaShape(b=b, s2=s2, nkv=nkv)) for b, s2 in SHAPES[name])


def spread(space: Space, count: int, seed: int) -> list[KernelConfig]:
    """Legal configurations far from one another: each next one is the farthest from all before it."""
    rng = random.Random(seed)
    drawn: dict[KernelConfig, tuple[float, ...]] = {}
    while len(drawn) < DRAWN:
        config = space.random(rng)
        params = space.params(config) if config else None
        if config and params:
            drawn[config] = coordinates(space, params)
    chosen = [next(iter(drawn))]
    distance = {config: apart(place, drawn[chosen[0]]) for config, place in drawn.items()}
    while len(chosen) < count:
        farthest = max(distance, key=lambda config: distance[config])
        chosen.append(farthest)
        for config, place in drawn.items():
            distance[config] = min(distance[config], apart(place, drawn[farthest]))
    rng.shuffle(chosen)
    return chosen


def best_of(other: landscape.Landscape, count: int) -> list[KernelConfig]:
    """The best of each shape, the best of all first, then the second best of all, and so on."""
    ok = [point for point in other.points if point.kind is Kind.OK]
    ranked = [sorted(ok, key=lambda point: point.costs[at])[:count] for at in range(len(other.workloads))]
    return list(dict.fromkeys(point.config for rank in zip(*ranked, strict=True) for point in rank))


def coordinates(space: Space, params: Params) -> tuple[float, ...]:
    """Each parameter's place among its values, from 0 to 1."""
    return tuple(values.index(params[name]) / max(1, len(values) - 1) for name, values in space.choices.items())


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def around(space: Space, recorded: landscape.Landscape, seed: int) -> Iterator[KernelConfig]:
    """Endless changes of one to three parameters of the best of each shape in turn."""
    rng = random.Random(seed)
    ok = [point for point in recorded.points if point.kind is Kind.OK]
    while True:
        at = rng.randrange(len(recorded.workloads))
        best = sorted(ok, key=lambda point: point.costs[at])[:BEST]
        params = space.params(rng.choice(best).config)
        if params is None:
            continue
        for name in rng.sample(list(space.choices), rng.choice((1, 1, 2, 2, 3))):
            values = space.choices[name]
            step = values.index(params[name]) + rng.choice((-2, -1, -1, 1, 1, 2))
            params[name] = values[max(0, min(len(values) - 1, step))]
        config = space.config(params)
        if space.legal(config):
            yield config


class Recorder:
    """A recording under way: what is in its file already is not measured again.

    Raises:
        SystemExit: the file was recorded elsewhere, or on other shapes.
    """

    def __init__(self, name: str, options: argparse.Namespace, backend: SimBackend) -> None:
        self.options = options
        self.backend = backend
        self.workloads = workloads_of(name)
        self.space = space_for(self.workloads, backend.soc)
        self.found = landscape.Landscape(self.workloads[0].shape.family, backend.environment, self.workloads, ())
        if options.out.exists():
            earlier = landscape.read(options.out)
            if (earlier.environment, earlier.workloads) != (self.found.environment, self.found.workloads):
                raise SystemExit(f"{options.out} was recorded in another environment or on other shapes: move it away")
            self.found = earlier
        first = dict.fromkeys(canonical(default_config(w.shape), self.found.family) for w in self.workloads)
        first |= dict.fromkeys(starting_points(self.space, default_config(self.workloads[0].shape)))
        self.queue = [config for config in first if self.space.legal(config)]
        if options.of is None:
            self.queue += spread(self.space, round(SPREAD * options.configs), options.seed)
        else:
            self.queue += [c for c in best_of(landscape.read(options.of), TAKEN) if self.space.legal(c)]

    def next_config(self, taken: set[KernelConfig]) -> KernelConfig:
        for config in self.queue:
            if config not in taken:
                return config
        seed = self.options.seed * 1_000_003 + len(self.found.points)
        return next(config for config in around(self.space, self.found, seed) if config not in taken)

    def run(self) -> None:
        done = {point.config for point in self.found.points}
        running: dict[int, KernelConfig] = {}
        started = time.monotonic()
        with self.backend.pool(timeout=self.options.timeout, memory=self.options.memory_gib * GIB) as pool:
            while running or len(done) < self.options.configs:
                while len(running) < self.options.parallel and len(done) + len(running) < self.options.configs:
                    config = self.next_config(done | set(running.values()))
                    running[pool.submit(self.backend.time_job(config, self.workloads))] = config
                for result in pool.wait(1.0):
                    config = running.pop(result.trial)
                    if result.kind is Kind.ENVIRONMENT_FAULT:
                        raise SystemExit(f"the worker failed: {result.message}")
                    self.keep(self.backend.measurements(config, self.workloads, result))
                    done.add(config)
                    self.tell(len(done), config, str(result.kind), result.seconds, time.monotonic() - started)

    def keep(self, rows: Sequence[Measurement]) -> None:
        """Add a trial, and write the file: whole, or not at all."""
        new = landscape.Landscape.of(self.backend.environment, self.workloads, rows)
        self.found = replace(self.found, points=self.found.points + new.points)
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        part = self.options.out.with_name(f"part-{self.options.out.name}")
        landscape.write(self.found, part)
        part.replace(self.options.out)

    def tell(self, done: int, config: KernelConfig, kind: str, seconds: float, elapsed: float) -> None:
        text = f"{done}/{self.options.configs} {config.digest} {kind} {seconds:.0f} s, {elapsed / 60:.0f} min"
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=list(SHAPES))
    parser.add_argument("--configs", type=int, help="configurations in all, those in the file included")
    parser.add_argument("--out", type=Path, help="default: benchmarks/landscapes/FAMILY.json.gz; it is continued")
    parser.add_argument("--of", type=Path, metavar="LANDSCAPE", help="begin with the best of each of its shapes")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one trial")
    parser.add_argument("--memory-gib", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.configs = options.configs or CONFIGS[options.family]
    options.out = options.out or FOLDER / f"{options.family}.json.gz"
    settings = load_settings()
    recorder = Recorder(options.family, options, SimBackend(soc(settings.soc), settings.cache_folder))
    recorder.run()
    result = recorder.found
    print(f"{len(result.points)} configurations on {len(result.workloads)} shapes in {result.hours:.1f} trial hours")


if __name__ == "__main__":
    main()
