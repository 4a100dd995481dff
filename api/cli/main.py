"""The command ``pfatune``: its subcommands, and how every end of it is told.

Exit codes: 0 done, 1 could not be done, 2 bad input, 128 + n stopped by signal n.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import __version__
from ...kernel.config import ConfigError
from ...kernel.shapes import ShapeError
from ...kernel.soc import UnknownSocError
from ..errors import InputError, one_line
from . import config, doctor, explain, history, portfolio, replay, serve, shapes, token, trace, tune, verify, work
from .stop import stop

_EXAMPLES = """
[bold]Examples[/]

  pfatune doctor                               what works on this machine
  pfatune tune --b 16 --s2 8192                find and store the fastest
  pfatune shapes --trace requests.csv          what a trace of requests asks
  pfatune portfolio --nq 12 --nkv 1            few configurations for a whole family
  pfatune replay landscape.json.gz             how fast a search finds the best
  pfatune config --b 16 --s2 8192              what is served for the shape
  pfatune history --b 16 --s2 8192             everything that was measured
  pfatune trace --b 16 --s2 8192 --out lanes   default and tuned as a picture
  pfatune serve                                the HTTP service and a worker
  pfatune worker                               one more worker of its queue

[bold]Variables[/], which options win over

  PFATUNE_DB         database, a path or URL (pfatune.db)
  PFATUNE_CACHE      folder of what outlives a run (~/.cache/pfatune)
  PFATUNE_SOC        chip (950PR)
  PFATUNE_PARALLEL   trials at once (the cores less one)
  PFATUNE_TRIAL_TIMEOUT, PFATUNE_TRIAL_MEMORY_GIB   of one trial (300, 8)
  PFATUNE_HOST, PFATUNE_PORT     of the service (127.0.0.1, 8000)
  PFATUNE_ALLOWED_HOSTS          names it may be called by, beside localhost
  PFATUNE_MAX_JOBS, PFATUNE_MAX_BODY_KIB   its limits (1000, 1024)
  PFATUNE_LEASE_SECONDS          how long a job is a worker's (30)
  PFATUNE_BACKEND                what measures (sim)
"""

app = typer.Typer(
    name="pfatune",
    epilog=_EXAMPLES,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        print(f"pfatune {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Tune the tiles of PyPTO's FP8 paged flash attention kernel for Ascend 950.

    Configurations are compiled by PyPTO's own compiler, checked on its
    interpreter and ranked by its cost model, on any Linux machine. Nothing
    runs on hardware.
    """


for _command, _examples in (
    (tune.tune, tune.EXAMPLES),
    (shapes.shapes, shapes.EXAMPLES),
    (portfolio.portfolio, portfolio.EXAMPLES),
    (replay.replay, replay.EXAMPLES),
    (config.config, config.EXAMPLES),
    (history.history, history.EXAMPLES),
    (verify.verify, verify.EXAMPLES),
    (explain.explain, explain.EXAMPLES),
    (trace.trace, trace.EXAMPLES),
    (doctor.doctor, doctor.EXAMPLES),
    (serve.serve, serve.EXAMPLES),
    (work.worker, work.EXAMPLES),
):
    app.command(epilog=_examples)(_command)
app.add_typer(token.app, name="token")


def run(arguments: Sequence[str]) -> int:
    """Run the command line; every error becomes one line on stderr and an exit code."""
    try:
        command: Any = typer.main.get_command(app)
        with command.make_context("pfatune", list(arguments) or ["--help"]) as context:
            code = command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except KeyboardInterrupt:
        _say("stopped")
        return stop.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _fail(error)
    return code if isinstance(code, int) else 0


def _fail(error: Exception) -> int:
    from ...autotune.errors import DefaultFailedError, WorkerSetupError

    if isinstance(error, InputError | ShapeError | ConfigError | UnknownSocError):
        return _say(f"error: {error}", 2)
    format_message = getattr(error, "format_message", None)  # typer's own
    if format_message is not None:
        path = getattr(getattr(error, "ctx", None), "command_path", "pfatune")
        message = format_message().strip()
        return _say(f"error: {message if message.endswith(('.', '?')) else f'{message}.'} See `{path} --help`.", 2)
    if isinstance(error, WorkerSetupError | DefaultFailedError):
        return _say(f"error: {error}", 1)

    from ...db.errors import StoreError, UnsupportedTargetError

    if isinstance(error, StoreError):
        return _say(f"error: {error}", 2 if isinstance(error, UnsupportedTargetError) else 1)
    return _say(f"error: unexpected {type(error).__name__}: {error}; details are in {_keep_traceback(error)}", 1)


def _say(text: str, code: int = 1) -> int:
    print(f"pfatune: {one_line(text)}", file=sys.stderr)
    return code


def _keep_traceback(error: Exception) -> str:
    """Write the traceback to a file under the cache, or in a temporary folder; returns where it is."""
    from ..settings import load_settings

    text = "".join(traceback.format_exception(error))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    with suppress(OSError, InputError):
        folder = load_settings().cache_folder / "errors"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return str(folder / name)
    with suppress(OSError):
        path = Path(tempfile.mkdtemp(prefix="pfatune-")) / name
        path.write_text(text, encoding="utf-8")
        return str(path)
    return "no file, since none could be written"


def main() -> None:
    """Entry point of the console script."""
    stop.install()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed from the start: nobody reads it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  # for as long as the process lives
        getattr(sys, name).reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))
