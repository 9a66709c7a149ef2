"""Tables of text: separators, quotation marks, blank lines, what spreadsheets write around a table."""

from pathlib import Path

import pandas as pd
import pytest

import bara_pyro as bp
from bara_pyro.data import load_task, task_from_rows
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        # Every line has its two cells: the mark at the beginning of one took in those behind it.
        ("rows.tsv", 'text\tlabel\n"so it goes\ta\nmore\tb\nthe end"\ta\n', "row 1 .* swallows the rows"),
        ("rows.tsv", 'text\tlabel\n"so it goes\ta\nthe "end"\ta\n', "row 1 has text after a closing quot"),
        ("rows.tsv", 'text\tlabel\none\ta\n"two\tb\nthree\ta\n', "row 2 .* never closed"),
        ("rows.csv", 'label,text\na,one\nb,"two\na,three\nb,four\n', "row 2 .* that is never closed"),
        ("rows.csv", 'text,label\n"one,a\n', "row 1 .* that is never closed"),
    ],
)
def test_an_open_quotation_mark_takes_no_rows_away(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=said):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "cell"), [("rows.tsv", '"so" she said'), ("rows.csv", '"so" she said'), ("rows.csv", '"a" "b"')]
)
def test_marks_around_the_first_words_are_not_lost(name: str, cell: str, tmp_path: Path) -> None:
    """The csv module leaves them out by itself."""
    separator = "\t" if name.endswith("tsv") else ","
    lines = [("text", "label"), ("one", "a"), (cell, "b"), ("two", "a")]
    (tmp_path / name).write_text("".join(f"{separator.join(line)}\n" for line in lines))
    with pytest.raises(DataError, match="row 2 has text after a closing quotation mark: double the marks"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "separator"), [("rows.csv", ","), ("rows.tsv", "\t"), ("semicolons.csv", ";"), ("bars.csv", "|")]
)
def test_texts_with_marks_and_lines_are_read_as_pandas_wrote_them(
    name: str, separator: str, tmp_path: Path
) -> None:
    texts = ['she said "so"', "two\nlines", "a, b; c", '"', '""', 'ends in "', "one\n\nblank", ""]
    frame = pd.DataFrame({"text": texts, "label": list("abababab")})
    frame.to_csv(tmp_path / name, index=False, sep=separator)
    assert [row["text"] for row in read_table(tmp_path / name).rows] == texts


def reviews(count, answers=("bad", "good")):
    return [{"question": f"Review {i}", "answer": answers[i % len(answers)]} for i in range(count)]


@pytest.mark.parametrize(
    "text",
    [
        "question,answer,,,\nq,a,,,\nr,b,,,\n",
        "question,answer,,,\nq,a\nr,b,\n",
        ",,,\nquestion,answer,,\nq,a,,\nr,b,,\n",
        "sep=,\nquestion,answer\nq,a\nr,b\n",
        "sep=;\r\nquestion;answer\r\nq;a\r\nr;b\r\n",
        '"sep=;"\nquestion;answer;\nq;a;\nr;b;\n',
        "SEP=|\n\nquestion|answer\nq|a\nr|b\n",
        "sep=\t\nquestion\tanswer\nq\ta\nr\tb\n",
    ],
)
def test_what_spreadsheets_write_around_a_table_is_no_part_of_it(text, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    assert read_table(path).rows == [{"question": "q", "answer": "a"}, {"question": "r", "answer": "b"}]


def test_tabs_part_a_tsv_whatever_its_header_holds(tmp_path):
    (tmp_path / "t.tsv").write_text("so, or, so, text\tanswer\nq, r\ta\n")
    assert read_table(tmp_path / "t.tsv").rows == [{"so, or, so, text": "q, r", "answer": "a"}]


def test_the_numbers_that_pandas_writes_before_rows_stay(tmp_path):
    pd.DataFrame(reviews(4)).to_csv(tmp_path / "t.csv")
    assert [row[""] for row in read_table(tmp_path / "t.csv").rows] == list("0123")


def test_blank_lines_of_one_column_are_rows(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("\ntext\nfirst\n\nthird\n\n\n")
    assert [row["text"] for row in read_table(file).rows] == ["first", "", "third"]
    file.write_text("\ntext,label\nfirst,a\n\nsecond,b\n\n")
    assert [row["text"] for row in read_table(file).rows] == ["first", "second"]
    file.write_text('text\n"one\n\ntwo"\nthree\n')
    assert [row["text"] for row in read_table(file).rows] == ["one\n\ntwo", "three"]


def test_long_cells_and_old_line_ends_are_read(tmp_path: Path) -> None:
    rows = [(f"word {i} " * 20_000, ["good", "bad"][i % 2]) for i in range(10)]
    long = tmp_path / "long.csv"
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(long, index=False)
    task = bp.task_from_rows(long)
    assert len(task.train) + len(task.test) == 10
    old = tmp_path / "old.csv"
    old.write_bytes(b"text,label\r" + b"".join(b"row %d,%s\r" % (i, b"ab"[i % 2 :][:1]) for i in range(10)))
    assert bp.task_from_rows(old).names == ("a", "b")


WORDS = ("awful", "fine", "superb")


ROWS = [{"text": f"film, number {i}", "label": WORDS[i % 3]} for i in range(30)]


def csv_text(separator, rows=ROWS):
    quote = '"{}"'.format
    return "\n".join(
        separator.join(map(quote, row)) for row in [("text", "label"), *(r.values() for r in rows)]
    )


@pytest.mark.parametrize(
    "content",
    [
        csv_text(";").encode(),
        csv_text("\t").encode("utf-8-sig"),
        csv_text(",").encode("utf-16"),
        csv_text(";").replace("\n", "\r\n").encode("utf-8-sig"),
    ],
)
def test_separators_and_byte_order_marks_are_found(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert load_task(str(path)) == task_from_rows(ROWS)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("before", [3, 8189, 70_000])
def test_the_byte_that_is_not_utf_8_is_counted_from_the_beginning(
    mark: bytes, before: int, tmp_path: Path
) -> None:
    data = mark + b"text\n" + b"a" * before + "é".encode() * 3 + b"\nb\n\xff\n"
    (tmp_path / "rows.csv").write_bytes(data)
    with pytest.raises(DataError, match=rf"byte {len(data) - 2}\)"):
        read_table(tmp_path / "rows.csv")
