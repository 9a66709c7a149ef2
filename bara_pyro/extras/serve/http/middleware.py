"""Middleware: check the host, count and time requests for Prometheus, limit them, refuse them at shutdown."""

from asyncio import CancelledError
from collections.abc import Callable, Collection
from ipaddress import ip_address
from time import perf_counter
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Bounds of the histograms.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTENT_TYPE = CONTENT_TYPE_LATEST
MOST_BYTES = 8 * 2**20
"""Default limit of a request body, in bytes."""
ANY = "*"
ADDRESSES = "addresses"
"""Stands for every numeric IP address; no other site can have one as its name."""


class Meters:
    """Metrics of one server, in a separate registry.

    Args:
        held: returns the number of rows that wait or are being computed.
    """

    def __init__(self, held: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        times = "Seconds from request to answer."
        self.requests = Counter("bara_requests", "Requests answered.", ("path", "status"), registry=registry)
        self.seconds = Histogram("bara_request_seconds", times, ("path",), buckets=SECONDS, registry=registry)
        self.rows = Counter("bara_rows", "Rows computed.", registry=registry)
        self.batch_rows = Histogram("bara_batch_rows", "Rows per batch.", buckets=ROWS, registry=registry)
        self.batch_seconds = Histogram(
            "bara_batch_seconds", "Seconds per batch.", buckets=SECONDS, registry=registry
        )
        Gauge("bara_rows_held", "Rows waiting or being computed.", registry=registry).set_function(held)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Record an answered request."""
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Record a computed batch."""
        self.rows.inc(rows)
        self.batch_rows.observe(rows)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Counted:
    """Count and time requests.

    The given paths are counted by name; all others count as "other".
    """

    def __init__(self, app: ASGIApp, meters: Meters, paths: frozenset[str]) -> None:
        self.app, self.meters, self.paths = app, meters, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), 500
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sent)
        finally:
            self.meters.request(path, status, perf_counter() - began)


class Stoppable:
    """Answer requests to the wrapped application that are cancelled by a shutdown with a 503."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except CancelledError:
            if begun or scope["type"] != "http":
                raise
            sentence = (
                "The server is shutting down before it has an answer: use another one, or try again later."
            )
            await JSONResponse({"error": sentence}, 503)(scope, receive, send)


class Trusted:
    """Refuse requests with an unknown Host header, against DNS rebinding.

    Starlette's `TrustedHostMiddleware` answers in plain text and cannot allow all numeric addresses.

    Args:
        app: the wrapped application.
        hosts: accepted names and addresses, without ports; `ADDRESSES` accepts every numeric address, `ANY`
            every host.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self.app, self.hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or ANY in self.hosts:
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope).getlist("host")
        if len(asked) == 1 and self._is_ours(asked[0]):
            await self.app(scope, receive, send)
            return
        shown = ascii(", ".join(asked)[:60])
        sentence = f"The host {shown} is not allowed: start the server with --allowed-host to allow it."
        await JSONResponse({"error": sentence}, 400)(scope, receive, send)

    def _is_ours(self, address: str) -> bool:
        try:
            host = urlsplit(f"//{address}").hostname or ""
        except ValueError:  # no valid address in the brackets
            return False
        return host in self.hosts or (ADDRESSES in self.hosts and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class Limited:
    """Refuse request bodies above a limit before they are read into memory.

    Args:
        app: the wrapped application.
        most: limit in bytes.
    """

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        said = Headers(scope=scope).get("content-length", "") if "headers" in scope else ""
        announced = int(said) if said.isdecimal() else 0
        sentence = f"The request is longer than {_shown(self.most)}: send fewer rows at a time."
        too_long = HTTPException(413, sentence, {"Connection": "close"})
        got = 0

        async def received() -> Message:
            nonlocal got
            if announced > self.most:
                raise too_long
            message = await receive()
            got += len(message.get("body", b""))
            if got > self.most:
                raise too_long
            return message

        await self.app(scope, received, send)


def _shown(size: int) -> str:
    return f"{size // 2**20} MiB" if size >= 2**20 and not size % 2**20 else f"{size} bytes"
