"""The compiler launcher, before the real g++ and ccache and before programs that tell what they got; missing tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pfatune.autotune.errors import WorkerSetupError
from pfatune.autotune.toolchain import compiler_environ, elf_cmake, require_tools, tools

needs_ccache = pytest.mark.skipif(
    not (shutil.which("ccache") and shutil.which("g++")), reason="ccache and g++ are not installed"
)
SOURCE = "int answer() { return 42; }\n"
TELLTALE = """#!/bin/sh
pwd
printf '<%s>\\n' "$@"
exit ${CODE:-0}
"""


def base() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C"}


def program(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o755)
    return path


@pytest.fixture
def telltale(tmp_path: Path) -> dict[str, str]:
    """An environ whose g++ prints its folder and arguments, and whose ccache only calls it; both with a space."""
    tools = tmp_path / "my tools"
    program(tools / "g++", TELLTALE)
    program(tools / "ccache", '#!/bin/sh\nexec "$@"\n')
    return compiler_environ({"PATH": f"{tools}:/usr/bin:/bin"}, tmp_path / "the cache")


def call(env: dict[str, str], *arguments: str, cwd: Path, code: int = 0) -> list[str]:
    """What the compiler saw: its folder, then its arguments."""
    done = subprocess.run(
        ["g++", *arguments], env={**env, "CODE": str(code)}, cwd=cwd, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout.splitlines()


def hits(env: dict[str, str]) -> int:
    stats = subprocess.run(["ccache", "--print-stats"], env=env, capture_output=True, text=True, check=True).stdout
    counts = dict(line.split() for line in stats.splitlines())
    return int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])


def compile_in(folder: Path, env: dict[str, str], text: str = SOURCE) -> bytes:
    """Compile as PyPTO does, with absolute names, from elsewhere; the object file."""
    source = folder / "kernel_aicpu" / "control flow.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(text)
    target = source.with_suffix(".o")
    subprocess.run(["g++", "-O2", f"-I{folder}", "-c", str(source), "-o", str(target)], env=env, check=True)
    return target.read_bytes()


@needs_ccache
def test_an_unchanged_file_in_another_folder_is_not_compiled_again(tmp_path: Path) -> None:
    env = compiler_environ(base(), tmp_path / "cache")
    first = compile_in(tmp_path / "out 1", env)
    assert hits(env) == 0
    assert compile_in(tmp_path / "out 2", {**env, "HOME": str(tmp_path / "home")}) == first
    assert hits(env) == 1
    assert compile_in(tmp_path / "out 3", env, SOURCE.replace("42", "43")) != first
    assert hits(env) == 1


@needs_ccache
def test_a_cache_that_was_emptied_fills_again(tmp_path: Path) -> None:
    compiler_environ(base(), tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache" / "ccache")
    env = compiler_environ(base(), tmp_path / "cache")
    first = compile_in(tmp_path / "1", env)
    assert compile_in(tmp_path / "2", env) == first
    assert hits(env) == 1


@needs_ccache
def test_a_compilers_complaint_and_code_come_through(tmp_path: Path) -> None:
    env = compiler_environ(base(), tmp_path / "cache")
    source = tmp_path / "out" / "kernel_aicpu" / "bad.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int answer( {")
    done = subprocess.run(["g++", "-c", str(source)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error" in done.stderr
    linked = subprocess.run(["g++", str(tmp_path / "none.o")], env=env, capture_output=True, text=True, check=False)
    assert linked.returncode == 1
    assert "none.o" in linked.stderr


@needs_ccache
def test_a_program_is_compiled_and_linked_elsewhere(tmp_path: Path) -> None:
    env = compiler_environ(base(), tmp_path / "cache")
    (tmp_path / "main file.cpp").write_text("int main() { return 42; }\n")
    subprocess.run(["g++", "main file.cpp", "-o", "a program"], env=env, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "a program"], check=False).returncode == 42


def test_generated_files_are_named_relative_to_their_folder(telltale: dict[str, str], tmp_path: Path) -> None:
    for folder in (tmp_path / "o 1" / "kernel_aicpu", tmp_path / "[o]*" / "kernel_aicpu" / "deep"):
        folder.mkdir(parents=True)
        source, other = folder / "control flow.cpp", folder.parent / "include"
        seen = call(telltale, f"-I{other}", "-c", str(source), "-o", f"{folder}/control.o", "-DX=a b", "", cwd=tmp_path)
        assert seen == [
            str(folder),
            f"<-I{other}>",
            "<-c>",
            "<control flow.cpp>",
            "<-o>",
            "<control.o>",
            "<-DX=a b>",
            "<>",
        ]
        assert call(telltale, "-c", f"{folder}/x.s", cwd=tmp_path) == [str(folder), "<-c>", "<x.s>"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["a file.cpp", "-o", "out put", "-DX='a  b'", "*", "$HOME", "", "-n", "\\t"],
        ["/elsewhere/a.cpp", "-I/x/kernel_aicpu/y.cpp"],
        ["kernel_aicpu/a.cpp"],
        ["/x/kernel_aicpu/a.o", "-shared"],
    ],
)
def test_any_other_call_passes_unchanged(telltale: dict[str, str], tmp_path: Path, arguments: list[str]) -> None:
    assert call(telltale, *arguments, cwd=tmp_path) == [str(tmp_path), *(f"<{argument}>" for argument in arguments)]


@pytest.mark.parametrize("code", [1, 4, 127])
def test_exit_codes_pass(telltale: dict[str, str], tmp_path: Path, code: int) -> None:
    (tmp_path / "kernel_aicpu").mkdir()
    call(telltale, "x", cwd=tmp_path, code=code)
    call(telltale, f"{tmp_path}/kernel_aicpu/a.cpp", cwd=tmp_path, code=code)


def test_a_folder_that_is_gone_fails_the_call(telltale: dict[str, str], tmp_path: Path) -> None:
    missing = f"{tmp_path}/kernel_aicpu/a.cpp"
    done = subprocess.run(["g++", missing], env=telltale, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "kernel_aicpu" in done.stderr


def test_an_environ_of_an_environ_is_the_same(telltale: dict[str, str], tmp_path: Path) -> None:
    assert compiler_environ(telltale, tmp_path / "the cache") == telltale
    assert call(telltale, "x", cwd=tmp_path) == [str(tmp_path), "<x>"]


def test_a_launcher_of_old_is_replaced(telltale: dict[str, str], tmp_path: Path) -> None:
    launcher = tmp_path / "the cache" / "bin" / "g++"
    text = launcher.read_text()
    launcher.write_text("#!/bin/sh\nexit 9\n")
    compiler_environ(telltale, tmp_path / "the cache")
    assert launcher.read_text() == text
    assert [path.name for path in launcher.parent.iterdir()] == ["g++"]


def test_a_relative_cache_works_from_anywhere(
    telltale: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert compiler_environ(telltale, Path("the cache")) == telltale


def test_without_ccache_nothing_changes(tmp_path: Path) -> None:
    program(tmp_path / "tools" / "g++", TELLTALE)
    env = {"PATH": str(tmp_path / "tools")}
    assert compiler_environ(env, tmp_path / "cache") == env
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_named_in_one_line(telltale: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkerSetupError, match="PFATUNE_CACHE") as caught:
        compiler_environ(telltale, tmp_path / "file" / "cache")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["empty", ""])
def test_missing_tools_are_reported_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "empty").mkdir()
    path = path and str(tmp_path / path)
    assert [tool.path for tool in tools(path)] == [None] * len(tools(path))
    with pytest.raises(WorkerSetupError) as caught:
        require_tools(path)
    required = [tool for tool in tools(path) if tool.required]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(required) == 5
    for line, tool in zip(lines, required, strict=True):
        assert line == f"{tool.name} is missing, needed for {tool.needed_for}: {tool.remedy}"
    monkeypatch.setenv("PATH", path)
    with pytest.raises(WorkerSetupError):
        require_tools()


def test_tools_that_are_there_are_found_and_ccache_is_not_needed(tmp_path: Path) -> None:
    for name in ("g++", "ld", "objcopy", "make"):
        program(tmp_path / name, TELLTALE)
    shutil.copy(sys.executable, tmp_path / "cmake")
    require_tools(str(tmp_path))
    (tmp_path / "ld").chmod(0o644)
    with pytest.raises(WorkerSetupError, match=r"^ld is missing") as caught:
        require_tools(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_cmake_that_is_a_script_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "pip" / "cmake", "#!/usr/bin/env python3\n")
    program(tmp_path / "empty" / "cmake", "")
    real = program(tmp_path / "real" / "cmake", b"\x7fELF and so on")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "cmake").symlink_to(real)
    path = f"{tmp_path}/pip::{tmp_path}/none:{tmp_path}/empty"
    assert elf_cmake(path) is None
    assert elf_cmake(f"{path}:{tmp_path}/real:{tmp_path}/linked") == str(real)
    assert elf_cmake(f"{path}:{tmp_path}/linked") == str(tmp_path / "linked" / "cmake")
