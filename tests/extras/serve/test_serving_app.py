"""Answers over HTTP are those of `bara predict`, whatever they are computed with; refusals are sentences."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")
pytest.importorskip("httpx2", reason="starlette's TestClient needs httpx2")

from app_cases import Bara, Place, write_rows
from fastapi import HTTPException
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from serving_cases import SAMPLES
from starlette.types import Message, Receive, Scope, Send

from bara_pyro.cli.running import run as train
from bara_pyro.data import Columns, EncodedSplit
from bara_pyro.errors import ConfigError
from bara_pyro.extras.serve.http import engine as reading
from bara_pyro.extras.serve.http import middleware
from bara_pyro.extras.serve.http.app import ServerLimits, create_app
from bara_pyro.extras.serve.http.engine import Answer, QueuedQuestion, RunEngine
from bara_pyro.extras.serve.http.server import hosts_of
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.rows import encode_rows
from bara_pyro.untrusted.files import read_jsonl

ROUNDING = 1e-5
"""By which two batches may differ: their matrix products are of other shapes, in float32."""


@pytest.fixture(scope="module")
def client(engine: RunEngine) -> Iterator[TestClient]:
    with TestClient(
        create_app(engine, ServerLimits(max_batch=16, max_wait=0.02)), raise_server_exceptions=False
    ) as found:
        yield found


@pytest.fixture(scope="module")
def predicted(run: Path, rows: list[dict], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What `bara predict` writes of the rows, by their ids."""
    from bara_pyro.data import load_questions
    from bara_pyro.runs.predict import predict

    folder = tmp_path_factory.mktemp("predicted")
    file = write_rows(folder / "rows.jsonl", rows)
    system = load_system(run, with_rows=False)
    assert len(load_questions(file, system.task)) == len(rows)
    return {row["id"]: row for row in predict(system, file, samples=SAMPLES, seed=0).rows}


def post(client: TestClient, path: str, rows: Sequence[object]) -> list[dict]:
    answer = client.post(path, json={"rows": rows})
    assert answer.status_code == 200, answer.text
    assert answer.json()["samples"] == SAMPLES
    return answer.json()["rows"]


def assert_same(found: dict, expected: dict) -> None:
    assert found["id"] == expected["id"]
    for key in found.keys() - {"id", "label"}:
        assert found[key] == pytest.approx(expected[key], abs=ROUNDING), (found, expected)
    probs = expected["probs"]
    if abs(math.log(max(probs.values()) / min(probs.values()))) > 10 * ROUNDING:
        assert found["label"] == expected["label"]


def test_the_command_predicts_what_is_served(
    run: Path, rows: list[dict], predicted: dict[str, dict], client: TestClient, tmp_path: Path, bara: Bara
) -> None:
    file, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "answers.jsonl"
    assert bara("predict", run, "--input", file, "--output", out, "--samples", SAMPLES).code == 0
    written = read_jsonl(out)
    assert written == [row | predicted[row["id"]] for row in rows]  # with the columns of the file
    for found, expected in zip(post(client, "/probabilities", rows), written, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("size", [1, 3, 80])
def test_an_answer_does_not_depend_on_what_it_is_asked_with(
    size: int, client: TestClient, rows: list[dict], predicted: dict[str, dict]
) -> None:
    """Requests of several sizes, at once, in another order: computed in batches as they happen to fall."""
    turned = rows[::-1]
    requests = [turned[i : i + size] for i in range(0, len(turned), size)]
    for path in ("/probabilities", "/uncertainty"):
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda part, path=path: post(client, path, part), requests))
        found = [row for answer in answers for row in answer]
        assert [row["id"] for row in found] == [row["id"] for row in turned]
        for row in found:
            assert_same(row, predicted[row["id"]])


def test_the_tolerance_tells_draws_apart(
    client: TestClient, rows: list[dict], predicted: dict[str, dict]
) -> None:
    """Were noise drawn by the place in a batch, answers would differ by far more than is allowed above."""
    renamed = [{**row, "id": f"other-{row['id']}"} for row in rows]
    moved = [
        abs(found["epistemic"] - predicted[row["id"]]["epistemic"])
        for row, found in zip(rows, post(client, "/uncertainty", renamed), strict=True)
    ]
    assert np.median(moved) > 30 * ROUNDING


