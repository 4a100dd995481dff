"""``pfatune serve``: the HTTP service, with a worker beside it."""

from __future__ import annotations

import ipaddress
import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ...kernel.soc import soc
from ..errors import InputError
from . import options
from .stop import stop

if TYPE_CHECKING:
    from ...db.store import Store
    from ..settings import Settings

EXAMPLES = """
[bold]Examples[/]

  pfatune serve
    the service and one worker on this machine, at http://127.0.0.1:8000

  pfatune serve --db tuned.db --port 9000 --no-worker
    the service alone; `pfatune worker --db tuned.db` tunes beside it

  pfatune token create ops && pfatune serve --host 0.0.0.0
    for other machines: refused without a token. Put TLS in front of it

  curl 'http://127.0.0.1:8000/config?b=16&s2=8192'
  curl http://127.0.0.1:8000/tune --json '{"b": 16, "s2": 8192}'

[bold]Exit codes[/]

  0 stopped by Ctrl-C, SIGTERM or SIGHUP: running trials ended and are stored
  1 could not be done
  2 bad input
"""

GRACE_SECONDS = 5  # for requests that run when the service is stopped
_BACKLOG = 2048
SERVICE_PANEL = "Service"

Host = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen at. Default: PFATUNE_HOST, else 127.0.0.1.",
        rich_help_panel=SERVICE_PANEL,
        show_default=False,
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        parser=options.whole("--port", 0, 65535),
        metavar="N",
        help="Port to listen at; 0 takes a free one. Default: PFATUNE_PORT, else 8000.",
        rich_help_panel=SERVICE_PANEL,
        show_default=False,
    ),
]
WithWorker = Annotated[
    bool,
    typer.Option("--worker/--no-worker", help="Whether to run a worker too.", rich_help_panel=SERVICE_PANEL),
]


def serve(
    host: Host = None,
    port: Port = None,
    with_worker: WithWorker = True,
    db: options.Db = None,
    soc_name: options.SocName = None,
    verbose: options.Verbose = False,
) -> int:
    """Serve tuned configurations over HTTP, and take requests to tune.

    A worker runs beside the service and does what is asked for; it is started
    again should it die. The pages for people are at the service's root. Costs
    are cycles of PyPTO's cost model: nothing runs on hardware.
    """
    from ...db.store import Store
    from ..settings import load_settings
    from .beside import WorkerBeside

    settings = load_settings(db=db, soc_name=soc_name)
    soc(settings.soc)
    where, number = settings.host if host is None else host, settings.port if port is None else port
    with Store.open(settings.db) as store:
        _require_token(store, where)
        with _listen(where, number) as listening:
            bound = listening.getsockname()[1]
            beside = None
            try:
                print(f"pfatune serves {store.database.name} at {_url(where, bound)}", flush=True)
                if with_worker:
                    beside = WorkerBeside(settings.db, settings.soc, verbose=verbose)
                _run(store, settings, listening, where, verbose)
            except KeyboardInterrupt:  # while it started, or raised again by uvicorn once that has ended in order
                stop.signal = None
            finally:
                if beside is not None:
                    beside.close()
    return 0


def _run(store: Store, settings: Settings, listening: socket.socket, host: str, verbose: bool) -> None:
    import uvicorn

    from ..http.app import create_app

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.pfatune.stopping.set()
            # At a second SIGINT uvicorn would leave the app half ended; the grace is short enough.
            super().handle_exit(signal.SIGTERM, frame)

    app = create_app(
        store,
        soc=settings.soc,
        backend=settings.backend,
        max_jobs=settings.max_jobs,
        max_body=settings.max_body_kib << 10,
        hosts=_hosts(settings, host),
        # The last one may be revoked while the service runs.
        needs_token=not _is_loopback(host),
    )
    config = uvicorn.Config(
        app,
        log_level="info" if verbose else "warning",
        access_log=verbose,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        # A client's word on who it is would be believed otherwise.
        proxy_headers=False,
    )
    server = Server(config)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # a terminal that closes; uvicorn does not look at it
        signal.signal(signal.SIGHUP, lambda number, frame: server.handle_exit(signal.SIGTERM, frame))
    server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        InputError: it cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
            made.listen(_BACKLOG)  # from here on a connection waits instead of being refused
        except OSError:
            made.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen at {host!r} port {port} ({reason}): give another --host or --port") from None
    return made


def _is_loopback(host: str) -> bool:
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def _require_token(store: Store, host: str) -> None:
    """Refuse to be reachable from other machines while everyone may write.

    Raises:
        InputError: it would be.
    """
    if not _is_loopback(host) and not store.tokens.any():
        raise InputError(
            f"--host {host!r} can be reached from other machines, and no token exists: "
            f"create one with `pfatune token create NAME --db {store.database.name}`, or listen at 127.0.0.1"
        )


def _hosts(settings: Settings, host: str) -> tuple[str, ...]:
    """Names that the service may be called by; on other machines' networks any, unless some are set."""
    from ..http.guard import LOOPBACK_HOSTS

    named = tuple(name.strip() for name in settings.allowed_hosts.split(",") if name.strip())
    return (*LOOPBACK_HOSTS, host, *named) if named or _is_loopback(host) else ()


def _url(host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"
