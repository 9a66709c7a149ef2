"""Micro-batches by themselves: who gets which answer, what waits, what is refused, what fails alone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")

from bara_pyro.extras.serve.http.batcher import Batcher, FullError


class Squares:
    """Answers numbers by their squares and remembers its batches; negative ones fail."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.begun.set()
        self.go.wait()
        if min(numbers) < 0:
            raise ValueError(f"{min(numbers)} is negative")
        if 1000 in numbers:
            return []
        return [number**2 for number in numbers]


Asks = Callable[[Batcher[int, int]], Awaitable[None]]


def running(asks: Asks, squares: Squares, **settings: float) -> None:
    """Run a test against a batcher of its own."""

    async def test() -> None:
        chosen = {"max_rows": 8, "max_wait": 0.001, "capacity": 1000} | settings
        batcher = Batcher(squares, **chosen)  # type: ignore[arg-type]
        batcher.start()
        try:
            await asyncio.wait_for(asks(batcher), 60)
        finally:
            squares.go.set()
            await batcher.close()

    asyncio.run(test())


@pytest.mark.parametrize("max_rows", [1, 3, 8, 500])
def test_each_request_gets_its_own_answers_in_order(max_rows: int) -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        requests = [list(range(i, i + 1 + i % 5)) for i in range(200)]
        found = await asyncio.gather(*map(batcher.answer, requests))
        assert found == [[n**2 for n in request] for request in requests]

    running(asks, squares, max_rows=max_rows)
    assert max(map(len, squares.batches)) <= max_rows
    # Each once, and first come, first served where a request fits a batch.
    asked = [n for i in range(200) for n in range(i, i + 1 + i % 5)]
    computed = [n for batch in squares.batches for n in batch]
    assert sorted(computed) == sorted(asked)
    assert max_rows < 5 or computed == asked
    assert len(squares.batches) >= 600 / max_rows


def test_what_comes_within_the_wait_is_computed_together() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        first = asyncio.create_task(batcher.answer([1]))
        await asyncio.sleep(0)
        await asyncio.gather(first, batcher.answer([2]), batcher.answer([3]))

    running(asks, squares, max_wait=0.5)
    assert squares.batches == [[1, 2, 3]]


def test_a_full_batch_does_not_wait() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        assert await batcher.answer(range(16)) == [n**2 for n in range(16)]

    running(asks, squares, max_wait=3600)
    assert list(map(len, squares.batches)) == [8, 8]


def test_what_comes_while_a_batch_is_computed_gathers() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        squares.go.clear()
        first = asyncio.create_task(batcher.answer([1]))
        await asyncio.to_thread(squares.begun.wait)
        rest = [asyncio.create_task(batcher.answer([n])) for n in (2, 3, 4)]
        await asyncio.sleep(0)
        squares.go.set()
        await asyncio.gather(first, *rest)

    running(asks, squares)
    assert squares.batches == [[1], [2, 3, 4]]


def test_what_finds_no_room_is_refused_and_room_comes_back() -> None:
    async def asks(batcher: Batcher[int, int]) -> None:
        with batcher.room(7):
            assert batcher.held == 7
            with pytest.raises(FullError) as full, batcher.room(4):
                pytest.fail("there was room")
            assert full.value.retry_after >= 1
            with batcher.room(3):
                assert batcher.held == 10
        assert batcher.held == 0
        with pytest.raises(KeyError), batcher.room(10):
            raise KeyError
        assert batcher.held == 0

    running(asks, Squares(), capacity=10)


def test_one_that_fails_fails_alone() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        asked = [batcher.answer([n]) for n in (1, -2, 3, 4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert (found[0], found[2], found[3]) == ([1], [9], [16])
        assert isinstance(found[1], ValueError)
        assert await batcher.answer([5]) == [25]
        assert batcher.running

    running(asks, squares)
    assert squares.batches == [[1, -2, 3, 4], [1], [-2], [3], [4], [5]]


def test_too_few_answers_are_a_failure_and_no_end() -> None:
    async def asks(batcher: Batcher[int, int]) -> None:
        with pytest.raises(ValueError, match="zip"):
            await batcher.answer([1000])
        assert await batcher.answer([5]) == [25]

    running(asks, Squares())


def test_whoever_is_gone_is_not_computed() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        squares.go.clear()
        first = asyncio.create_task(batcher.answer([1]))
        await asyncio.to_thread(squares.begun.wait)
        gone, stays = (asyncio.create_task(batcher.answer([n])) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        squares.go.set()
        assert await asyncio.gather(first, stays) == [[1], [9]]

    running(asks, squares)
    assert squares.batches == [[1], [3]]


def test_a_long_request_lets_others_in_after_each_batch() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        squares.go.clear()
        long = asyncio.create_task(batcher.answer(range(40)))
        await asyncio.to_thread(squares.begun.wait)
        short = asyncio.create_task(batcher.answer([100, 101]))
        other = asyncio.create_task(batcher.answer(range(200, 212)))
        await asyncio.sleep(0)
        squares.go.set()
        await asyncio.gather(long, short, other)

    running(asks, squares)
    assert [batch[0] // 100 for batch in squares.batches] == [0, 0, 1, 2, 0, 0, 0]
    assert squares.batches[1] == [8, 9, 10, 11, 12, 13, 14, 15]  # its turn had come before the others did
    assert squares.batches[2] == [100, 101, 200, 201, 202, 203, 204, 205]


def test_a_request_that_is_given_up_ends_with_its_batch() -> None:
    squares = Squares()

    async def asks(batcher: Batcher[int, int]) -> None:
        squares.go.clear()
        gone = asyncio.create_task(batcher.answer(range(40)))
        await asyncio.to_thread(squares.begun.wait)
        stays = asyncio.create_task(batcher.answer([100]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        squares.go.set()
        assert await stays == [10_000]

    running(asks, squares)
    assert squares.batches == [list(range(8)), [100]]


def test_close_cancels_what_waits() -> None:
    async def asks(batcher: Batcher[int, int]) -> None:
        waiting = asyncio.create_task(batcher.answer([1]))
        await asyncio.sleep(0)
        await batcher.close()
        assert not batcher.running
        with pytest.raises(asyncio.CancelledError):
            await waiting

    running(asks, Squares(), max_wait=3600)