def test_draws_make_the_probabilities_and_the_uncertainty(
    client: TestClient, rows: list[dict], predicted: dict[str, dict]
) -> None:
    for row in post(client, "/draws", rows):
        draws = np.array(row["draws"])
        assert draws.shape == (SAMPLES, 2)
        assert draws.sum(1) == pytest.approx(np.ones(SAMPLES))
        expected = predicted[row["id"]]
        assert dict(zip(row["classes"], draws.mean(0), strict=True)) == pytest.approx(
            expected["probs"], abs=ROUNDING
        )
        mean = draws.mean(0)
        assert -(mean * np.log(mean)).sum() == pytest.approx(expected["total"], abs=ROUNDING)
        assert -(draws * np.log(draws)).sum(1).mean() == pytest.approx(expected["aleatoric"], abs=ROUNDING)


def test_rows_without_an_id_are_those_of_a_file_without_one(
    run: Path, client: TestClient, rows: list[dict]
) -> None:
    from bara_pyro.runs.predict import predict

    bare = [{"question": row["question"]} for row in rows[:5]]
    expected = predict(load_system(run, with_rows=False), bare, samples=SAMPLES, seed=0).rows
    for found, wanted in zip(post(client, "/probabilities", bare), expected, strict=True):
        assert_same(found, wanted)
    assert expected[0]["id"] == "row-1"


FORM = 'send {"rows": [{"question": "..."}]}'
BAD = {
    '{"rows": []}': (422, "The rows are []"),
    '{"rows": 3}': (422, "The rows are 3"),
    '{"rows": [1]}': (422, "Row 1 is 1"),
    '{"rows": [{"question": "is"}, "is the fox red ?"]}': (422, 'Row 2 is "is the fox red ?"'),
    '{"questions": []}': (422, "no 'rows'"),
    '{"rows": [{"question": "is"}], "samples": 3}': (422, "'samples'"),
    "[]": (422, 'The request is [], not an object: send {"rows": [{"question": "..."}]}.'),
    "null": (422, f"The request is empty (no body, or null): {FORM} with Content-Type: application/json."),
    "": (422, f"The request is empty (no body, or null): {FORM} with Content-Type: application/json."),
    '{"rows": null}': (422, "The rows are null"),
    '{"rows": ': (400, "not JSON"),
    "\xff": (400, f"The request is not UTF-8 text (byte 0): {FORM}, encoded as UTF-8."),
    "[" * 200_000: (400, f"The request is nested too deeply: {FORM}."),
    '{"rows": ' + "1" * 5000 + "}": (400, f"The request holds a number that is too long: {FORM}."),
    '{"rows": [{"question": "vome \\ud800 meets"}]}': (422, "row 1: its text in 'question' is not valid Uni"),
    '{"rows": [{"question": "is", "id": "\\ud800"}]}': (422, "row 1: its text in 'id' is not valid Unicode"),
    '{"rows": [{"question": "is", "choices": ["\\ud800", "b"]}]}': (422, "its choices \\ud800, b are not"),
    '{"rows": [{"question": null}]}': (422, "no text in 'question' (found None): give one, or leave the row"),
    '{"rows": [{"query_text": "is"}]}': (422, "'query_text'): name it 'question'"),
    '{"rows": [{}]}': (422, "name it 'question'"),
    '{"rows": [{"question": ""}]}': (422, "row 1"),
    '{"rows": [{"question": "is", "id": 1}, {"question": "the", "id": "1"}]}': (422, "share the id '1'"),
    '{"rows": [{"question": "is", "answer": "maybe"}]}': (422, "'maybe'"),
    json.dumps({"rows": [{"question": "fox " * 500}]}): (422, "longer than 64 tokens"),  # all that it takes
}  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:40])
def test_a_bad_request_is_refused_in_a_sentence(body: str, client: TestClient) -> None:
    status, part = BAD[body]
    headers = {"Content-Type": "application/json"}
    answer = client.post("/probabilities", content=body.encode("latin-1"), headers=headers)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    sentence = answer.json()["error"]
    assert part in sentence
    assert sentence.endswith(".")
    assert ". " not in sentence
    assert len(sentence) < 400


def test_a_request_with_many_mistakes_is_refused_for_the_first_one(client: TestClient) -> None:
    """A million of wrong rows, two thousand keys, a name of a hundred kilobytes: one short sentence."""
    for rows, part in (
        ([1] * 10**6, "Row 1 is 1"),
        ([{"question": "is", **dict.fromkeys(map(str, range(2000)))}], "1000 different keys"),
        ([{"question": "is", "answer": "x" * 10**5}], "row 1"),
    ):
        answer = client.post("/probabilities", json={"rows": rows})
        assert (answer.status_code, part in answer.json()["error"]) == (422, True)
        assert len(answer.json()["error"]) < 400


