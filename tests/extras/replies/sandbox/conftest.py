"""A host to be attacked, and where HumanEval is."""

import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_cases import Host

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox import Problem, check_isolation, load_humaneval
from bara_pyro.extras.replies.sandbox.bubblewrap import ENVIRONMENT

SHARED = Path(os.environ.get("BARA_SHARED") or Path(__file__).parents[5] / "shared")


@pytest.fixture(scope="session")
def isolation() -> None:
    try:
        check_isolation()
    except SandboxError as error:
        pytest.skip(f"programs cannot be isolated here: {error}")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    mark, secret = uuid.uuid4().hex, uuid.uuid4().hex
    monkeypatch.setitem(ENVIRONMENT, "MARK", mark)
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret.txt").write_text(secret)
    (tmp_path / "folder" / "kept.txt").write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        host = Host(tmp_path, secret, server, mark)
        host.before = host.files()
        yield host


@pytest.fixture(scope="session")
def problems() -> tuple[Problem, ...]:
    path = SHARED / "data" / "humaneval" / "test.jsonl"
    if not path.is_file():
        pytest.skip(f"HumanEval is not at {path} (set BARA_SHARED)")
    return load_humaneval(path)
