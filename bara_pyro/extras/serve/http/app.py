"""The paths of a server: what is asked of each, and how it refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from bara_pyro import __version__
from bara_pyro.errors import BaraError
from bara_pyro.extras.serve.http import schema
from bara_pyro.extras.serve.http.batcher import Batcher, FullError
from bara_pyro.extras.serve.http.engine import Answer, Engine, QueuedQuestion
from bara_pyro.extras.serve.http.meters import CONTENT_TYPE, Meters
from bara_pyro.extras.serve.http.middleware import ANY, MOST_BYTES, Counted, Limited, Stoppable, Trusted
from bara_pyro.moved import old_names
from bara_pyro.types import Fields, Json

READERS = 8
"""Requests that are read at once."""
MOST_SAID = 360
"""Characters of a refusal; a request can have far longer names in it."""

QUESTIONS = ("/probabilities", "/uncertainty", "/draws")
PATHS = frozenset({*QUESTIONS, "/health", "/metrics", "/openapi.json"})
Say = Callable[[Answer], Json]
Ask = Callable[[Request, Say], Awaitable[Response]]
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.Refusal} for code in (400, 408, 413, 422, 500, 503)
}
BODY: Json = {
    "content": {"application/json": {"schema": schema.RowRequest.model_json_schema()}},
    "required": True,
}
ASKED: dict[str, Any] = {"responses": REFUSALS, "openapi_extra": {"requestBody": BODY}}


@dataclass(frozen=True)
class ServerLimits:
    """How much is computed together, and how much may wait.

    Attributes:
        max_batch: rows a batch.
        max_wait: seconds that a row waits for others while nothing is computed.
        queue_size: rows that may wait or be computed at once; a request that finds no room is refused.
        max_bytes: of the body of a request; a longer one is refused before it is in memory.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    queue_size: int = 4096
    max_bytes: int = MOST_BYTES


def create_app(
    engine: Engine, limits: ServerLimits | None = None, *, hosts: Collection[str] = (ANY,)
) -> FastAPI:
    """Return an ASGI application that answers questions.

    Args:
        engine: what answers, for example a `RunEngine`.
        limits: of batches, queue and requests.
        hosts: names and addresses that requests may have in their header Host (`server.hosts_of` returns
            those of a socket); by default any, for a server of your own that looks after that.
    """
    limits = limits or ServerLimits()
    meters = Meters(lambda: batcher.held)
    batcher: Batcher[QueuedQuestion, Answer] = Batcher(
        engine.compute,
        max_rows=limits.max_batch,
        max_wait=limits.max_wait,
        capacity=limits.queue_size,
        on_batch=meters.batch,
    )
    readers = ThreadPoolExecutor(READERS, "read")
    form = schema.right_form(engine.about.get("text_column", "question"))

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.close()
        readers.shutdown(wait=False, cancel_futures=True)

    async def asked_rows(request: Request) -> list[Fields]:
        body = await request.body()
        if body and not schema.is_json(request.headers.get("content-type", "")):
            raise HTTPException(422, f"The request does not say that it is JSON: {form} {schema.JSON_TYPE}.")
        # JSON, too, is read beside the event loop, which all requests share.
        rows = await asyncio.get_running_loop().run_in_executor(readers, schema.request_rows, body, form)
        if len(rows) > limits.queue_size:
            raise HTTPException(
                413, f"The request has {len(rows)} rows: send at most {limits.queue_size} at a time."
            )
        return rows

    async def ask(request: Request, say: Say) -> JSONResponse:
        rows = await asked_rows(request)
        with batcher.room(len(rows)):
            try:
                questions, notes = await asyncio.get_running_loop().run_in_executor(
                    readers, engine.read, rows
                )
            except BaraError as error:
                raise HTTPException(422, str(error)) from error
            answers = await while_there(request, batcher.answer(questions))
        said = [say(answer) for answer in answers]
        return JSONResponse({"samples": engine.about["samples"], "rows": said, "notes": notes})

    # No pages of documentation: they load scripts from elsewhere. /openapi.json says the same.
    app = FastAPI(title="bara serve", version=__version__, lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Limited, most=limits.max_bytes)
    app.add_middleware(Trusted, hosts=hosts)
    app.add_middleware(Stoppable)
    app.add_middleware(Counted, meters=meters, paths=PATHS)
    _add_questions(app, ask)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Whether questions are being answered, by what, and how many wait."""
        alive = batcher.running
        found = {"status": "ok" if alive else "stopped", **engine.about, "rows_held": batcher.held}
        return JSONResponse(found, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts and times, in Prometheus' text format."""
        return Response(meters.text(), media_type=CONTENT_TYPE)

    _add_refusals(app)
    return app


async def while_there(request: Request, answers: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Return answers to a request whose body has been read; they are cancelled once its client is gone.

    Raises:
        ClientDisconnect: it is gone.
    """
    work, gone = asyncio.create_task(answers), asyncio.create_task(_departure(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_questions(app: FastAPI, ask: Ask) -> None:
    @app.post("/probabilities", response_model=schema.Probabilities, **ASKED)
    async def probabilities(request: Request) -> Response:
        """The posterior predictive: each class's probability, averaged over the draws."""
        return await ask(request, schema.probability_row)

    @app.post("/uncertainty", response_model=schema.Uncertainties, **ASKED)
    async def uncertainty(request: Request) -> Response:
        """Total, aleatoric and epistemic uncertainty, in nats."""
        return await ask(request, schema.uncertainty_row)

    @app.post("/draws", response_model=schema.DrawsReply, **ASKED)
    async def draws(request: Request) -> Response:
        """Each class's probability under each draw of the posterior."""
        return await ask(request, schema.draw_row)


def _add_refusals(app: FastAPI) -> None:
    """Let every refusal be one sentence, `{"error": ...}`."""

    @app.exception_handler(FullError)
    async def full(_: Request, error: FullError) -> JSONResponse:
        sentence = f"There is no room for more rows now: try again in {error.retry_after} s."
        return _refusal(503, sentence, {"Retry-After": str(error.retry_after)})

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        sentence, path = str(error.detail), request.url.path
        if error.status_code == 404:
            sentence = (
                f"There is nothing at {path}: POST to {', '.join(QUESTIONS)}, or GET /health or /metrics."
            )
        elif error.status_code == 405:
            way = "POST" if path in QUESTIONS else "GET"
            sentence = f"{path} does not take {request.method}: {way} it."
        return _refusal(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> JSONResponse:
        return _refusal(400, "The request ended before its body did: send it again.")

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        reason = " ".join(str(error).split())[:200].rstrip(".").replace(". ", "; ")
        return _refusal(500, f"The answer could not be computed ({type(error).__name__}: {reason}).")


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # What is quoted of a request may hold half a character, which UTF-8 lacks.
    said = sentence.encode(errors="backslashreplace").decode()
    if len(said) > MOST_SAID:
        half = MOST_SAID // 2
        said = f"{said[:half]}[...]{said[-half:]}"
    return JSONResponse({"error": said}, status, headers)


__getattr__ = old_names(__name__)
