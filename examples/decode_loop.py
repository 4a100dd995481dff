"""A decode loop as an inference engine runs it: paged attention over a batch that grows and shrinks.

    python examples/decode_loop.py                                 # the kernel's own defaults
    python examples/decode_loop.py --db demo.db                    # what `make demo` tuned
    python examples/decode_loop.py --url http://127.0.0.1:8000     # what a service has tuned
    python examples/decode_loop.py --snapshot configs.json         # a file of tuned configurations

Requests join and leave, each grows by one token a step, and their keys and values live in blocks
of one cache. The call to `paged_attention` is that of an engine on an NPU; only the device is not.
The embedded worker stands in for it: it compiles every configuration with PyPTO and simulates it
on the cost model of the chip, and the numbers come from the kernel's golden on the CPU. Cycles are
of that cost model, good for ranking configurations and for nothing else. Nothing ran on hardware.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pfatune.api.errors import InputError
from pfatune.api.settings import load_settings
from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.sim import SimBackend
from pfatune.autotune.trial import TrialPool
from pfatune.kernel.attention import Lookup, configure, paged_attention, warm_up
from pfatune.kernel.buckets import bucket
from pfatune.kernel.config import KernelConfig, canonical, default_config
from pfatune.kernel.golden import dense_attention, flash_attention
from pfatune.kernel.inputs import E4M3_MAX, PfaInputs
from pfatune.kernel.ladder import Ladder
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload
from pfatune.kernel.soc import soc
from pfatune.kernel.tuned import TunedConfigs

FAMILY = PfaFamily()
BLOCK = FAMILY.block_size
#: Prompts as parts of the longest sequence; the next request takes the next one.
PROMPTS = (0.2, 0.45, 0.97, 0.7)
JOIN_EVERY = 4  # steps
NEW_TOKENS = 14  # of each request
CHECK_EVERY = 4  # steps
#: V is quantised by channel with a scale that must hold for tokens to come; K brings its own.
V_AMAX = 5.0
#: A weight rounded to E4M3 is off by at most 1/16 of itself.
TOLERANCE = 1 / 16


@dataclass
class Request:
    """One sequence: its cached tokens, and the blocks that hold them."""

    left: int
    length: int = 0
    blocks: list[int] = field(default_factory=list)


class PagedCache:
    """Keys and values of all requests in blocks, and the list of those that are free."""

    def __init__(self, num_blocks: int) -> None:
        shape = (num_blocks, BLOCK, FAMILY.nkv, FAMILY.qd)
        self.k = torch.zeros(shape).to(torch.float8_e4m3fn)
        self.k_scale = torch.zeros(*shape[:-1], 1)
        self.v = torch.zeros(shape).to(torch.float8_e4m3fn)
        self.free = list(range(num_blocks))

    def append(self, request: Request, k: Tensor, v: Tensor) -> None:
        """Store keys and values [tokens, nkv, qd] of new tokens, in new blocks where the last is full."""
        quantised, scale = quantise(k)
        v = (v * (E4M3_MAX / V_AMAX)).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        for token in range(len(k)):
            slot = request.length % BLOCK
            if slot == 0:
                request.blocks.append(self.free.pop())
            block = request.blocks[-1]
            self.k[block, slot], self.k_scale[block, slot], self.v[block, slot] = (
                quantised[token],
                scale[token],
                v[token],
            )
            request.length += 1

    def release(self, request: Request) -> None:
        """Give a request's blocks back."""
        self.free += request.blocks
        request.blocks.clear()


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 by rows, and the scale that undoes it."""
    scale = values.abs().amax(-1, keepdim=True) / E4M3_MAX
    return (values / scale).to(torch.float8_e4m3fn), scale


class StandIn:
    """The embedded worker in the place of a device: cycles of the cost model, numbers of the golden."""

    def __init__(self, backend: SimBackend, pool: TrialPool) -> None:
        self._backend = backend
        self._pool = pool
        self._cycles: dict[tuple[KernelConfig, PfaShape], float] = {}
        self.launched: KernelConfig | None = None

    def build(self, config: KernelConfig, family: PfaFamily, softmax_scale: float) -> Callable[[list[Tensor]], None]:
        """A kernel for `configure`. Like PyPTO's own it compiles at its first launch."""

        def launch(tensors: list[Tensor]) -> None:
            inputs = PfaInputs(*tensors)
            lengths = tuple(inputs.kv_act_seqs.tolist())
            workload = Workload(PfaShape(len(lengths), inputs.block_table.shape[1] * BLOCK), lengths)
            self.cycles(config, bucket(PfaShape(len(lengths), max(lengths))))
            inputs.atten_out.copy_(flash_attention(inputs, workload, s2_tile=config.tile.s2_tile))
            self.launched = config

        return launch

    def cycles(self, config: KernelConfig, shape: PfaShape) -> float:
        """Cycles of the cost model, simulated once for each shape, in a process of its own.

        Raises:
            RuntimeError: the configuration does not compile or run.
        """
        default = canonical(default_config(shape), shape.family)
        missing = [one for one in dict.fromkeys((config, default)) if (one, shape) not in self._cycles]
        trials = {self._pool.submit(self._backend.time_job(one, [Workload(shape)])): one for one in missing}
        while self._pool.running:
            for result in self._pool.wait():
                if result.reply is None:
                    if trials[result.trial] == config:
                        raise RuntimeError(f"{result.kind}: {result.message}")
                    continue
                self._cycles[trials[result.trial], shape] = result.reply["results"][0]["cost"]
        return self._cycles[config, shape]


