"""The paths of a server: what is asked of each, and how it refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from bara_pyro import __version__
from bara_pyro.errors import BaraError
from bara_pyro.serving import schema
from bara_pyro.serving.batcher import Batcher, FullError
from bara_pyro.serving.engine import Answer, Engine, Question
from bara_pyro.serving.meters import CONTENT_TYPE, Meters
from bara_pyro.serving.middleware import Counted, Limited
from bara_pyro.types import Json

QUESTIONS = ("/probabilities", "/uncertainty", "/draws")
PATHS = frozenset({*QUESTIONS, "/health", "/metrics", "/openapi.json"})
Say = Callable[[Answer], Json]
Ask = Callable[[schema.Asked, Say], Awaitable[Response]]
REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": schema.Refusal} for code in (400, 413, 422, 500, 503)
}


@dataclass(frozen=True)
class Limits:
    """How much is computed together, and how much may wait.

    Attributes:
        max_batch: rows a batch.
        max_wait: seconds that a row waits for others while nothing is computed.
        queue_size: rows that may wait or be computed at once; a request that finds no room is refused.
    """

    max_batch: int = 64
    max_wait: float = 0.005
    queue_size: int = 4096


def create_app(engine: Engine, limits: Limits | None = None) -> FastAPI:
    """Return an ASGI application that answers questions.

    Args:
        engine: what answers, for example a `RunEngine`.
        limits: of batches and queue.
    """
    limits = limits or Limits()
    meters = Meters(lambda: batcher.held)
    batcher: Batcher[Question, Answer] = Batcher(
        engine.compute,
        max_rows=limits.max_batch,
        max_wait=limits.max_wait,
        capacity=limits.queue_size,
        on_batch=meters.batch,
    )
    reader = ThreadPoolExecutor(1, "read")  # one: tokenizers are not made for several

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.close()
        reader.shutdown(wait=False, cancel_futures=True)

    async def ask(asked: schema.Asked, say: Say) -> JSONResponse:
        if len(asked.rows) > limits.queue_size:
            raise HTTPException(
                413, f"The request has {len(asked.rows)} rows: send at most {limits.queue_size} at a time."
            )
        with batcher.room(len(asked.rows)):
            loop = asyncio.get_running_loop()
            try:
                questions, notes = await loop.run_in_executor(reader, engine.read, asked.rows)
            except BaraError as error:
                raise HTTPException(422, str(error)) from error
            answers = await batcher.answer(questions)
        rows = [say(answer) for answer in answers]
        return JSONResponse({"samples": engine.about["samples"], "rows": rows, "notes": notes})

    # No pages of documentation: they load scripts from elsewhere. /openapi.json says the same.
    app = FastAPI(title="bara serve", version=__version__, lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Limited)
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

    _add_refusals(app, schema.right_form(engine.about.get("text_column", "question")))
    return app


def _add_questions(app: FastAPI, ask: Ask) -> None:
    @app.post("/probabilities", response_model=schema.Probabilities, responses=REFUSALS)
    async def probabilities(asked: schema.Asked) -> Response:
        """The posterior predictive: each class's probability, averaged over the draws."""
        return await ask(asked, schema.probability_row)

    @app.post("/uncertainty", response_model=schema.Uncertainties, responses=REFUSALS)
    async def uncertainty(asked: schema.Asked) -> Response:
        """Total, aleatoric and epistemic uncertainty, in nats."""
        return await ask(asked, schema.uncertainty_row)

    @app.post("/draws", response_model=schema.Draws, responses=REFUSALS)
    async def draws(asked: schema.Asked) -> Response:
        """Each class's probability under each draw of the posterior."""
        return await ask(asked, schema.draw_row)


def _add_refusals(app: FastAPI, form: str) -> None:
    """Let every refusal be one sentence, `{"error": ...}`; `form` says what a request looks like."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        return _refusal(
            400 if errors[0]["type"] == "json_invalid" else 422, schema.what_is_wrong(errors, form)
        )

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
        elif error.status_code == 400:
            sentence = schema.unreadable(error.__cause__, form)
        return _refusal(error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        reason = " ".join(str(error).split())[:200].rstrip(".").replace(". ", "; ")
        return _refusal(500, f"The answer could not be computed ({type(error).__name__}: {reason}).")


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    # What is quoted of a request may hold half a character, which UTF-8 lacks.
    said = sentence.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": said}, status, headers)
