"""Run the application on a port until it is stopped, and finish pending requests."""

import gc
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

import uvicorn
from fastapi import FastAPI

from bara_pyro.errors import ConfigError
from bara_pyro.extras.serve.http.middleware import ADDRESSES
from bara_pyro.extras.serve.http.protocol import Patience, guarded

GRACE = 30
"""Seconds to finish pending requests after a signal to stop."""
BACKLOG = 2048
"""Most connections that wait to be accepted."""
AT_A_TIME = 16
"""Connections accepted per turn of the event loop; several turns may pass before one is closed."""
OTHER_FILES = 64 + 4 * AT_A_TIME
"""Most files that the server opens in addition to its connections."""
LONGEST_LINE = 400
"""Most characters of a line of the log."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a name or an address; port 0 is any free port.

    Raises:
        ConfigError: the address does not belong to this machine, or the port is taken or not permitted.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Cannot listen on {host}, port {port} ({reason}): choose another with --host or --port."
        ) from error


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def hosts_of(host: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the hosts that a server accepts in the Host header.

    Args:
        host: the name or address that the server listens on.
        more: further hosts to accept; "*" for any.
    """
    if host in LOOPBACK:
        return (*LOOPBACK, *more)
    return (host, socket.gethostname(), ADDRESSES, *LOOPBACK, *more)


def check_connections(connections: int | None) -> int:
    """Return the limit on connections.

    Args:
        connections: the wanted limit; None for `Patience.connections`, or fewer if the system's limit on open
            files requires it.

    Raises:
        ConfigError: the system does not allow that many open files.
    """
    usual, room = Patience.connections, _files() - OTHER_FILES
    if connections is None:
        return max(1, min(usual, room))
    if connections > room:
        raise ConfigError(
            f"{connections} connections exceed the {max(room, 0)} that the system's limit on open files "
            "allows: lower --max-connections, or raise the limit with ulimit -n."
        )
    return connections


def _files() -> int:
    """Return the process's limit on open files."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def serve(app: FastAPI, listening: socket.socket, patience: Patience | None = None) -> None:
    """Serve requests until SIGINT or SIGTERM.

    Pending requests have `GRACE` seconds to finish and are then refused; a second signal stops at once. The
    signal is raised again after the server has stopped.

    Args:
        app: the application, from `create_app`.
        listening: the socket, from `listen`.
        patience: time limits for clients.
    """
    patience = patience or Patience(connections=check_connections(None))
    config = uvicorn.Config(
        app,
        http=guarded(patience),
        ws="none",
        log_config=log_config(),
        log_level="warning",
        access_log=False,
        backlog=AT_A_TIME,
        lifespan="on",
        timeout_keep_alive=patience.idle_seconds,  # type: ignore[arg-type]  # whole seconds or not
        timeout_graceful_shutdown=GRACE,
    )
    # Exclude the language model and imported packages from garbage collection: scanning them at each
    # collection makes a request of a million small lists take ten seconds to read instead of two.
    gc.collect()
    gc.freeze()
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # asyncio uses one number for the backlog and the accepts per turn


class OneLine(logging.Formatter):
    """Format a record as one line; an exception as its type, message and location."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        line = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            last = [*extract_tb(error.__traceback__)][-1:]
            where = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
            line = f"{line} ({type(error).__name__}: {error}){where}"
        line = " ".join(line.split())
        return (
            f"{record.levelname}: {line if len(line) <= LONGEST_LINE else f'{line[: LONGEST_LINE - 3]}...'}"
        )


def log_config() -> dict[str, Any]:
    """Return uvicorn's logging configuration: warnings and errors of uvicorn and asyncio."""
    logger = {"handlers": ["terminal"], "level": "WARNING", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": OneLine}},
        "handlers": {"terminal": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {name: logger for name in ("uvicorn", "asyncio")},
    }
