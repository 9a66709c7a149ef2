"""What a reading of the data layer found: rows that vanish, orders and names that change with the format."""

from pathlib import Path

import pandas as pd
import pytest
from app_cases import Place, write_rows

import bara_pyro as bp
from bara_pyro.data.questions import load_questions
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError
from bara_pyro.runs.rows import load_data

GRADES = ("low", "middle", "high")


def reviews(count: int = 12) -> list[dict]:
    return [{"text": f"text {i}", "label": GRADES[i % 3]} for i in range(count)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        # Every line has its two cells: the mark at the beginning of one took in those behind it.
        ("rows.tsv", 'text\tlabel\n"so it goes\ta\nmore\tb\nthe "end"\ta\n', "row 1 .* takes in the rows"),
        ("rows.tsv", 'text\tlabel\none\ta\n"two\tb\nthree\ta\n', "row 2 .*'two.* (takes in|nothing closes)"),
        ("rows.csv", 'label,text\na,one\nb,"two\na,three\nb,four\n', "row 2 .*'two' that nothing closes"),
        ("rows.csv", 'text,label\n"one,a\n', "row 1 .* that nothing closes"),
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
    with pytest.raises(DataError, match="row 2 has text behind a closing quotation mark: double the marks"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "separator"), [("rows.csv", ","), ("rows.tsv", "\t"), ("semicolons.csv", ";")]
)
def test_texts_with_marks_and_lines_are_read_as_pandas_wrote_them(
    name: str, separator: str, tmp_path: Path
) -> None:
    texts = ['she said "so"', "two\nlines", "a, b; c", '"', '""', 'ends in "', "one\n\nblank", ""]
    frame = pd.DataFrame({"text": texts, "label": list("abababab")})
    frame.to_csv(tmp_path / name, index=False, sep=separator)
    assert [row["text"] for row in read_table(tmp_path / name).rows] == texts


def test_blank_lines_at_the_end_of_one_column_are_none(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\none\n\ntwo\n\n\n")
    assert [row["text"] for row in read_table(tmp_path / "rows.csv").rows] == ["one", "", "two"]


def test_columns_that_differ_by_blanks_are_two_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text, text,label\na,b,c\n")
    with pytest.raises(DataError, match="two columns called 'text'"):
        read_table(tmp_path / "rows.csv")


def test_ids_of_a_column_with_gaps_are_whole_numbers(tmp_path: Path) -> None:
    """pandas makes floats of them; a file of the same rows has no point."""
    frame = pd.DataFrame(reviews()).assign(id=[*range(11), None])
    frame.astype({"id": "Int64"}).to_csv(tmp_path / "rows.csv", index=False)
    assert frame["id"].dtype == float
    theirs, ours = bp.load_task(str(tmp_path / "rows.csv")), bp.task_from_rows(frame, name="rows")
    for split in ("train", "test"):
        ids = [{row.id for row in getattr(task, split)} for task in (theirs, ours)]
        # The row without one is called after its place.
        assert ids[0] == ids[1]


@pytest.mark.parametrize("ordered", [True, False])
def test_the_order_of_categories_lives_through_parquet(ordered: bool, tmp_path: Path) -> None:
    frame = pd.DataFrame(reviews())
    kind = pd.CategoricalDtype([*GRADES, "none"], ordered=ordered)
    frame["label"] = frame["label"].astype(kind)
    frame["text"] = frame["text"].astype("string")
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    assert read_table(tmp_path / "rows.parquet").classes == {"label": (*GRADES, "none")}
    assert bp.load_task(str(tmp_path / "rows.parquet")).names == bp.task_from_rows(frame).names


def test_numbers_mean_classes_in_later_files_as_in_the_first(tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": GRADES.index(row["label"])} for row in reviews()]
    task = bp.task_from_rows(rows, classes=GRADES)
    found = load_questions(rows, task, answers=True)
    assert [row.label for row in found] == [row["label"] for row in rows]
    named = bp.task_from_rows(reviews())  # in the order of the alphabet, which no number was given for
    with pytest.raises(DataError, match="answer 0 is none of the labels high, low, middle"):
        load_questions(rows, named, answers=True)


def test_a_question_that_stands_in_train_with_another_answer_is_noted() -> None:
    rows = [{"question": f"is it {i % 6} ?", "label": "ab"[i // 6 % 2]} for i in range(24)]
    rows = [row | {"id": str(i)} for i, row in enumerate(rows)]
    notes = bp.task_from_rows(rows).notes
    assert any("24 rows have the text of another" in note for note in notes)
    assert not any("in train" in note for note in notes)
    contradicting = [{"question": "is it so ?", "label": "ab"[i == 0]} for i in range(20)]
    notes = bp.task_from_rows([{"question": f"q{i}", "label": "b"} for i in range(3)] + contradicting[1:],
                              test=[contradicting[0], {"question": "new", "label": "a"}]).notes  # fmt: skip
    assert "1 test rows have a text that stands in train with another answer" in notes


def test_a_limit_says_which_classes_it_leaves_out(tmp_path: Path) -> None:
    rows = sorted(reviews(30), key=lambda row: row["label"])
    file = write_rows(tmp_path / "rows.jsonl", rows)
    place = Place(Path("microworld"), file)
    notes = load_data(place.config(task__limit=5)).notes
    assert "no row left to train on has the answer low, middle" in notes
    assert not any("no row left" in note for note in load_data(place.config(task__limit=23)).notes)
