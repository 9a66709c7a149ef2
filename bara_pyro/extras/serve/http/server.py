"""An application on a port, until it is stopped; what was asked before that is still answered."""

import gc
import socket
from collections.abc import Sequence

import uvicorn
from fastapi import FastAPI

from bara_pyro.errors import ConfigError
from bara_pyro.extras.serve.http.logs import log_config
from bara_pyro.extras.serve.http.middleware import ADDRESSES
from bara_pyro.extras.serve.http.protocol import Patience, guarded

GRACE = 30
"""Seconds that requests have to be answered after the server was told to stop."""
BACKLOG = 2048
"""Connections that may wait to be accepted."""
AT_A_TIME = 16
"""Connections accepted in one turn of the event loop; those of a few turns are open before any is closed."""
OTHER_FILES = 64 + 4 * AT_A_TIME
"""Files that a server has open beside its connections, at most."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that connections wait at; port 0 stands for any that is free.

    Raises:
        ConfigError: the address is not one of this machine, or the port is taken or not allowed.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Cannot listen at {host}, port {port} ({reason}): choose another with --host and --port."
        ) from error


def url_of(listening: socket.socket) -> str:
    """Return where a socket is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def hosts_of(host: str, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the hosts that requests may name at an address.

    Args:
        host: the address or name listened at.
        more: that are allowed, too; "*" for any.
    """
    if host in LOOPBACK:
        return (*LOOPBACK, *more)
    return (host, socket.gethostname(), ADDRESSES, *LOOPBACK, *more)


def check_connections(connections: int | None) -> int:
    """Return how many connections there may be at once; None for `Patience.connections`, or fewer.

    Raises:
        ConfigError: the system does not allow so many open files.
    """
    usual, room = Patience.connections, _files() - OTHER_FILES
    if connections is None:
        return max(1, min(usual, room))
    if connections > room:
        raise ConfigError(
            f"{connections} connections are more than the {max(room, 0)} that this system's limit of open "
            "files leaves: lower --max-connections, or raise the limit with ulimit -n."
        )
    return connections


def _files() -> int:
    """Return how many files this process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 2**31
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def serve(app: FastAPI, listening: socket.socket, patience: Patience | None = None) -> None:
    """Answer requests until SIGINT or SIGTERM.

    What is being answered then has `GRACE` seconds to be, and is refused afterwards; a second signal ends it
    at once. The signal is raised again afterwards.

    Args:
        app: of `create_app`.
        listening: of `listen`.
        patience: with clients.
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
    # The language model and its packages are here to stay: looked through at each collection, they make
    # reading a request of a million small lists take ten seconds instead of two.
    gc.collect()
    gc.freeze()
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # asyncio has one number for those that wait and those taken at a time