def test_hints_name_the_column_of_the_run(engine: RunEngine) -> None:
    """That of a file of one's own, and that of a task of the table."""
    for task, column in (
        (replace(engine.system.task, columns=Columns("text", "label")), "text"),
        (replace(engine.system.task, name="ag_news", columns=None), "text"),
        (replace(engine.system.task, name="micro-wgs", columns=None), "question"),
    ):
        other = RunEngine(replace(engine.system, task=task), samples=SAMPLES)
        with TestClient(create_app(other)) as client:
            assert client.get("/health").json()["text_column"] == column
            for body in (b"", b"[]", b"\xff", b'{"rows": 3}', b'{"rows": '):
                answer = client.post("/draws", content=body, headers={"Content-Type": "application/json"})
                assert f'send {{"rows": [{{"{column}": "..."}}]}}' in answer.json()["error"]


def test_other_fields_are_not_read_and_numbers_are_texts(client: TestClient) -> None:
    [plain] = post(client, "/draws", [{"question": "is the fox red ?"}])
    assert post(client, "/draws", [{"question": "is the fox red ?", "contxt": "no"}]) == [plain]
    assert post(client, "/draws", [{"question": 5}]) == post(client, "/draws", [{"question": "5"}])


def test_paths_and_ways_that_there_are_not(client: TestClient) -> None:
    assert client.post("/predict", json={}).status_code == 404
    assert "/uncertainty" in client.post("/predict", json={}).json()["error"]
    assert client.get("/draws").status_code == 405
    assert client.get("/draws").json()["error"] == "/draws does not accept GET: use POST."
    form = client.post("/draws", content='{"rows": []}', headers={"Content-Type": "text/plain"})
    assert (form.status_code, "Content-Type" in form.json()["error"]) == (422, True)
    assert client.get("/docs").status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/probabilities", "/uncertainty", "/draws", "/health", "/metrics"}


def test_a_body_is_not_read_beyond_its_limit(engine: RunEngine) -> None:
    body = b"[" + b" " * 2000
    with TestClient(create_app(engine, ServerLimits(max_bytes=1000))) as client:
        answer = client.post("/draws", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, "1000 bytes: send fewer rows" in answer.json()["error"]) == (413, True)
    taken: list[int] = []

    async def receive() -> Message:
        taken.append(400)
        return {"type": "http.request", "body": b" " * 400, "more_body": True}

    async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    async def send(message: Message) -> None:
        pytest.fail(f"nothing was asked for, and {message} sent")

    with pytest.raises(HTTPException):
        asyncio.run(middleware.Limited(reads_all, 1000)({"type": "http"}, receive, send))
    assert sum(taken) == 1200
    announced = {"type": "http", "headers": [(b"content-length", b"1001")]}
    with pytest.raises(HTTPException):
        asyncio.run(middleware.Limited(reads_all, 1000)(announced, receive, send))
    assert sum(taken) == 1200  # what is too long by its own account is not read at all


