"""`bara predict ADDRESS`: the answers of a running server, without loading a model."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from app_cases import Bara, assert_one_sentence
from serving_cases import server

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.predict import predict
from bara_pyro.runs.remote import ROWS, predict_remotely

ANSWER = {
    "label": "yes",
    "probs": {"yes": 0.75, "no": 0.25},
    "total": 0.5,
    "aleatoric": 0.4,
    "epistemic": 0.1,
}


@contextmanager
def stub(reply: object, status: int = 200) -> Iterator[tuple[str, list[dict]]]:
    """Give the address of a server with this reply to rows (None: answers to them), and what was posted."""
    posted: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"text_column": "question"})

        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answers = [{"id": row.get("id"), **ANSWER} for row in posted[-1]["rows"]]
            self._send(status, {"rows": answers, "notes": ["a note"]} if reply is None else reply)

        def _send(self, code: int, content: object) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", posted
        finally:
            http.shutdown()
            thread.join()


def test_rows_are_sent_in_parts_under_the_ids_that_predict_would_give() -> None:
    texts = [f"question {i}" for i in range(2 * ROWS + 1)]
    with stub(None) as (address, posted):
        found = predict(address, texts)
    assert [len(part["rows"]) for part in posted] == [ROWS, ROWS, 1]
    sent = [row for part in posted for row in part["rows"]]
    assert sent == [{"id": f"row-{i}", "question": text} for i, text in enumerate(texts, start=1)]
    assert found.notes == ["a note"]
    assert found.classes == ("yes", "no")
    assert found.lines()[-1] == {"id": f"row-{len(texts)}", "question": texts[-1], **ANSWER}


@pytest.mark.parametrize("named", ["id", "ticket_id"])
def test_rows_keep_their_own_ids(named: str) -> None:
    rows = [{named: f"t{i}", "question": "so ?", "by": "me"} for i in range(3)]
    with stub({"rows": [{"id": row[named], **ANSWER} for row in rows]}) as (address, posted):
        found = predict_remotely(address, rows)
    assert posted == [{"rows": rows}]
    assert [row["id"] for row in found.rows] == ["t0", "t1", "t2"]


def test_an_id_may_not_occur_in_two_parts() -> None:
    rows = [{"id": str(i % ROWS), "question": "so ?"} for i in range(ROWS + 1)]
    with stub(None) as (address, _), pytest.raises(DataError, match="2 rows have the id '0'"):
        predict_remotely(address, rows)


@pytest.mark.parametrize(
    ("reply", "status", "error", "match"),
    [
        ({"error": "no text"}, 422, DataError, "no text"),
        ({"error": "the queue is full"}, 503, ConfigError, "queue is full"),
        ({"detail": "nobody knows"}, 500, ConfigError, "not this version"),
        (b"<html>", 200, ConfigError, "not this version"),
        (b"[" * 100_000, 200, ConfigError, "not this version"),
        ({"rows": []}, 200, ConfigError, "not this version"),
        ({"rows": [{"id": "row-1", "label": "yes"}]}, 200, ConfigError, "not this version"),
    ],
)
def test_a_reply_that_answers_nothing(reply: object, status: int, error: type[Exception], match: str) -> None:
    with stub(reply, status) as (address, _), pytest.raises(error, match=match):
        predict_remotely(address, ["so ?"])


def test_what_the_server_decides_is_refused_when_typed(bara: Bara) -> None:
    with stub(None) as (address, posted):
        for option, value in (("--samples", 3), ("--seed", 1), ("--device", "cpu"), ("--text-column", "t")):
            assert_one_sentence(bara("predict", address, "so ?", option, value), option, "bara serve")
        with pytest.raises(ConfigError, match="leave out samples"):
            predict(address, ["so ?"], samples=10)
    assert not posted


def test_no_server(bara: Bara) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    assert_one_sentence(bara("predict", f"http://127.0.0.1:{port}", "so ?"), str(port), "bara serve")
    for address in ("http://", "http://127.0.0.1:x", "http://127.0.0.1:80?x=1", "http://[::1"):
        assert_one_sentence(bara("predict", address, "so ?"), address, "8000")


def test_a_text_is_answered_without_the_packages_that_load_a_model() -> None:
    code = """if True:
        import sys
        for name in ("torch", "transformers", "datasets", "pandas", "pyarrow", "numpy"):
            sys.modules[name] = None  # importing it fails
        from bara_pyro.cli.app import main
        sys.argv[1:] = ["predict", sys.argv[1], "so ?"]
        main()
    """
    with stub(None) as (address, _):
        done = subprocess.run(
            [sys.executable, "-c", code, address], check=False, capture_output=True, text=True
        )
    assert json.loads(done.stdout) == {"id": "row-1", "question": "so ?", **ANSWER}, done.stderr


@pytest.mark.slow
def test_a_server_answers_as_the_run_does(run: Path, rows: list[dict], bara: Bara) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")
    expected = predict(run, rows, samples=4, seed=0)
    with server(run, "--samples", 4) as (_, about):
        found = predict(about["url"], rows)
    assert found.classes == expected.classes
    for line, own in zip(found.lines(), expected.lines(), strict=True):
        assert line.keys() == own.keys()
        assert (line["id"], line["question"]) == (own["id"], own["question"])
        assert line["probs"] == pytest.approx(own["probs"], abs=1e-5)
        assert line["epistemic"] == pytest.approx(own["epistemic"], abs=1e-5)
