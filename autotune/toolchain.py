"""The tools that PyPTO's compiler calls, and how they are put on a child's PATH.

PyPTO compiles some twenty small generated files of control flow for every kernel, and their
headers cost more than their code. With ccache in front of g++ an unchanged file costs nothing.
ccache only hits if the compiler sees relative names, because PyPTO's output folder is new each
time; a launcher in front of it changes into the folder and strips it from the arguments.

PyPTO also spends seconds of every trial on files that nothing here reads, and on simulating
pipes that have nothing to do. A small preloaded library takes the place of those functions.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import WorkerSetupError

#: The launcher. Its sources include PyPTO's header of expressions: some MB of macros, each time in
#: another order, none of which they use as a rule. A source that names none is compiled in a folder
#: of its own with a copy of the header that lacks them, so that ccache finds it without running the
#: preprocessor. Should that fail, it is compiled as it was asked for.
_LAUNCHER = r"""#!/bin/sh
# g++ for PyPTO's generated control flow: relative names and steady headers, so that ccache hits.
folder= source=
for argument do
    case $argument in
        /*/kernel_aicpu/*.cpp) folder=${argument%/*} source=${argument##*/}; break ;;
        /*/kernel_aicpu/*.s) folder=${argument%/*}; break ;;
    esac
done
if [ -z "$folder" ]; then
    exec {ccache} {compiler} "$@"
fi
output= previous=
for argument do
    shift
    argument=${argument#"$folder"/}
    if [ "$previous" = -o ]; then output=$argument; fi
    previous=$argument
    set -- "$@" "$argument"
done
cd "$folder" || exit
lean=
if [ -f "$source" ]; then
    case $output in
        ''|*/*) ;;
        *) for header in expression_*.h; do if [ -f "$header" ]; then lean=$source.lean; fi; done ;;
    esac
fi
if [ -n "$lean" ] && ! grep -q EXPR_ "$source" && mkdir "$lean" 2>/dev/null; then
    cp "$source" "$lean"
    for header in *.h; do
        case $header in
            expression_*.h)
                LC_ALL=C grep -Ev '^#(define|if|else|endif)([ /].*)?EXPR_|^/\*.*\*/$|^$' "$header" >"$lean/$header" ;;
            *) cp "$header" "$lean" ;;
        esac
    done
    if (cd "$lean" && exec {ccache} {compiler} "$@") 2>/dev/null && mv "$lean/$output" .; then
        exit 0
    fi
fi
exec {ccache} {compiler} "$@"
"""

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


@dataclass(frozen=True, slots=True)
class Tool:
    """A program PyPTO or pfatune calls: where it is, or how to get it."""

    name: str
    path: str | None
    needed_for: str
    remedy: str
    required: bool = True


def tools(path: str | None = None) -> list[Tool]:
    """Every tool the embedded worker uses, found on ``path`` or the process's PATH."""
    return [
        Tool("g++", shutil.which("g++", path=path), "compiling the kernel's control flow", "apt-get install g++"),
        Tool("ld", shutil.which("ld", path=path), "linking the kernel's control flow", "apt-get install binutils"),
        Tool("objcopy", shutil.which("objcopy", path=path), "packing the control flow", "apt-get install binutils"),
        Tool("cmake", elf_cmake(path), "building the interpreter that checks numbers", "apt-get install cmake"),
        Tool(
            "make",
            shutil.which("make", path=path),
            "building the interpreter that checks numbers",
            "apt-get install make",
        ),
        Tool(
            "ccache",
            shutil.which("ccache", path=path),
            "faster trials: unchanged control flow is not compiled again",
            "apt-get install ccache",
            required=False,
        ),
    ]


def elf_cmake(path: str | None = None) -> str | None:
    """The first cmake on the path that is a program and not pip's script, which PyPTO passes over."""
    for folder in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        found = shutil.which("cmake", path=folder) if folder else None
        if found:
            with Path(found).resolve().open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    return found
    return None


def require_tools(path: str | None = None) -> None:
    """Check that every required tool is there.

    Raises:
        WorkerSetupError: some are missing; a line for each says what for and how to install it.
    """
    missing = [tool for tool in tools(path) if tool.required and tool.path is None]
    if missing:
        raise WorkerSetupError(
            "\n".join(f"{tool.name} is missing, needed for {tool.needed_for}: {tool.remedy}" for tool in missing)
        )


def compiler_environ(base: Mapping[str, str], cache: Path) -> dict[str, str]:
    """``base`` with the shortcuts preloaded, and with the launcher and ccache's settings if ccache is installed."""
    env = dict(base)
    cache = cache.absolute()  # trials run elsewhere
    folders = base.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != str(cache / "bin"))
    ccache = shutil.which("ccache", path=path)
    compiler = shutil.which("g++", path=path)
    if compiler and (shortcuts := _shortcuts(cache, compiler)):
        others = [name for name in env.get("LD_PRELOAD", "").split() if name != str(shortcuts)]
        env["LD_PRELOAD"] = " ".join([str(shortcuts), *others])
    if ccache is None or compiler is None:
        return env
    folder = _launcher_folder(cache, ccache, compiler)
    env["PATH"] = f"{folder}{os.pathsep}{path}"
    env["CCACHE_DIR"] = str(cache / "ccache")
    env["CCACHE_NOHASHDIR"] = "1"
    env["CCACHE_COMPILERCHECK"] = "mtime"
    env["CCACHE_SLOPPINESS"] = "include_file_mtime,include_file_ctime,time_macros"
    env["CCACHE_MAXSIZE"] = "2G"
    env["CCACHE_TEMPDIR"] = str(cache / "ccache" / "tmp")
    return env


def _launcher_folder(cache: Path, ccache: str, compiler: str) -> Path:
    folder = cache / "bin"
    launcher = folder / "g++"
    script = _LAUNCHER.replace("{ccache}", shlex.quote(ccache)).replace("{compiler}", shlex.quote(compiler))
    try:
        if launcher.is_file() and launcher.read_text() == script:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        (cache / "ccache" / "tmp").mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".new-", delete=False) as file:
            file.write(script)
        fresh = Path(file.name)
        fresh.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        fresh.replace(launcher)
    except OSError as error:
        raise WorkerSetupError(
            f"cannot write the compiler launcher in {cache}: {error.strerror}; set PFATUNE_CACHE to a writable folder"
        ) from None
    return folder


def _shortcuts(cache: Path, compiler: str) -> Path | None:
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
