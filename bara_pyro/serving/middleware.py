"""Around every request: it is counted and timed, and its body is not read beyond a limit."""

from time import perf_counter

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bara_pyro.serving.meters import Meters

MOST_BYTES = 8 * 2**20
"""Of the body of a request."""


class Counted:
    """Counts and times requests to paths that there are.

    Args:
        app: what answers.
        meters: where to count.
        paths: those counted by their names, all others as "other".
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


class Limited:
    """Refuses a request whose body is longer than `MOST_BYTES`, before it is in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        got = 0

        async def received() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > MOST_BYTES:
                raise HTTPException(
                    413, f"The request is longer than {MOST_BYTES // 2**20} MiB: send fewer rows at a time."
                )
            return message

        await self.app(scope, received, send)
