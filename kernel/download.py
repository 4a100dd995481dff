"""One GET over HTTP that ends in time, whatever the other side does."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import SplitResult, urljoin, urlsplit

MAX_REDIRECTS = 5
#: A whole download may take this many times what the other side may be silent for.
TOTAL_TIMEOUTS = 10
_CHUNK = 1 << 18  # bytes
_REDIRECTS = (301, 302, 303, 307, 308)


class DownloadError(Exception):
    """Nothing was received that can be used; the message is one line without figures that vary."""


@dataclass(frozen=True, slots=True)
class Download:
    """``body`` is None when nothing changed since ``tag``, the answer's ETag as it was sent ('' without one)."""

    body: bytes | None
    tag: str


def check_url(url: str) -> SplitResult:
    """The parts of a URL that can be asked.

    Raises:
        ValueError: it is not http or https, has no host or no proper port, holds a password or
            characters that do not belong into a URL.
    """
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(f"the URL {shown!r} cannot be read: give one like http://host:8000") from None
    if "@" in parts.netloc:
        raise ValueError(f"the URL of {shown!r} holds a user or password: leave them out, reading needs none")
    if parts.scheme not in ("http", "https") or not named:
        raise ValueError(f"{shown!r} is no URL of a service: give one like http://host:8000")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"the URL {shown!r} holds a space or another character that must be percent-encoded")
    return parts


def get(url: str, *, tag: str = "", timeout: float = 10.0, max_bytes: int) -> Download:
    """What is at a URL, unless its ETag is still ``tag``. Proxies of the process's environment are not used.

    ``timeout`` is how long the other side may be silent, in seconds; the whole takes at most
    ``TOTAL_TIMEOUTS`` times that, redirects included (but for the look-up of the host's name,
    which the system limits).

    Raises:
        DownloadError: no answer in time, none but 200 and 304, too many bytes, or a redirect
            that must not be followed.
    """
    clock = _Clock(timeout)
    try:
        for _ in range(MAX_REDIRECTS + 1):
            answer = _get_once(url, tag, clock, max_bytes)
            if isinstance(answer, Download):
                return answer
            url = _redirected(url, answer)
    except TimeoutError:
        raise DownloadError(f"{url} did not answer in time") from None
    except (OSError, HTTPException, ValueError) as error:
        # ValueError: a host's name that cannot be encoded, a status line of nonsense.
        detail = " ".join(str(error).split())[:200]
        raise DownloadError(f"{url} cannot be read ({type(error).__name__}: {detail})") from error
    raise DownloadError(f"{url} redirects more than {MAX_REDIRECTS} times: give the URL of the service itself")


class _Clock:
    """How long to wait for the next bytes: never past the end of the whole."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._end = time.monotonic() + TOTAL_TIMEOUTS * timeout

    def patience(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return min(self._timeout, left)


class _TimedReader(io.RawIOBase):
    """A socket's bytes, each wait limited anew: a byte now and then does not prolong the whole."""

    def __init__(self, sock: socket.socket, clock: _Clock) -> None:
        self._sock = sock
        self._clock = clock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open until it is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._clock.patience())
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """As much of a socket as a response asks for."""

    def __init__(self, sock: socket.socket, clock: _Clock) -> None:
        self._sock = sock
        self._clock = clock

    def makefile(self, mode: str) -> IO[bytes]:
        return io.BufferedReader(_TimedReader(self._sock, self._clock))


def _timed_response(clock: _Clock) -> Callable[..., HTTPResponse]:
    def response(sock: socket.socket, *args: Any, **more: Any) -> HTTPResponse:
        return HTTPResponse(_TimedSocket(sock, clock), *args, **more)  # type: ignore[arg-type]

    return response


def _get_once(url: str, tag: str, clock: _Clock, max_bytes: int) -> Download | str:
    """The download, or where the answer sends us."""
    parts = check_url(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=clock.patience())
    connection.response_class = _timed_response(clock)  # type: ignore[assignment]
    headers = {"Accept": "application/json", "Connection": "close"}
    if tag:
        headers["If-None-Match"] = tag
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    response = None
    try:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        if response.status in _REDIRECTS:
            return response.getheader("Location", "")
        if response.status == 304 and tag:
            return Download(None, tag)
        if response.status != 200:
            raise DownloadError(f"{url} answered {response.status}, neither 200 nor 304")
        new_tag = response.getheader("ETag", "")
        sendable = new_tag.isascii() and new_tag.isprintable()
        return Download(_body(url, response, max_bytes), new_tag if sendable else "")
    finally:
        if response is not None:
            response.close()
        connection.close()


def _body(url: str, response: HTTPResponse, max_bytes: int) -> bytes:
    received = bytearray()
    if (response.length or 0) <= max_bytes:
        while chunk := response.read(_CHUNK):
            received += chunk
            if len(received) > max_bytes:
                break
        else:
            return bytes(received)
    raise DownloadError(f"{url} sends more than {max_bytes} bytes: serve fewer shapes")


def _redirected(url: str, location: str) -> str:
    target = urljoin(url, location)
    try:
        scheme = check_url(target).scheme
    except ValueError as error:
        raise DownloadError(f"{url} redirects wrongly: {str(error)[:200]}") from None
    if url.startswith("https:") and scheme != "https":
        raise DownloadError(f"{url} redirects away from https: give the URL of the service itself")
    return target
