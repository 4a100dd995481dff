"""A small library that is preloaded into trials and takes the place of functions of PyPTO 0.2.0.

PyPTO spends seconds of every trial on writing files that nothing here reads, tens of MB each, and
on simulating pipes that have nothing to do. The cycles stay exactly what they are, which a test
checks and ``benchmarks/trial_overhead.py`` for every configuration it measures. These are names of
PyPTO's compiled libraries; another release runs without them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import tempfile
from pathlib import Path

#: The release whose functions the shortcuts replace; any other runs without them.
_SHORTCUTS_FOR = "0.2.0"
#: The preloaded library. The first functions only write or gather what is in files that nobody
#: reads. An idle pipe is one whose queues were empty when they last stepped; stepping it again
#: changes nothing until a task is submitted to it, and most pipes are idle most of the time.
_SHORTCUTS = r"""// Shortcuts through PyPTO 0.2.0's compiler and cost model: the cycles stay what they are.
#include <dlfcn.h>
#include <stdint.h>

#define NOTHING(name) void name() {}

namespace {
constexpr unsigned BITS = 13;
void *idle[1U << BITS];

inline void **slot(void *pipe)
{
    return &idle[(reinterpret_cast<uintptr_t>(pipe) >> 4) * 0x9E3779B97F4A7C15U >> (64 - BITS)];
}

template <typename Function> Function *original(Function *, const char *name)
{
    void *library = dlopen("libtile_fwk_simulation.so", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Function *>(dlsym(library, name));
}

inline void wake(void *pipe)
{
    if (*slot(pipe) == pipe) {
        *slot(pipe) = nullptr;
    }
}
}

#define ORIGINAL(name) (reinterpret_cast<decltype(&name)>(original(&name, #name)))

extern "C" {
NOTHING(_ZN3npu8tile_fwk7Program12DumpJsonFileERKSsPNS0_8FunctionE)  // program.json
NOTHING(_ZN9CostModel6SimSys11OutputTraceESs)  // smartperf.trace
NOTHING(_ZN9CostModel6SimSys19OutputPerfettoTraceESs)  // pefetto.trace.json
NOTHING(_ZN9CostModel11TraceLogger15AddCounterEventEmmNS_11CounterTypeE)  // counters in the traces
NOTHING(_ZN9CostModel11TraceLogger11LogCoreInfoERNS_8DurationE)  // pipe.swim.json
NOTHING(_ZN9CostModel7Machine18LoggerRecordTileOpESsmmm)  // tile operations in the traces
NOTHING(_ZN9CostModel11CoreMachine22PrintRelativeCycleInfoESt10shared_ptrINS_8FunctionEES1_INS_4TaskEE)  // the same

bool _ZN9CostModel11PipeMachine11IsTerminateEv(void *pipe);

void _ZN9CostModel11PipeMachine5BuildEv(void *pipe)
{
    static auto *const build = ORIGINAL(_ZN9CostModel11PipeMachine5BuildEv);
    wake(pipe);
    build(pipe);
}

void _ZN9CostModel7Machine10SubmitTaskENS_8TaskPackEm(void *machine, void *task, unsigned long delay)
{
    static auto *const submit = ORIGINAL(_ZN9CostModel7Machine10SubmitTaskENS_8TaskPackEm);
    wake(machine);
    submit(machine, task, delay);
}

void _ZN9CostModel11PipeMachine4XferEv(void *pipe)
{
    static auto *const xfer = ORIGINAL(_ZN9CostModel11PipeMachine4XferEv);
    static auto *const isTerminate = ORIGINAL(_ZN9CostModel11PipeMachine11IsTerminateEv);
    if (*slot(pipe) == pipe) {
        return;
    }
    xfer(pipe);
    if (isTerminate(pipe)) {
        *slot(pipe) = pipe;
    }
}
}
"""


def shortcuts_library(cache: Path, compiler: str) -> Path | None:
    """The library to preload, built if it is not there; none for another PyPTO, or where it cannot be built."""
    try:
        if importlib.metadata.version("pypto") != _SHORTCUTS_FOR:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    library = cache / "lib" / f"shortcuts-{hashlib.sha256(_SHORTCUTS.encode()).hexdigest()[:16]}.so"
    if any(character in " :" for character in str(library)):  # they separate the names in LD_PRELOAD
        return None
    if not library.is_file():
        command = [compiler, "-shared", "-fPIC", "-O2", "-fno-exceptions", "-fno-threadsafe-statics", "-nostdlib"]
        try:
            with tempfile.TemporaryDirectory() as folder:
                built = Path(folder, library.name)
                command += ["-x", "c++", "-", "-o", str(built)]
                subprocess.run(command, input=_SHORTCUTS, text=True, capture_output=True, timeout=60, check=True)
                data = built.read_bytes()
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=library.parent, prefix=".new-", delete=False) as file:
                file.write(data)
            Path(file.name).chmod(0o644)
            Path(file.name).replace(library)
        except (OSError, subprocess.SubprocessError):
            return None
    return library
