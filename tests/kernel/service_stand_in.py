"""A service on loopback that behaves well, or badly in every way that a network knows."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from ladder_tools import small_ladder
from served_files import snapshot_of

from pfatune.kernel.snapshot import load

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        stand_in = self.server.stand_in
        stand_in.asked.append(self.path)
        self.over = stand_in.over
        stand_in.behave(self)

    def answer(self, status: int, body: bytes = b"", length: int | None = None, **headers: str) -> None:
        stand_in = self.server.stand_in
        stand_in.answered.append(status)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def send(self, data: bytes) -> bool:
        """Raw bytes; whether anyone still listens."""
        try:
            self.wfile.write(data)
        except OSError:
            return False
        return True

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    stand_in: StandIn

    def handle_error(self, *args: Any) -> None:
        """Clients that hang up are what is tested."""


class StandIn:
    """A server in threads; ``behave`` may be changed at any time."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave
        self.asked: list[str] = []
        self.answered: list[int] = []
        self.over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.stand_in = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def serve(data: bytes) -> Behaviour:
    """As the real service does."""
    tag = f'"{load(data).checksum}"'

    def behave(handler: Handler) -> None:
        if handler.headers["If-None-Match"] == tag:
            handler.answer(304, ETag=tag)
        else:
            handler.answer(200, data, ETag=tag)

    return behave


def send(body: bytes, status: int = 200, **headers: str) -> Behaviour:
    return lambda handler: handler.answer(status, body, **headers)


def redirect(location: str) -> Behaviour:
    return send(b"", 302, Location=location)


def hang(handler: Handler) -> None:
    handler.over.wait()


def hang_within_the_body(handler: Handler) -> None:
    handler.answer(200, b'{"format"', length=1000)
    handler.over.wait()


def hang_within_the_headers(handler: Handler) -> None:
    handler.send(b"HTTP/1.1 200 OK\r\nContent-")
    handler.over.wait()


def drip_headers(handler: Handler) -> None:
    handler.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while handler.send(b"x") and not handler.over.wait(0.02):
        pass


def drip_the_body(handler: Handler) -> None:
    handler.answer(200, length=1 << 20)
    while handler.send(b" ") and not handler.over.wait(0.02):
        pass


def go_on_for_ever(handler: Handler) -> None:
    handler.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while handler.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n") and not handler.over.is_set():
        pass


def ask_to_continue_for_ever(handler: Handler) -> None:
    while handler.send(b"HTTP/1.1 100 Continue\r\n\r\n") and not handler.over.is_set():
        pass


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def reset_within_the_body(handler: Handler) -> None:
    handler.answer(200, b'{"format"', length=1000)
    reset(handler)


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def speak_something_else(handler: Handler) -> None:
    handler.send(b"\x00\xff SSH-2.0\r\n\r\n" * 100)


GOOD = snapshot_of(small_ladder(100))
BETTER = snapshot_of(small_ladder(101))
#: Whatever makes a download fail, by name.
MISBEHAVIOUR: dict[str, Behaviour] = {
    "hangs": hang,
    "hangs within the headers": hang_within_the_headers,
    "hangs within the body": hang_within_the_body,
    "drips headers": drip_headers,
    "drips the body": drip_the_body,
    "goes on for ever": go_on_for_ever,
    "asks to continue for ever": ask_to_continue_for_ever,
    "resets": reset,
    "resets within the body": reset_within_the_body,
    "hangs up": hang_up,
    "speaks something else": speak_something_else,
    "sends garbage": send(b"\x00\xff" * 1000),
    "sends a page": send(b"<html>log in</html>"),
    "sends nothing": send(b""),
    "sends no content": send(b"", 204),
    "sends half": send(GOOD[: len(GOOD) // 2]),
    "sends an altered byte": send(GOOD.replace(b"2000.0", b"2000.5")),
    "sends nonsense as ETag": send(b"{}", ETag="\xe9\xe9"),
    "fails": send(b"", 500),
    "asks for a password": send(b"", 401),
    "has no such page": send(b"", 404),
    "says that nothing changed": send(b"", 304),
    "redirects to itself": redirect("/configs"),
    "redirects to a file": redirect("file:///etc/hostname"),
    "redirects to FTP": redirect("ftp://127.0.0.1/"),
    "redirects nowhere": redirect(""),
    "redirects to nonsense": redirect("http://[::1/"),
    "redirects to a host that cannot be": redirect(f"http://{'a' * 300}.invalid/"),
}


def dead_url() -> str:
    """Where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"
