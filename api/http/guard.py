"""What is refused before any endpoint sees it: foreign hosts, pages of other sites, bodies that are not JSON."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import ProblemError, shown

_SAFE = ("GET", "HEAD", "OPTIONS")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
#: Pages load nothing from elsewhere, run only our own script, and cannot be framed.
PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class Guard:
    """Middleware around the whole app.

    ``hosts`` are the names under which the service may be called, without ports; empty: any. On
    loopback this keeps a web page from reaching the service under a name of its own. ``max_body``
    is in bytes.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = (), max_body: int = 1 << 20) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(scope["method"], headers)
            if _has_body(headers):
                receive = await self._received(receive, headers)
        except ProblemError as problem:
            await problem.response()(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers["X-Content-Type-Options"] = "nosniff"
                if headers.get("content-type", "").startswith("text/html"):
                    headers["Content-Security-Policy"] = PAGE_POLICY
                    headers["Referrer-Policy"] = "same-origin"
            await send(message)

        await self._app(scope, receive, guarded)

    def _check(self, method: str, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts:
            raise ProblemError(
                400,
                "host",
                "The host is not known",
                f"the service is called as {shown(host)}: use localhost, or name the host in PFATUNE_ALLOWED_HOSTS",
            )
        if method in _SAFE:
            return
        if is_cross_site(headers):
            raise cross_site()
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if _has_body(headers) and kind != "application/json":
            raise ProblemError(
                415, "media-type", "The body is not JSON", f"Content-Type is {shown(kind)}: send application/json"
            )

    async def _received(self, receive: Receive, headers: Headers) -> Receive:
        """The whole body, which is small or refused, to be received once more."""
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._max_body:
            raise self._too_large()
        body = bytearray()  # a list of its parts, which may be single bytes, could take a hundred times as much
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise self._too_large()
            more = message["type"] == "http.request" and message.get("more_body", False)
        if message["type"] == "http.request":
            message = {"type": "http.request", "body": bytes(body), "more_body": False}
        whole = [message]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        return again

    def _too_large(self) -> ProblemError:
        text = f"the body is larger than {self._max_body} bytes: send less, in several requests"
        return ProblemError(413, "too-large", "The body is too large", text, headers={"Connection": "close"})


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def is_cross_site(headers: Headers) -> bool:
    """Whether a browser sends this from a page of another site."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def cross_site() -> ProblemError:
    """The problem of a request that another site's page sends."""
    text = "a page of another site sent this request: send it from the service's own pages, or not from a browser"
    return ProblemError(403, "cross-site", "The request is refused", text)


def _name(host: str) -> str:
    """The host without its port, and without the brackets of IPv6."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
