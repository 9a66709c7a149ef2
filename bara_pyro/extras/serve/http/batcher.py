"""Batch questions of many requests: a bounded queue and one thread that computes."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")
LONGEST_RETRY = 60
"""Longest Retry-After, in seconds."""


class FullError(Exception):
    """The queue has no room for the questions.

    Attributes:
        retry_after: seconds after which to try again.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"no room for {retry_after} s")
        self.retry_after = retry_after


@dataclass
class _Request(Generic[Q, A]):
    """Waiting questions of a request, its time of arrival and the questions taken in this turn."""

    waiting: deque[tuple[Q, "asyncio.Future[A]"]]
    came: float
    taken: int = 0


class Batcher(Generic[Q, A]):
    """Answer questions in batches, first come, first served.

    A batch is computed once it is full or its oldest question has waited `max_wait` seconds; the next batch
    fills meanwhile. After each batchful of questions, a large request moves to the end of the queue. If a
    batch fails, its questions are computed one by one, so that one bad question does not fail the others.

    Args:
        compute: answers questions, in their order; it is called in one separate thread.
        max_rows: most questions in a batch.
        max_wait: seconds to wait for a batch to fill while nothing is computed.
        capacity: most questions that wait or are computed at once.
        on_batch: called after each batch with its size and its seconds.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Q]], Sequence[A]],
        *,
        max_rows: int,
        max_wait: float,
        capacity: int,
        on_batch: Callable[[int, float], None] | None = None,
    ) -> None:
        self.compute, self.max_rows, self.max_wait, self.capacity = compute, max_rows, max_wait, capacity
        self.held = 0
        self._on_batch = on_batch
        self._queue: deque[_Request[Q, A]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "compute")
        self._task: asyncio.Task[None] | None = None
        self._seconds_a_row = 0.0

    @property
    def running(self) -> bool:
        """Whether the batcher is answering questions."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start answering; call this in the event loop of the requests."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop, and cancel the questions that are still waiting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for request in self._queue:
            for _, future in request.waiting:
                future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def room(self, questions: int) -> Iterator[None]:
        """Reserve room for the questions of a request until it has been answered, or raise a `FullError`."""
        if self.held + questions > self.capacity:
            wait = math.ceil(self.held * self._seconds_a_row)
            raise FullError(min(LONGEST_RETRY, max(1, wait)))
        self.held += questions
        try:
            yield
        finally:
            self.held -= questions

    async def answer(self, questions: Sequence[Q]) -> list[A]:
        """Return the answers to the questions of a request, in their order.

        Cancelling this drops the questions that are still waiting.
        """
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[A]] = [loop.create_future() for _ in questions]
        if futures:
            self._queue.append(_Request(deque(zip(questions, futures, strict=True)), loop.time()))
            self._arrived.set()
        return await asyncio.gather(*futures)

    async def _run(self) -> None:
        while True:
            await self._gathered()
            if batch := self._next():
                await self._answer(batch)

    def _next(self) -> list[tuple[Q, asyncio.Future[A]]]:
        """Take the next batch from the queue."""
        batch: list[tuple[Q, asyncio.Future[A]]] = []
        while self._queue and len(batch) < self.max_rows:
            first = self._queue[0]
            question, future = first.waiting.popleft()
            if not future.done():  # the client may have disconnected
                batch.append((question, future))
                first.taken += 1
            if not first.waiting:
                self._queue.popleft()
            elif first.taken == self.max_rows:
                first.taken = 0
                self._queue.rotate(-1)
        return batch

    async def _gathered(self) -> None:
        """Wait until there is a batch to compute."""
        loop = asyncio.get_running_loop()
        while sum(len(request.waiting) for request in self._queue) < self.max_rows:
            oldest = min((request.came for request in self._queue), default=None)
            left = None if oldest is None else oldest + self.max_wait - loop.time()
            if left is not None and left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    async def _answer(self, batch: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        loop, began = asyncio.get_running_loop(), perf_counter()
        try:
            answers = await loop.run_in_executor(self._thread, self.compute, [q for q, _ in batch])
            answered = list(zip(batch, answers, strict=True))
        except Exception as error:  # noqa: BLE001 - every error is returned to the client
            if len(batch) > 1:
                for one in batch:
                    await self._answer([one])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        seconds = perf_counter() - began
        self._seconds_a_row = seconds / len(batch)
        if self._on_batch is not None:
            self._on_batch(len(batch), seconds)
        for (_, future), answer in answered:
            if not future.done():
                future.set_result(answer)
