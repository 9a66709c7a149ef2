"""A user's rows give the same task whatever holds them; columns are found or named together."""

import csv
import json
from pathlib import Path

import datasets
import pandas as pd
import pytest
from app_cases import write_rows

import bara_pyro as bp
from bara_pyro.data import Task, load_questions, load_task, task_from_rows
from bara_pyro.data.rows import divide
from bara_pyro.data.tables import SUFFIXES, read_table
from bara_pyro.data.types import Example
from bara_pyro.errors import MOST_CHARACTERS, DataError

WORDS = ("awful", "fine", "superb")
ROWS = [{"text": f"film, number {i}", "label": WORDS[i % 3]} for i in range(30)]


def in_file(path, rows=ROWS):
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        write_rows(path, rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        pd.DataFrame(rows).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_holds_the_same_rows(tmp_path, suffix):
    task = load_task(str(in_file(tmp_path / f"rows{suffix}")))
    assert task == task_from_rows(ROWS)
    assert task.names == task.labels == WORDS
    assert (len(task.train), len(task.test)) == (24, 6)
    first = task.train[0]
    assert (first.context, first.question) == ("film, number 0", "Answer:")


def test_frames_datasets_and_lists():
    assert task_from_rows(pd.DataFrame(ROWS)) == task_from_rows(datasets.Dataset.from_list(ROWS))
    with pytest.raises(
        DataError, match="dictionary with the keys 'train': give a list of rows, or one of its splits"
    ):
        task_from_rows(datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)))
    with pytest.raises(DataError, match="cannot be read from a int"):
        task_from_rows(3)
    with pytest.raises(DataError, match="row 2 is not a dictionary of columns: 'b'"):
        task_from_rows([ROWS[0], "b"])


def test_the_order_of_classes_is_the_one_that_the_data_bring(tmp_path):
    order = ["superb", "awful", "fine"]
    numbered = [{**row, "label": order.index(row["label"])} for row in ROWS]
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=order))
    dataset = datasets.Dataset.from_list(numbered, features=features)
    task = task_from_rows(dataset)
    assert task.names == tuple(order)
    assert order[task.train[0].label] == ROWS[0]["label"]
    dataset.to_parquet(tmp_path / "rows.parquet")
    assert load_task(str(tmp_path / "rows.parquet")) == task
    frame = pd.DataFrame(ROWS).astype({"label": pd.CategoricalDtype(order)})
    assert task_from_rows(frame) == task
    twelve = task_from_rows([{**row, "label": n % 12} for n, row in enumerate(ROWS)])
    assert twelve.names == tuple(map(str, range(12)))  # by size, not as texts


def test_half_a_character_is_refused_where_it_is_read(tmp_path):
    half = [{**row, "raw": "unread \ud800"} for row in ROWS]
    assert task_from_rows(half).train == task_from_rows(ROWS).train
    half[3]["text"] += "\udc00"
    said = (
        r"row 4: its text in 'text' is not valid Unicode \('\\udc00' is half a character\): write the whole"
    )
    for rows in (half, in_file(tmp_path / "rows.jsonl", half), in_file(tmp_path / "rows.json", half)):
        for row in half:
            row.pop("raw", None)
        with pytest.raises(DataError, match=said):
            task_from_rows(rows, text_column="text")


def test_empty_cells_and_numbers_of_a_frame():
    frame = pd.DataFrame({"text": ["a", "b", None], "label": [1, None, 0]})
    assert read_table(frame).rows == [
        {"text": "a", "label": 1.0},
        {"text": "b", "label": None},
        {"text": None, "label": 0.0},
    ]
    frame = pd.DataFrame({"text": list("abcdef"), "label": [1.0, 0.0] * 3})
    assert task_from_rows(frame).names == ("0", "1")


def test_columns_by_their_usual_names_or_by_name():
    rows = [{"Review": row["text"], "stars given": row["label"], "Sentiment": "x"} for row in ROWS]
    task = task_from_rows(rows, label_column="stars given")
    assert task.columns.text == "Review"
    assert task.names == WORDS
    assert task.notes[0] == "columns read: text 'Review', label 'stars given'"
    with pytest.raises(
        DataError,
        match=r"no column 'stars', named by label_column \(--label-column\): its columns are 'Review'",
    ):
        task_from_rows(rows, label_column="stars")
    with pytest.raises(
        DataError,
        match="no column for the text or question and no column for the answer among 'a', 'b': name it with "
        r"text_column \(--text-column\) and label_column \(--label-column\)",
    ):
        task_from_rows([{"a": 1, "b": 2}])
    with pytest.raises(
        DataError,
        match=r"the answer among 'text', 'label' \('label' is read as the text or question\): name it",
    ):
        task_from_rows([{"text": "a", "label": "b"}], text_column="label")


def test_a_row_that_is_nested_too_deeply():
    deep = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(DataError, match="list of rows, row 2 is nested too deeply: use texts and lists"):
        read_table([ROWS[0], {"text": "a", "x": deep}])


# --- the division and the classes