class Held:
    """An engine that answers when it is let go, and fails for a row called "fails"."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()

    about = {"samples": 1}  # noqa: RUF012

    def read(self, rows: Sequence[dict]) -> tuple[list[dict], list[str]]:
        return list(rows), ["a note"]

    def compute(self, rows: Sequence[dict]) -> list[Answer]:
        self.begun.set()
        self.go.wait()
        if any(row["id"] == "fails" for row in rows):
            raise RuntimeError("no such row. Really")
        return [Answer({"id": row["id"], "label": "a", "probs": {"a": 1.0}}, ("a",), [[1.0]]) for row in rows]


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    engine = Held()
    app = create_app(engine, ServerLimits(max_batch=1, queue_size=3))  # type: ignore[arg-type]
    with TestClient(app) as client, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, "/draws", json={"rows": [{"id": str(i)}]}) for i in range(3)]
        engine.begun.wait()
        while client.get("/health").json()["rows_held"] < 3:
            pass
        refused = client.post("/draws", json={"rows": [{"id": "4"}]})
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert "is full" in refused.json()["error"]
        more = client.post("/draws", json={"rows": [{"id": str(i)} for i in range(4)]})
        assert (more.status_code, "at most 3" in more.json()["error"]) == (413, True)
        engine.go.set()
        assert [one.result().json()["rows"][0]["id"] for one in asked] == ["0", "1", "2"]
        assert client.post("/draws", json={"rows": [{"id": "4"}]}).json()["notes"] == ["a note"]
        assert client.get("/health").json()["rows_held"] == 0


def test_nothing_more_is_computed_for_a_client_that_is_gone() -> None:
    computed: list[str] = []

    class Counting(Held):
        def compute(self, rows: Sequence[dict]) -> list[Answer]:
            computed.extend(row["id"] for row in rows)
            return super().compute(rows)

    engine = Counting()
    app = create_app(engine, ServerLimits(max_batch=2))  # type: ignore[arg-type]
    gone, sent = asyncio.Event(), []

    def scope() -> Scope:
        headers = [(b"content-type", b"application/json")]
        return {"type": "http", "method": "POST", "path": "/draws", "query_string": b"", "headers": headers}

    def client(rows: list[str], end: asyncio.Event) -> Receive:
        body = json.dumps({"rows": [{"id": name} for name in rows]}).encode()
        messages: list[Message] = [{"type": "http.request", "body": body}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await end.wait()
            return {"type": "http.disconnect"}

        return receive

    async def send(message: Message) -> None:
        sent.append(message)

    async def talk() -> None:
        async with app.router.lifespan_context(app):
            leaves = asyncio.create_task(app(scope(), client([f"{i}" for i in range(9)], gone), send))
            await asyncio.to_thread(engine.begun.wait)
            gone.set()
            try:
                await asyncio.wait_for(leaves, 60)
            finally:
                engine.go.set()
            sent.clear()
            await app(scope(), client(["stays"], asyncio.Event()), send)

    asyncio.run(talk())
    assert computed == ["0", "1", "stays"]
    assert [message.get("status") for message in sent] == [200, None]


def test_what_fails_is_told_to_whoever_asked_it_alone() -> None:
    engine = Held()
    app = create_app(engine, ServerLimits(max_wait=0.2))  # type: ignore[arg-type]
    with TestClient(app, raise_server_exceptions=False) as client, ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(client.post, "/probabilities", json={"rows": [{"id": name}]})
            for name in ("one", "fails", "two")
        ]
        engine.go.set()
        found = [one.result() for one in asked]
    assert [answer.status_code for answer in found] == [200, 500, 200]
    sentence = "The answer could not be computed (RuntimeError: no such row; Really)."
    assert found[1].json() == {"error": sentence}


def test_health_says_what_answers(client: TestClient) -> None:
    answer = client.get("/health")
    assert answer.status_code == 200
    about = {"method": "bara-gate", "task": "colours", "classes": ["no", "yes"], "samples": SAMPLES}
    about |= {"seed": 0, "text_column": "question"}
    assert answer.json() == {"status": "ok", **about, "rows_held": 0}


def test_metrics_count_what_was_asked(engine: RunEngine, rows: list[dict]) -> None:
    with TestClient(create_app(engine, ServerLimits(max_batch=8))) as client:
        for part in (rows[:20], rows[20:25]):
            post(client, "/draws", part)
        client.get("/nothing")
        client.post("/draws", json={"rows": []})
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["bara_requests_total", "/draws", "200"] == 2
    assert found["bara_requests_total", "/draws", "422"] == 1
    assert found["bara_requests_total", "404", "other"] == 1
    assert found["bara_rows_total",] == found["bara_batch_rows_sum",] == 25
    assert found["bara_batch_rows_count",] == found["bara_batch_seconds_count",] == 4  # 8 + 8 + 4, and 5
    assert found["bara_request_seconds_count", "/draws"] == 3
    assert found["bara_rows_held",] == 0


def test_the_posterior_mean_is_served_as_one_draw(run: Path, rows: list[dict]) -> None:
    engine = RunEngine(load_system(run, with_rows=False), samples=0)
    with TestClient(create_app(engine)) as client:
        [row] = client.post("/draws", json={"rows": rows[:1]}).json()["rows"]
        [sure] = client.post("/uncertainty", json={"rows": rows[:1]}).json()["rows"]
    assert len(row["draws"]) == 1
    assert sure["epistemic"] == 0


def test_memory_budget_and_batches_change_nothing(run: Path, rows: list[dict], engine: RunEngine) -> None:
    rows = rows[:10]
    small = RunEngine(load_system(run, with_rows=False), samples=SAMPLES, memory_budget=1)
    questions, notes = engine.read(rows)
    assert notes == []

    def drawn(answers: Sequence[Answer]) -> list[float]:
        return [p for answer in answers for draw in answer.draws for p in draw]

    expected = drawn(engine.compute(questions))
    assert drawn(small.compute(questions)) == pytest.approx(expected, abs=ROUNDING)
    one_by_one: list[QueuedQuestion] = [small.read([row])[0][0] for row in rows]
    alone = [answer for question in one_by_one for answer in engine.compute([question])]
    assert drawn(alone) == pytest.approx(expected, abs=ROUNDING)
    # Two requests may call different questions by the same name.
    twins = [
        engine.read([{"id": "twin", "question": text}])[0][0]
        for text in ("is the fox red ?", "is the owl blue ?")
    ]
    both = engine.compute(twins)
    for answer, twin in zip(both, twins, strict=True):
        assert drawn([answer]) == pytest.approx(drawn(engine.compute([twin])), abs=ROUNDING)


def test_an_ensemble_has_as_many_draws_as_members(place: Place, rows: list[dict], tmp_path: Path) -> None:
    train(place.config(method="ensemble", train__steps=2), tmp_path / "run")
    engine = RunEngine(load_system(tmp_path / "run", with_rows=False), samples=10)
    with TestClient(create_app(engine)) as client:
        found = client.post("/draws", json={"rows": rows[:2]}).json()
        assert found["samples"] == len(found["rows"][0]["draws"]) == 3
        assert client.get("/health").json()["samples"] == 3


def test_runs_of_replies_are_refused(run: Path) -> None:
    system = load_system(run, with_rows=False)
    task = system.config.task.model_copy(update={"likelihood": "completion"})
    object.__setattr__(system, "config", system.config.model_copy(update={"task": task}))
    with pytest.raises(ConfigError, match="learns replies"):
        RunEngine(system)


@pytest.mark.parametrize("said", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_called_json_in_several_ways(said: str, client: TestClient) -> None:
    body = b'{"rows": [{"question": "is the fox red ?"}]}'
    assert client.post("/draws", content=body, headers={"Content-Type": said}).status_code == 200


def test_a_text_of_megabytes_is_answered_as_what_is_kept_of_it(client: TestClient) -> None:
    beginning = "is the fox red no yes "
    row = {"id": "a", "question": "is the fox red ?", "context": beginning * 20}
    expected = post(client, "/draws", [row])
    assert post(client, "/draws", [{**row, "context": beginning * 300_000}]) == expected


def test_requests_are_read_in_turn(engine: RunEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large request is made tokens, a small one that came later is read to its end."""
    order: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def encoded(*given: object) -> EncodedSplit:
        begun.set()
        go.wait()
        split = encode_rows(*given)  # type: ignore[arg-type]
        order.append(split.ids[0].split("-")[0])
        return split

    monkeypatch.setattr(reading, "encode_rows", encoded)
    monkeypatch.setattr(reading, "PART", 1)
    large = [{"id": f"large-{i}", "question": "is the fox red ?"} for i in range(20)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(engine.read, large)
        begun.wait()
        second = pool.submit(engine.read, [{"id": "small", "question": "is the cow red ?"}])
        while engine._tokenizing._work_queue.qsize() < 1:
            pass
        go.set()
        assert [question.example.id for question in first.result()[0]] == [row["id"] for row in large]
        second.result()
    assert order.index("small") < 3


@pytest.mark.parametrize(
    ("host", "more", "ours", "others"),
    [
        ("127.0.0.1", (), ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"], ["evil.example", "[x"]),
        ("127.0.0.1", ("a.example",), ["a.example:1"], ["b.example", "127.0.0.1.evil.example", "10.0.0.1"]),
        ("0.0.0.0", (), ["10.0.0.1:8000", "[fe80::1]", "localhost"], ["evil.example", "10.0.0.1.example"]),
        ("models.example", ("*",), ["anything.example"], []),
    ],
)  # fmt: skip
def test_only_hosts_that_the_server_goes_by_are_answered(
    engine: RunEngine, host: str, more: tuple[str, ...], ours: list[str], others: list[str]
) -> None:
    with TestClient(create_app(engine, hosts=hosts_of(host, more))) as client:
        for name in ours:
            assert client.get("/health", headers={"Host": name}).status_code == 200, name
        for name in others:
            refused = client.get("/health", headers={"Host": name})
            assert (refused.status_code, "--allowed-host" in refused.json()["error"]) == (400, True), name


def test_a_page_of_another_site_gets_no_leave(client: TestClient) -> None:
    asked = {"Origin": "http://elsewhere", "Access-Control-Request-Method": "POST"}
    leave = client.options("/draws", headers=asked)
    assert leave.status_code == 405
    body = b'{"rows": [{"question": "is the fox red ?"}]}'
    for headers in (
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/evil+json"},
        {"Content-Type": "text/application/json"},
    ):
        answer = client.post("/draws", content=body, headers={"Origin": "http://elsewhere", **headers})
        assert answer.status_code == 422
        assert not any(name.startswith("access-control") for name in answer.headers)
