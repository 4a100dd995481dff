"""Every name of PyPTO that is not public, in one place. Written against 0.2.0.

Three things have no public call: timing one compiled kernel on further shapes, handing the
interpreter FP8 data that lies on the CPU, and loading a copy of the interpreter that is kept.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pypto
import torch
from pypto import pypto_impl
from pypto._utils import BuildOnlineManager
from pypto.frontend.parser import entry
from pypto.runtime import _pto_verify_datas


def compile_and_run(kernel: Any, tensors: list[torch.Tensor]) -> tuple[float, float]:
    """Compile a kernel and simulate it on its first shape: seconds of each."""
    spent = [0.0]
    run_with_cpu = kernel._run_with_cpu

    def timed(inputs: list[Any], outputs: list[Any]) -> None:
        start = time.perf_counter()
        run_with_cpu(inputs, outputs)
        spent[0] = time.perf_counter() - start

    kernel._run_with_cpu = timed
    start = time.perf_counter()
    try:
        kernel(*tensors)
    finally:
        del kernel._run_with_cpu
    return time.perf_counter() - start - spent[0], spent[0]


def run_again(kernel: Any, tensors: list[torch.Tensor]) -> float:
    """Simulate a compiled kernel on a further shape of its family: seconds.

    Calling the kernel would compile it again. Without the reset of the stored inputs the first
    shape's would be used, and without a new output folder the topology would be appended.
    """
    start = time.perf_counter()
    inputs = kernel._convert_tensors_with_metadata(tensors, kernel._cached_signature[0])
    with pypto.options("jit_scope"):
        kernel._set_config_option()
        pypto_impl.SetVerifyData([], [], [])
        pypto_impl.ResetLog("")
        kernel._run_with_cpu(inputs, [])
    return time.perf_counter() - start


def verify_on_cpu() -> None:
    """Hand the interpreter the tensors where they lie.

    PyPTO copies them from a device first, which does nothing without one, and knows no FP8 there.
    """

    def set_verify_data(pto_tensors: list[Any]) -> None:
        if pypto.get_verify_options().get("enable_pass_verify"):
            pypto_impl.SetVerifyData(entry._pto_to_tensor_data(pto_tensors), [], _pto_verify_datas.get_data())

    entry.JitCallableWrapper._setup_verify_data = staticmethod(set_verify_data)


def load_interpreter(library: Path) -> None:
    """Load a kept copy of the interpreter instead of building it."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    BuildOnlineManager().calculator_loaded = True


def build_interpreter(keep: Callable[[Path], None]) -> None:
    """Build the interpreter with PyPTO's own recipe; ``keep`` is shown the library before it is deleted."""
    load = ctypes.CDLL

    def kept(name: str, *args: Any, **options: Any) -> Any:
        keep(Path(name))
        return load(name, *args, **options)

    ctypes.CDLL = kept  # type: ignore[assignment, misc]  # the only place where the file is seen
    try:
        BuildOnlineManager().build_and_load_calculator()
    finally:
        ctypes.CDLL = load  # type: ignore[misc]  # as it was


def exit_flushing(code: int) -> None:
    """End this process so that PyPTO's libraries close their files, without Python's own finalisers."""
    ctypes.CDLL(None).exit(code)