@pytest.mark.parametrize("counts", [(84, 18, 18), (119, 1), (50, 50), (3, 2, 2), (7,) * 11])
def test_the_division_is_stratified(counts):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    rows = [Example(f"r-{i}", "q", label) for i, label in enumerate(labels)]
    train, test = divide(rows, 0.2)
    assert len(test) == round(0.2 * len(rows))
    assert {row.id for row in (*train, *test)} == {row.id for row in rows}
    for label, count in enumerate(counts):
        tested = sum(row.label == label for row in test)
        assert abs(tested - 0.2 * count) < 1
        assert tested < count
    again = divide(rows[::-1], 0.2)
    assert [{row.id for row in part} for part in again] == [
        {row.id for row in part} for part in (train, test)
    ]


def test_a_stray_label_is_told_and_an_untrained_one_is_refused():
    stray = [*ROWS, {"text": "film", "label": "supreb"}]
    assert any("only 1 row of 31 has the answer 'supreb'" in note for note in task_from_rows(stray).notes)
    assert not any("only 1 row" in note for note in task_from_rows(ROWS).notes)
    twice = [{"text": f"cafe {i}", "label": ["caf\u00e9", "cafe\u0301", "bar"][i % 3]} for i in range(30)]
    assert any("'cafe\\u0301' and 'caf\\xe9' look the same" in note for note in task_from_rows(twice).notes)
    cased = [{"text": f"word {i}", "label": ["Да", "да", "нет"][i % 3]} for i in range(30)]
    assert any("'Да' and 'да' are almost the same" in note for note in task_from_rows(cased).notes)
    floats = [{"text": f"word {i}", "label": ["1", "1.0", "2"][i % 3]} for i in range(30)]  # as pandas writes
    assert any("'1' and '1.0' are almost the same" in note for note in task_from_rows(floats).notes)
    assert not any("look the same" in note or "almost" in note for note in task_from_rows(ROWS).notes)
    some = [row for row in ROWS if row["label"] != "fine"]
    with pytest.raises(DataError, match="its answer 'fine' is not one of the labels awful, superb"):
        task_from_rows(some, ROWS)
    with pytest.raises(DataError, match="'fine' is in 10 test rows of rows but in no training row"):
        task_from_rows(some, ROWS, classes=WORDS)


def test_answers_that_are_no_closed_set():
    rows = [{"text": "t", "label": i / 7} for i in range(100)]
    with pytest.raises(DataError, match="100 different answers in 100 rows of 'label', too many for classes"):
        task_from_rows(rows)


def wide(columns: int, letters: int) -> list[dict[str, str]]:
    """Four rows of columns whose names say nothing."""
    return [{f"c{i}".ljust(letters, "x"): f"v{row}" for i in range(columns)} for row in range(4)]


@pytest.mark.parametrize(
    ("form", "columns", "letters"),
    [("csv", 600, 256), ("jsonl", 100, 256), ("parquet", 100, 256), ("frame", 600, 6), ("list", 4000, 6)],
)
def test_messages_do_not_grow_with_the_rows(form: str, columns: int, letters: int, tmp_path: Path) -> None:
    """Also with a header of more characters than the csv module takes by itself in a cell."""
    csv.field_size_limit(131_072)
    rows, path = wide(columns, letters), tmp_path / f"rows.{form}"
    if form == "csv":
        path.write_text("\n".join(",".join(line) for line in [rows[0], *(row.values() for row in rows)]))
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    data = {"frame": pd.DataFrame(rows) if form == "frame" else None, "list": rows}.get(form, path)
    for given in ({}, {"text_column": "nothing"}, {"label_column": "n" * 300}, {"cluster_column": "nothing"}):
        with pytest.raises(DataError, match="no column") as refused:
            task_from_rows(data, **given)
        assert len(str(refused.value)) <= MOST_CHARACTERS
    with pytest.raises(DataError, match="no column") as refused:
        load_questions(data, Task("x", ()))
    assert len(str(refused.value)) <= MOST_CHARACTERS


GRADES = ("low", "middle", "high")


def reviews(count: int = 12) -> list[dict]:
    return [{"text": f"text {i}", "label": GRADES[i % 3]} for i in range(count)]


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


def test_a_question_that_stands_in_train_with_another_answer_is_noted() -> None:
    rows = [{"question": f"is it {i % 6} ?", "label": "ab"[i // 6 % 2]} for i in range(24)]
    rows = [row | {"id": str(i)} for i, row in enumerate(rows)]
    notes = bp.task_from_rows(rows).notes
    assert any("24 rows have the same text as another" in note for note in notes)
    assert not any("in train" in note for note in notes)
    contradicting = [{"question": "is it so ?", "label": "ab"[i == 0]} for i in range(20)]
    notes = bp.task_from_rows([{"question": f"q{i}", "label": "b"} for i in range(3)] + contradicting[1:],
                              test=[contradicting[0], {"question": "new", "label": "a"}]).notes  # fmt: skip
    assert "1 test rows have a text that is in train with another answer" in notes