def attend(cache: PagedCache, batch: list[Request], columns: int) -> tuple[PfaInputs, PfaShape]:
    """One step of attention: what an engine does for every layer."""
    longest = max(request.length for request in batch)
    shape = PfaShape(len(batch), longest)
    table = torch.full((len(batch), columns), -1, dtype=torch.int32)
    for row, request in enumerate(batch):
        table[row, : len(request.blocks)] = torch.tensor(request.blocks)
    q, q_scale = quantise(torch.randn(len(batch), FAMILY.nq, FAMILY.qd))
    v_scale = torch.full((len(batch), FAMILY.nkv, FAMILY.qd), V_AMAX / E4M3_MAX)
    lengths = torch.tensor([request.length for request in batch], dtype=torch.int32)
    tensors = (q, q_scale, cache.k, cache.k_scale, cache.v, v_scale, table, lengths)
    return PfaInputs(*tensors, atten_out=paged_attention(*tensors, s2=longest)), shape


def worst_error(inputs: PfaInputs) -> float:
    """Largest distance of a head's output from dense attention, relative to its length."""
    lengths = tuple(inputs.kv_act_seqs.tolist())
    workload = Workload(PfaShape(len(lengths), inputs.block_table.shape[1] * BLOCK), lengths)
    expected = dense_attention(inputs, workload)
    off = (inputs.atten_out.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(off.nan_to_num(torch.inf).max())


def decode(options: argparse.Namespace, tuned: Lookup, device: StandIn) -> float:
    """Run the loop and print the table; the largest error that was found."""
    columns = -(-options.tokens // BLOCK)
    cache = PagedCache(options.batch * columns)
    batch: list[Request] = []
    joined, reported, errors = 0, set[tuple[PfaShape, str]](), [0.0]
    print(
        f"{'step':>4} {'b':>2} {'longest':>7}  {'from':<9} {'configuration':<16} {'default':>12} {'tuned':>12}  cycles"
    )
    for step in range(options.steps):
        if step % JOIN_EVERY == 0 and len(batch) < options.batch:
            prompt = max(1, min(round(PROMPTS[joined % len(PROMPTS)] * options.tokens), options.tokens - NEW_TOKENS))
            batch.append(Request(NEW_TOKENS))
            joined += 1
            cache.append(batch[-1], *torch.randn(2, prompt, FAMILY.nkv, FAMILY.qd))
        for request in batch:
            cache.append(request, *torch.randn(2, 1, FAMILY.nkv, FAMILY.qd))
            request.left -= 1
        inputs, shape = attend(cache, batch, columns)
        config = device.launched
        assert config is not None
        if (row := (bucket(shape), config.digest)) not in reported:
            reported.add(row)
            default = device.cycles(canonical(default_config(row[0]), FAMILY), row[0])
            print(
                f"{step:>4} {shape.b:>2} {shape.s2:>7}  {tuned.lookup(shape).provenance:<9} {config.digest} "
                f"{default:>12,.0f} {device.cycles(config, row[0]):>12,.0f}",
                flush=True,
            )
        if step % CHECK_EVERY == 0 or step == options.steps - 1:
            errors.append(worst_error(inputs))
        for request in [request for request in batch if request.left == 0]:
            cache.release(request)
            batch.remove(request)
    return max(errors)


def source(options: argparse.Namespace, stack: ExitStack) -> Lookup:
    """Where configurations come from, and a line that says so."""
    place = options.db or options.url or options.snapshot
    if place is None:
        print("configurations: the kernel's own defaults (give --db, --url or --snapshot for tuned ones)")
        return Ladder()
    tuned = stack.enter_context(TunedConfigs(place, soc=options.soc))
    if options.url:
        tuned.wait(10.0)  # for a table worth reading; an engine need not wait
    status = tuned.status
    print(
        f"configurations: {status.origin}, {status.entries} tuned shapes"
        + (f" ({status.error})" if status.error else "")
    )
    return tuned


def main() -> int:
    """Run the example; 1 if the numbers are wrong, 2 if it cannot start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--db", metavar="FILE", help="database of `pfatune tune`")
    places.add_argument("--url", help="service of `pfatune serve`")
    places.add_argument("--snapshot", metavar="FILE", help="file of tuned configurations")
    parser.add_argument("--steps", type=int, default=24, help="tokens to decode (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="requests at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=512, help="longest sequence (default: %(default)s)")
    parser.add_argument("--soc", default="950PR", help="chip to simulate (default: %(default)s)")
    options = parser.parse_args()
    if min(options.steps, options.batch) < 1 or options.tokens <= NEW_TOKENS:
        parser.error(f"give --steps and --batch from 1, and --tokens above {NEW_TOKENS}")
    torch.manual_seed(0)
    try:
        with ExitStack() as stack:
            tuned = source(options, stack)
            backend = SimBackend(soc(options.soc), load_settings().cache_folder)
            device = StandIn(backend, stack.enter_context(backend.pool()))
            engine = configure(tuned, build=device.build)
            lengths = range(BLOCK, options.tokens + 1, BLOCK)
            compiled = warm_up(PfaShape(b, s2) for b in range(1, options.batch + 1) for s2 in lengths)
            print(f"compiled before serving: {compiled}")
            error = decode(options, tuned, device)
            print(f"compiled in all: {len(engine.compiled)} of {backend.environment.soc}'s family {FAMILY}")
    except (InputError, WorkerSetupError, ValueError) as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    print(
        f"outputs against dense attention: at most {error:.1%} of a head off; rounding to E4M3 allows {TOLERANCE:.1%}"
    )
    print("Cycles are of PyPTO's cost model, not time. Nothing here ran on hardware.")
    return 0 if error < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
