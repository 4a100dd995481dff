"""A g++ of ours in front of the real one, so that ccache finds PyPTO's generated control flow again.

PyPTO compiles some twenty small generated files of control flow for every kernel, and their
headers cost more than their code. With ccache in front of g++ an unchanged file costs nothing.
ccache only hits if the compiler sees relative names, because PyPTO's output folder is new each
time; the launcher changes into the folder and strips it from the arguments.
"""

from __future__ import annotations

import shlex
import stat
import tempfile
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


def launcher_folder(cache: Path, ccache: str, compiler: str) -> Path:
    """The folder to put first on PATH; the launcher in it is written if it is not there.

    Raises:
        WorkerSetupError: ``cache`` cannot be written.
    """
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
