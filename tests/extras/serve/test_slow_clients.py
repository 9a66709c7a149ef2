"""Clients that send half a request, drip one, or do not take their reply hold nothing up and are let go."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_cases import PATIENCE, Served, ask, serving

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")

from bara_pyro.errors import ConfigError
from bara_pyro.extras.serve.http.server import check_connections

CONNECTIONS = 20
ROW = [{"id": "a", "question": "is the fox red ?"}]
HEADER = b"POST /draws HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF = {
    "nothing": b"",
    "a header": HEADER,
    "a body": HEADER + b"Content-Length: 100\r\n\r\n{",
    "a body that nobody reads": b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    "a body for another host": b"POST /draws HTTP/1.1\r\nHost: evil\r\nContent-Length: 100\r\n\r\n{",
    "a piece": HEADER + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{",
}


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Served]:
    options = ("--header-seconds", 1, "--body-seconds", 1, "--idle-seconds", 1)
    with serving(run, *options, "--samples", 2, "--max-connections", CONNECTIONS) as found:
        yield found


def opened(served: Served, sent: bytes) -> socket.socket:
    connection = socket.create_connection(served.address, timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the server closes a connection, which it has to."""
    found = b""
    while part := connection.recv(2**16):
        found += part
    return found


@pytest.mark.parametrize("sent", HALF)
def test_half_a_request_is_let_go(sent: str, served: Served) -> None:
    with opened(served, HALF[sent]) as connection:
        answer = all_of(connection)
    status = {"a body that nobody reads": b"404", "a body for another host": b"400"}.get(sent, b"408")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_request_that_drips_is_let_go(served: Served) -> None:
    """Its time is that of the whole header, however often a byte of it comes."""
    with opened(served, HEADER) as connection:
        connection.settimeout(0.05)
        answer = b""
        for _ in range(PATIENCE * 20):
            try:
                if answer := connection.recv(2**16):
                    break
            except TimeoutError:
                connection.sendall(b"X")
    assert answer.startswith(b"HTTP/1.1 408")


def test_what_is_no_http_is_refused_in_a_sentence(served: Served) -> None:
    for sent in (b"\x16\x03\x01 is this TLS?\r\n\r\n", HEADER + b"X: " + b"x" * 2**15):
        with opened(served, sent) as connection:
            answer = all_of(connection)
        assert answer.startswith(b"HTTP/1.1 400")
        assert "HTTP/1.1" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def test_a_connection_is_kept_for_its_next_request(served: Served) -> None:
    body = json.dumps({"rows": ROW}).encode()
    whole = HEADER + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with opened(served, whole + whole) as connection:
        assert all_of(connection).count(b"HTTP/1.1 200") == 2  # then idle, and closed


def test_more_connections_than_there_may_be_stop_nothing(served: Served) -> None:
    half = [opened(served, list(HALF.values())[i % len(HALF)]) for i in range(8 * CONNECTIONS)]
    try:
        for _ in range(5):
            assert ask(served.about["url"], "/draws", ROW)["rows"][0]["id"] == "a"
    finally:
        for connection in half:
            connection.close()
    assert ask(served.about["url"], "/health")["status"] == "ok"


@pytest.mark.slow
def test_what_is_said_of_them_is_short(served: Served) -> None:
    with opened(served, HALF["a body"]) as connection:
        all_of(connection)
    said = served.errors.read_text()
    assert "sent no complete body within 1 s" in said
    assert "Traceback" not in said
    assert max(map(len, said.splitlines())) < 500


@pytest.mark.slow
def test_connections_are_no_more_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    assert check_connections(None) == check_connections(128) == 128
    with pytest.raises(ConfigError, match="129 connections exceed the 128"):
        check_connections(129)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert check_connections(None) == 512
