"""Kernels that compute with the golden on the CPU, and say how often they were made and launched."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace

from torch import Tensor

from pfatune.kernel.attention import Launch
from pfatune.kernel.config import KernelConfig
from pfatune.kernel.golden import flash_attention
from pfatune.kernel.inputs import PfaInputs
from pfatune.kernel.shapes import PfaFamily, PfaShape, Workload


def compute(config: KernelConfig, family: PfaFamily, scale: float, tensors: list[Tensor]) -> None:
    """What the kernel does, on the CPU; the softmax scale is folded into that of Q."""
    inputs = PfaInputs(*tensors)
    b, columns = inputs.block_table.shape
    shape = PfaShape(b, columns * family.block_size, **family.to_json())
    scaled = replace(inputs, q_scale=inputs.q_scale * (scale * family.qd**0.5))
    inputs.atten_out.copy_(flash_attention(scaled, Workload(shape), s2_tile=config.tile.s2_tile))


class GoldenBuild:
    """A ``Build`` that computes, counts, and fails for configurations whose digests are in ``broken``."""

    def __init__(self, *broken: str, when: str = "build", seconds: float = 0.0) -> None:
        self.broken = set(broken)
        self.when = when
        self.seconds = seconds
        self.made: Counter[tuple[str, PfaFamily, float]] = Counter()
        self.launches: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, config: KernelConfig, family: PfaFamily, scale: float) -> Launch:
        digest = config.digest
        with self._lock:
            self.made[digest, family, scale] += 1
        time.sleep(self.seconds)
        if self.when == "build":
            self._fail(digest)

        def launch(tensors: list[Tensor]) -> None:
            if self.when == "launch":
                self._fail(digest)
            with self._lock:
                self.launches.append(digest)
            compute(config, family, scale, tensors)

        return launch

    def _fail(self, digest: str) -> None:
        if digest in self.broken:
            raise OverflowError("UB is full")
