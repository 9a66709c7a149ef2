"""Define the HTTP application: its endpoints and its error responses."""

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
from bara_pyro.extras.serve.http.middleware import (
    ANY,
    CONTENT_TYPE,
    MOST_BYTES,
    Counted,
    Limited,
    Meters,
    Stoppable,
    Trusted,
)
from bara_pyro.types import Fields, Json

READERS = 8
"""Threads that parse and tokenize requests."""
MOST_SAID = 360
"""Most characters of an error message; a request can contain far longer names."""

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
    """Sizes of batches, of the queue and of requests.

    Attributes:
        max_batch: most rows in a batch.
        max_wait: seconds to wait for a batch to fill while nothing is computed.
        queue_size: most rows that wait or are computed at once; requests beyond that get a 503.
        max_bytes: most bytes in a request body; a longer one is refused before it is read into memory.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    queue_size: int = 4096
    max_bytes: int = MOST_BYTES


def create_app(
    engine: Engine, limits: ServerLimits | None = None, *, hosts: Collection[str] = (ANY,)
) -> FastAPI:
    """Return an ASGI application that serves an engine.

    Args:
        engine: computes the answers, for example a `RunEngine`.
        limits: sizes of batches, of the queue and of requests.
        hosts: names and addresses accepted in the Host header; `server.hosts_of` returns those of a socket.
            By default any host is accepted, so a server of your own has to check it.
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
            raise HTTPException(422, f"The request is not declared as JSON: {form} {schema.JSON_TYPE}.")
        # Parse in a thread: all requests share the event loop.
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
        outputs = [say(answer) for answer in answers]
        return JSONResponse({"samples": engine.about["samples"], "rows": outputs, "notes": notes})

    # No documentation pages: they load scripts from other hosts. /openapi.json has the same content.
    app = FastAPI(title="bara serve", version=__version__, lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Limited, most=limits.max_bytes)
    app.add_middleware(Trusted, hosts=hosts)
    app.add_middleware(Stoppable)
    app.add_middleware(Counted, meters=meters, paths=PATHS)
    _add_questions(app, ask)

    @app.get("/health")
    async def health() -> JSONResponse:
        """Return the server's status, what it serves and how many rows it holds."""
        alive = batcher.running
        health = {"status": "ok" if alive else "stopped", **engine.about, "rows_held": batcher.held}
        return JSONResponse(health, 200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counts and timings in Prometheus' text format."""
        return Response(meters.text(), media_type=CONTENT_TYPE)

    _add_refusals(app)
    return app


async def while_there(request: Request, answers: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Return the answers to a request, or cancel them if its client disconnects.

    Call this after the request's body has been read.

    Raises:
        ClientDisconnect: the client disconnected first.
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
        """Return the posterior predictive: the probability of each class, averaged over draws."""
        return await ask(request, schema.probability_row)

    @app.post("/uncertainty", response_model=schema.Uncertainties, **ASKED)
    async def uncertainty(request: Request) -> Response:
        """Return the posterior predictive with total, aleatoric and epistemic uncertainty, in nats."""
        return await ask(request, lambda answer: dict(answer.said))

    @app.post("/draws", response_model=schema.DrawsReply, **ASKED)
    async def draws(request: Request) -> Response:
        """Return the probability of each class under each posterior draw."""
        return await ask(request, schema.draw_row)


def _add_refusals(app: FastAPI) -> None:
    """Return every error as `{"error": MESSAGE}`."""

    @app.exception_handler(FullError)
    async def full(_: Request, error: FullError) -> JSONResponse:
        sentence = f"The queue is full: try again in {error.retry_after} s."
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
            sentence = f"{path} does not accept {request.method}: use {way}."
        return _refusal(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> JSONResponse:
        return _refusal(400, "The client disconnected before the whole body arrived: send it again.")

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        reason = " ".join(str(error).split())[:200].rstrip(".").replace(". ", "; ")
        return _refusal(500, f"The answer could not be computed ({type(error).__name__}: {reason}).")


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # Text quoted from a request may contain a lone surrogate, which UTF-8 cannot encode.
    text = sentence.encode(errors="backslashreplace").decode()
    if len(text) > MOST_SAID:
        half = MOST_SAID // 2
        text = f"{text[:half]}[...]{text[-half:]}"
    return JSONResponse({"error": text}, status, headers)
