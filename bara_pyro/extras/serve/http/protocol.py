"""Time out slow clients and limit the number of connections.

uvicorn limits the idle time of a connection and the size of headers. It waits forever for the rest of a
header or body and for a client to read its reply, and it keeps any number of such connections.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

GONE = 5.0
"""Seconds until a closed connection is dropped, even if its last bytes were not read."""


@dataclass(frozen=True)
class Patience:
    """Time limits for clients and the number of connections.

    Attributes:
        header_seconds: most seconds from connecting, or from the first byte of the next request, to the end
            of the header.
        body_seconds: most seconds from the end of the header to the end of the body; also most seconds that a
            client may pause while reading its reply.
        idle_seconds: most seconds between two requests of a connection.
        connections: most connections. A further one replaces the connection that has kept the server waiting
            longest; it is refused if all are being answered.
    """

    header_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 5.0
    connections: int = 512


class GuardedProtocol(H11Protocol):
    """A connection with time limits.

    Args:
        *given: arguments of uvicorn's protocol.
        patience: time limits and number of connections.
        **named: keyword arguments of uvicorn's protocol.
    """

    def __init__(self, *given: Any, patience: Patience, **named: Any) -> None:
        super().__init__(*given, **named)
        self.patience = patience
        self.waiting = ""
        """What the server waits for: "header", "body", "next request", "reply" (to be read) or ""."""
        self.since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, replacing a waiting one if the limit is reached."""
        super().connection_made(transport)
        if len(self.connections) > self.patience.connections and not self._make_room():
            self._refuse(503, "The server has too many connections: try again in 1 s.")
            return
        self._watch()

    def _make_room(self) -> bool:
        protocols = (c for c in self.connections if isinstance(c, GuardedProtocol))
        waiting = [c for c in protocols if c.waiting and c is not self]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection.since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a lost connection."""
        super().connection_lost(exc)
        self._wait_for("")

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on to the next request of a connection."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Pause until the client reads its reply."""
        super().pause_writing()
        self._wait_for("reply")

    def resume_writing(self) -> None:
        """Resume sending."""
        super().resume_writing()
        self._wait_for("")
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._drop_later()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not valid HTTP."""
        self._refuse(400, f"{msg.rstrip('.')}: send HTTP/1.1 with a header of at most 16 KiB.")

    def _watch(self) -> None:
        """Restart the timer if the client now has something else to send."""
        if self.waiting != "reply":
            self._wait_for(self._wanted())

    def _wanted(self) -> str:
        if self.transport.is_closing():
            return "reply"
        if self.timeout_keep_alive_task is not None:
            return "next request"  # uvicorn's own timer ends that
        return {h11.IDLE: "header", h11.SEND_BODY: "body"}.get(self.conn.their_state, "")

    def _wait_for(self, what: str) -> None:
        if what == self.waiting:
            return
        self.waiting, self.since = what, self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        most = {"header": self.patience.header_seconds, "body": self.patience.body_seconds}
        if what in most:
            self._timer = self.loop.call_later(most[what], self._too_slow, what, most[what])
        elif what == "reply":
            self._timer = self.loop.call_later(self.patience.body_seconds, self.transport.abort)

    def _too_slow(self, what: str, seconds: float) -> None:
        host = self.client[0] if self.client else "a client"
        self.logger.warning("%s sent no complete %s within %g s: closed.", host, what, seconds)
        self._refuse(408, f"The request's {what} did not arrive within {seconds:g} s: send it faster.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Send an error, unless a reply has begun, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # wakes the code that reads the body
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": sentence}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._drop_later()

    def _drop_later(self) -> None:
        self._wait_for("")
        self.loop.call_later(GONE, self.transport.abort)


def guarded(patience: Patience) -> type[asyncio.Protocol]:
    """Return the protocol class to pass to uvicorn."""
    make: Callable[..., GuardedProtocol] = partial(GuardedProtocol, patience=patience)
    return cast(type[asyncio.Protocol], make)
