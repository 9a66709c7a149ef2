"""A server that stops: what it has no time left for is refused with a sentence, not with an error of ours."""

import gc
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")

import serving_cases
from serving_cases import PATIENCE

from bara_pyro.extras.serve.http import server
from bara_pyro.extras.serve.http.app import Limits, create_app


class Stuck:
    """An engine that is computing until somebody lets it go."""

    def __init__(self) -> None:
        self.about = {"samples": 1, "text_column": "question"}
        self.begun, self.go = threading.Event(), threading.Event()

    def read(self, rows: Sequence[Any]) -> tuple[list[Any], list[str]]:
        return list(rows), []

    def compute(self, questions: Sequence[Any]) -> list[Any]:
        self.begun.set()
        self.go.wait(PATIENCE)
        return []


def test_what_still_waits_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three requests one is being computed and two wait; the grace of the server runs out."""
    servers = []

    class Known(server._Server):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            servers.append(self)

    monkeypatch.setattr(server, "_Server", Known)
    monkeypatch.setattr(server, "GRACE", 0.2)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    engine = Stuck()
    listening = server.listen("127.0.0.1", 0)
    host, port = listening.getsockname()[:2]
    body = json.dumps({"rows": [{"question": "?"}]}).encode()

    def ask() -> tuple[int, str]:
        url, kind = f"http://{host}:{port}/probabilities", {"Content-Type": "application/json"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, body, kind), timeout=PATIENCE)
        return refused.value.code, json.load(refused.value)["error"]

    app = create_app(engine, Limits(max_batch=1))
    serving = threading.Thread(target=server.serve, args=(app, listening))
    serving.start()
    try:
        with ThreadPoolExecutor(3) as clients:
            asked = [clients.submit(ask) for _ in range(3)]
            assert engine.begun.wait(PATIENCE)
            while serving_cases.ask(f"http://{host}:{port}", "/health")["rows_held"] < len(asked):
                time.sleep(0.01)
            servers[0].should_exit = True
            answers = [one.result() for one in asked]
    finally:
        engine.go.set()
        serving.join(PATIENCE)
    assert not serving.is_alive()
    assert {code for code, _ in answers} == {503}
    assert all("shutting down" in said and len(said) <= 200 for _, said in answers)
