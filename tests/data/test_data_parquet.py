"""Parquet files of a few kilobytes that stand for more rows than memory holds: one sentence each."""

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bara_pyro.data import tables
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError
from bara_pyro.untrusted import parquet

MIB = 2**20


def one_long_text(rows: int) -> pa.Table:
    """Each row has the same text, which the file holds once."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * (8 * MIB)]))
    return pa.table({"text": text, "label": ["x"] * rows})


def as_plain_texts(rows: int) -> pa.Table:
    """The same, of a column that is no category."""
    return one_long_text(rows).cast(pa.schema({"text": pa.string(), "label": pa.string()}))


def categories_in_lists(rows: int) -> pa.Table:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * (8 * MIB)]))
    return pa.table({"text": pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), words)})


def nothing(rows: int) -> pa.Table:
    return pa.table({"text": pa.nulls(10_000 * rows)})


def lists_of_nothing(rows: int) -> pa.Table:
    return pa.table({"text": pa.ListArray.from_arrays([0, 10_000 * rows], pa.nulls(10_000 * rows))})


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (one_long_text, 20),
        (as_plain_texts, 2),
        (categories_in_lists, 20),
        (nothing, 10),
        (lists_of_nothing, 10),
    ],
)
def test_what_stands_for_too_much_is_refused(
    table: Callable[[int], pa.Table], rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory that would not hold it."""
    path = tmp_path / "rows.parquet"
    pq.write_table(table(rows), path, compression="zstd", dictionary_pagesize_limit=2**31 - 1)
    assert path.stat().st_size < MIB
    monkeypatch.setattr(parquet, "MEMORY", 2**28)
    monkeypatch.setattr(parquet, "MOST", 4 * MIB)
    monkeypatch.setattr(tables, "MOST_WHOLE", 4 * MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"rows\.parquet takes more than .* once decoded") as refused:
        read_table(path)
    assert len(str(refused.value)) <= 200 + len(str(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


def test_a_page_that_decompresses_to_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file says of itself: the process that decodes it gets no more memory."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a" * (64 * MIB)]}), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < MIB
    monkeypatch.setattr(parquet, "MEMORY", 2**24)
    monkeypatch.setattr(parquet, "MOST", 2**40)
    with pytest.raises(DataError, match=r"rows\.parquet takes more than"):
        read_table(path)


def test_all_types_of_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame(
        {
            "text": ["one", None, "three"],
            "class": pd.Categorical(["b", "a", None], categories=["c", "b", "a"]),
            "list": [["x", "y"], [], None],
            "object": [{"a": 1}, None, {"a": None}],
            "number": [0.5, np.nan, 2.0],
            "day": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
            "bytes": [b"yes", b"\xff", None],
        }
    )
    frame.to_parquet(path)
    found = read_table(path)
    assert found.classes == {"class": ("c", "b", "a")}
    assert [row["class"] for row in found.rows] == ["b", "a", None]
    assert [row["list"] for row in found.rows] == [["x", "y"], [], None]
    assert [row["object"] for row in found.rows] == [{"a": 1}, None, {"a": None}]
    assert [row["number"] for row in found.rows] == [0.5, None, 2.0]
    assert [row["bytes"] for row in found.rows] == ["yes", b"\xff", None]
    assert str(found.rows[0]["day"]).startswith("2026-01-01")


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match="is empty"):
        read_table(path)


def test_a_damaged_page_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(5000)]}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_table(path)
