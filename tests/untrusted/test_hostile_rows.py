"""Files of rows and of answers that never end, are nested without end, or are no files."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from bara_pyro.data.reading import lines_in
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError
from bara_pyro.extras.lmeval.command import _results_in
from bara_pyro.extras.replies.reward.files import scores_in
from bara_pyro.extras.replies.sandbox.humaneval import load_humaneval
from bara_pyro.runs.answers import answers_in, comparison_page_in, holds_replies, judged_in, reply_page_in
from bara_pyro.untrusted.schemas import MOST_JSON

HUGE = 10 * 2**30
DEEP = b"[" * 100_000


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)  # nothing of it is on the disk


def long_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(200 * 2**20)


def deep(path: Path) -> None:
    path.write_bytes(b'{"text": ' + DEEP)


def deep_list(path: Path) -> None:
    path.write_bytes(DEEP)


HOSTILE = [
    *(pipe, device, deep, deep_list),
    *(pytest.param(make, marks=pytest.mark.slow) for make in (hole, long_line)),
]


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_rows_are_refused_with_bounded_memory(
    make: Callable[[Path], None], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows{suffix}"
    make(path)
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_table(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A text of JSON is read as a whole, as bytes and as text.
    assert peak < (3 * 200 * 2**20 if (make, suffix) == (long_line, ".json") else 5 * MOST_JSON)


def test_a_long_line_of_utf_16_is_refused_within_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(b"\xff\xfe")
        file.truncate(HUGE)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="line 1 has more than"):
            next(lines_in(path))
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST_JSON
    finally:
        tracemalloc.stop()


OURS = (
    *(answers_in, scores_in, _results_in, holds_replies, judged_in),
    *(reply_page_in, comparison_page_in),
)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("make", HOSTILE)
def test_none_of_them_is_taken_for_ours(
    ours: Callable[[Path], bool], make: Callable[[Path], None], tmp_path: Path
) -> None:
    for suffix in (".jsonl", ".csv", ".parquet") if ours is answers_in else (".html",):
        path = tmp_path / f"file{suffix}"
        make(path)
        assert not ours(path)


def test_problems_that_unpack_without_end(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(MOST_JSON // 2**20 + 1):
            file.write(bytes(2**20))
    with pytest.raises(DataError, match="more than"):
        load_humaneval(path)
