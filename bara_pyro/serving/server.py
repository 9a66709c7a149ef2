"""An application on a port, until it is stopped; what was asked before that is still answered."""

import socket

import uvicorn
from fastapi import FastAPI

from bara_pyro.errors import ConfigError

GRACE = 30
"""Seconds that requests have to be answered after the server was told to stop."""
BACKLOG = 2048


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


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM.

    What is being answered then has `GRACE` seconds to be; a second signal ends it at once. The signal is
    raised again afterwards.
    """
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listening])
