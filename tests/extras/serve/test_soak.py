"""Good requests beside half-open connections and over-long texts: all answered, in bounded memory."""

import json
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from serving_cases import Served, ask, serving
from test_slow_clients import HALF, opened

pytest.importorskip("fastapi", reason="the extra serve is not installed: pip install 'bara-pyro[serve]'")

AT_ONCE = 16
LONG = "is the fox red no yes the cow is grey no yes " * 50_000
KEPT = 64 * 2**20
"""Bytes by which a server may grow after its first requests. Clients at once hold at most `AT_ONCE` bodies of
LONG (2.2 MB) with what is parsed of them, some 70 MB, which the allocator may keep. Requests that left their
bodies behind would take 110 MB over the long form, and ones that left 128 KiB behind 64 MiB."""


def one_row(served: Served, number: int) -> tuple[int, str]:
    row = {"id": str(number), "question": "is the fox red ?"}
    return number, ask(served.about["url"], "/probabilities", [row])["rows"][0]["id"]


def long_context(served: Served, number: int) -> tuple[int, str]:
    row = {"id": str(number), "question": "is the fox red ?", "context": LONG}
    found = ask(served.about["url"], "/probabilities", [row])
    assert "cut to 64 tokens" in found["notes"][0]
    return number, found["rows"][0]["id"]


def long_question(served: Served, number: int) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(served.about["url"], "/probabilities", [{"question": LONG}])
    with refused.value as answer:
        assert "longer than 64 tokens" in json.load(answer)["error"]
        return number, str(number) if answer.code == 422 else ""


@pytest.mark.slow
def test_a_server_among_bad_clients(run: Path) -> None:
    requests, half_open, long = 512, 50, 50
    with serving(run, "--samples", 2) as served, ThreadPoolExecutor(AT_ONCE) as pool:
        calls = [
            *(partial(long_context if i % 2 else long_question, served) for i in range(long)),
            *(partial(one_row, served) for _ in range(requests)),
        ]
        order = sorted(range(len(calls)), key=lambda i: (i * 7919) % len(calls))  # all kinds among each other
        warm = [calls[0], calls[1], *[calls[-1]] * AT_ONCE]
        list(pool.map(lambda i: warm[i % len(warm)](i), range(2 * len(warm))))
        before, began = served.rss(), time.perf_counter()
        kinds = list(HALF.values())
        held = [opened(served, kinds[i % len(kinds)]) for i in range(half_open)]
        found = list(pool.map(lambda i: calls[i](i), order))
        seconds, after = time.perf_counter() - began, served.rss()
        for connection in held:
            connection.close()
        errors = served.errors.read_text()
    assert [told for _, told in found] == [str(i) for i in order]
    assert "Traceback" not in errors
    assert after - before < KEPT
    print(
        f"\n{requests} requests, {half_open} half-open, {long} over-long: {seconds:.1f} s, "
        f"RSS {before / 2**20:.0f} to {after / 2**20:.0f} MiB, {len(errors)} bytes of messages"
    )
