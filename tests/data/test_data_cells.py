"""What stands in a cell is read as a person reads it, or refused: never printed as Python or dropped."""

import enum
import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bara_pyro.data import Task, load_questions, task_from_rows
from bara_pyro.data.conversations import load_conversations
from bara_pyro.data.tables import read_table
from bara_pyro.errors import DataError


def asked(choices: object, answer: object = "B", source: str = "list") -> list[dict[str, object]]:
    return [{"id": i, "question": f"{i}?", "choices": choices, "answer": answer} for i in range(5)]


def first(task: Task) -> object:
    return next(row for split in (task.train, task.test) for row in split if row.id == "0")


OBJECTS = [{"text": "iron", "label": "A"}, {"text": "tin", "label": "B"}]
FORMS = {
    "texts": ["iron", "tin"],
    "objects": OBJECTS,
    "objects with more": [option | {"url": None} for option in OBJECTS],
    "texts alone": [{"text": option["text"]} for option in OBJECTS],
    "lists": {"text": ["iron", "tin"], "label": ["A", "B"]},
    "arrays": {"text": np.array(["iron", "tin"]), "label": np.array(["A", "B"])},
    "by letter": {"A": "iron", "B": "tin"},
    "by letter, of a wider table": {"A": "iron", "B": "tin", "C": None},
    "cell of CSV": "iron|tin",
    "JSON in a cell": json.dumps(OBJECTS),
    "texts as JSON": '["iron", "tin"]',
}


@pytest.mark.parametrize("form", FORMS)
def test_options_are_read_in_every_form_that_datasets_have(form: str) -> None:
    row = first(task_from_rows(asked(FORMS[form])))
    assert row.question == "0?\nA) iron\nB) tin\nAnswer:"
    assert (row.label, row.texts) == (1, ("iron", "tin"))


@pytest.mark.parametrize("write", [pd.DataFrame.to_parquet, pd.DataFrame.to_json], ids=["parquet", "json"])
def test_options_that_are_objects_live_through_files(write: object, tmp_path: Path) -> None:
    path = tmp_path / ("rows.parquet" if write is pd.DataFrame.to_parquet else "rows.json")
    frame = pd.DataFrame(asked(OBJECTS))
    write(frame, path, **({} if path.suffix == ".parquet" else {"orient": "records"}))
    assert first(task_from_rows(path)).question == "0?\nA) iron\nB) tin\nAnswer:"


def test_a_bar_inside_an_option_of_json_parts_nothing() -> None:
    assert first(task_from_rows(asked('["p(a|b)", "p(a)"]', 0))).texts == ("p(a|b)", "p(a)")
    assert first(task_from_rows(asked("[0, 1) | (1, 2]", 0))).texts == ("[0, 1)", "(1, 2]")


@pytest.mark.parametrize(
    "cell",
    [
        "['p(a|b)', 'p(a)']",
        "{'A': 'x|y', 'B': 'z'}",
        '["p(a|b)", "p(a)"',
        "[{'text': 'a|b'}]",
        "('a|b', 'c')",
    ],
)
def test_a_bar_inside_a_list_that_python_printed_is_refused(cell: str) -> None:
    with pytest.raises(DataError, match=r"not valid JSON: write the list with json\.dumps"):
        task_from_rows(asked(cell, 0))


@pytest.mark.parametrize("cell", ["['a']|['b']", "[0, 1)|(1, 2]", "(a)|(b)", "{x}|{y}", "'a|b'"])
def test_options_that_begin_with_a_bracket_are_parted_at_bars(cell: str) -> None:
    assert first(task_from_rows(asked(cell, 0))).texts == tuple(cell.split("|"))


def test_labels_of_option_objects_name_the_answer() -> None:
    options = [{"text": "two", "label": 1}, {"text": "four", "label": 2}]
    row = first(task_from_rows(asked(options, 2)))
    assert (row.label, row.options) == (1, ("1", "2"))


BAD_OPTIONS = {
    "lists": ([["iron"], ["tin"]], r"\['iron'\]"),
    "an object without a text": ([{"text": "iron"}, {"value": "tin"}], "'text'"),
    "labels for some": ([{"text": "iron", "label": "A"}, {"text": "tin"}], "'label'"),
    "objects and texts": ([{"text": "iron"}, "tin"], "'text'"),
    "objects in objects": ([{"text": {"en": "iron"}}, {"text": "tin"}], "'en'"),
    "bytes": ([b"iron", b"\xff"], "xff"),
    "a set": ({"iron", "tin"}, "not a list"),
    "labels that are lists": ({"text": ["iron", "tin"], "label": [["A"], ["B"]]}, r"\['A'\]"),
    "one label twice": ([{"text": "iron", "label": 0}, {"text": "tin", "label": 0}], "different labels"),
    "a key twice": ('{"A": "iron", "A": "tin"}', "the name 'A' twice"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_that_are_no_texts_are_refused_by_name(case: str) -> None:
    choices, said = BAD_OPTIONS[case]
    with pytest.raises(DataError, match=f"row 1: .*{said}"):
        task_from_rows(asked(choices))


# --- cells where a text is wanted


class Mood(str, enum.Enum):  # noqa: UP042 - the kind whose members print their own name
    GOOD = "good"
    BAD = "bad"


ROWS = [{"question": f"{i}?", "label": ("bad", "good")[i % 2]} for i in range(10)]


@pytest.mark.parametrize("cell", [{"a": 1}, ["a"], {1, 2}, b"\xff", object()], ids=type)
@pytest.mark.parametrize("column", ["question", "context", "label", "id", "cluster"])
def test_a_cell_that_is_no_text_is_refused_with_its_row(column: str, cell: object) -> None:
    rows = [*ROWS[:3], ROWS[3] | {column: cell}, *ROWS[4:]]
    with pytest.raises(DataError, match=f"row 4: .*{column.replace('question', 'text')}"):
        task_from_rows(rows, cluster_column="cluster" if column == "cluster" else None)


def test_the_same_of_rows_for_a_trained_run() -> None:
    task = task_from_rows([row | {"context": "c"} for row in ROWS])
    for column in ("question", "context", "id"):
        with pytest.raises(DataError, match="row 1: "):
            load_questions([ROWS[0] | {"context": "c"} | {column: ["a"]}], task)
    whole = Task("letters", ("A", "B"))
    with pytest.raises(DataError, match=r"\['A:x B:y Answer:'\]"):
        load_questions([{"question": ["A:x B:y Answer:"]}], whole)


def test_numbers_bytes_and_members_of_enumerations_are_texts() -> None:
    rows = [
        row | {"context": 0, "id": float(i), "label": list(Mood)[i % 2], "question": str(i).encode()}
        for i, row in enumerate(ROWS)
    ]
    task = task_from_rows(rows)
    row = first(task)
    assert (row.context, row.question, task.names) == ("0", "0\nAnswer:", ("bad", "good"))


def test_intervals_and_bytes_of_other_columns_stop_nothing() -> None:
    frame = pd.DataFrame({"text": [f"t {i}" for i in range(12)], "price": range(12)})
    frame["label"] = pd.cut(frame["price"], 2)
    task = task_from_rows(frame.assign(picture=b"\xff"))
    assert task.names == ("(-0.011, 5.5]", "(5.5, 11.0]")


def test_what_stands_beside_an_instruction_is_a_text() -> None:
    row = {"instruction": "Add :", "output": "3"}
    assert load_conversations([row | {"input": 12}])[0].prompt == "Add :\n12"
    with pytest.raises(DataError, match="'input' of row 1"):
        load_conversations([row | {"input": [1, 2]}])


# --- columns of one name

TEXTS = [[f"a {i}", f"b {i}", ("bad", "good")[i % 2]] for i in range(10)]


@pytest.mark.parametrize("names", [["text", "text", "label"], [1, "1", "label"]])
def test_two_columns_of_one_name_are_refused_in_a_frame(names: list[object]) -> None:
    with pytest.raises(DataError, match=f"the name '{names[0]}' twice"):
        read_table(pd.DataFrame(TEXTS, columns=names))


def test_columns_of_two_levels_are_refused() -> None:
    levels = pd.MultiIndex.from_tuples([("text", "x"), ("text", "y"), ("label", "")])
    with pytest.raises(DataError, match="2 levels"):
        read_table(pd.DataFrame(TEXTS, columns=levels))


def test_two_columns_of_one_name_are_refused_in_dictionaries_and_parquet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2: it has the name '1' twice"):
        read_table([{"1": "a"}, {1: "a", "1": "b"}])
    columns = [pa.array(column) for column in zip(*TEXTS, strict=True)]
    pq.write_table(pa.Table.from_arrays(columns, ["text", "text", "label"]), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet has the name 'text' twice"):
        read_table(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_key_that_stands_twice_in_an_object_is_refused(name: str, tmp_path: Path) -> None:
    row = '{"text": "a", "label": "x", "text": "b"}'
    (tmp_path / name).write_text(f"[{row}]" if name.endswith(".json") else f"{row}\n")
    with pytest.raises(DataError, match=f"{name}.*the name 'text' twice"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("twin", ["Text", " text", "te_xt", "text\u200b"])
def test_columns_that_could_both_be_meant_are_refused_until_one_is_named(twin: str) -> None:
    rows = [{"text": a, twin: b, "label": label} for a, b, label in TEXTS]
    with pytest.raises(DataError, match=r"2 columns .*--text-column"):
        task_from_rows(rows)
    texts = {row.context for row in task_from_rows(rows, text_column=twin).train}
    assert all(text.startswith("b") for text in texts)


@pytest.mark.parametrize("names", [("label", "answer"), ("category", "Label"), ("topic", "sentiment")])
def test_two_columns_of_answers_are_refused_until_one_is_named(names: tuple[str, str]) -> None:
    """Their order says nothing of which is meant."""
    first, second = names
    rows = [{"text": a, first: label, second: f"not {label}"} for a, _, label in TEXTS]
    with pytest.raises(DataError, match=rf"2 columns .*'{first}', '{second}': .*--label-column"):
        task_from_rows(rows)
    task = task_from_rows(rows, label_column=first)
    assert task.names == tuple(sorted({label for *_, label in TEXTS}))
    asked = [{"text": "a", "gold": "bad", "target": "good"}]  # new rows need no answer
    assert [row.context for row in load_questions(asked, task)] == ["a"]


def test_two_columns_of_ids_are_refused() -> None:
    with pytest.raises(DataError, match="'id' and in 'ID'"):
        task_from_rows([row | {"id": i, "ID": -i} for i, row in enumerate(ROWS)])


def test_a_dataset_of_the_hub_holds_the_same_options() -> None:
    row = first(task_from_rows(datasets.Dataset.from_list(asked(OBJECTS))))
    assert row.texts == ("iron", "tin")


# --- answers that differ in signs that cannot be seen

TWINS = {
    "a space of no width": "so good\u200b",
    "a space that keeps words together": "so\u00a0good",
    "a mark of byte order": "\ufeffso good",
    "a soft hyphen": "so go\u00adod",
    "a mark of direction": "so good\u200e",
}


@pytest.mark.parametrize("twin", TWINS)
def test_answers_that_read_alike_are_one_class(twin: str) -> None:
    labels = ["so good"] * 8 + [TWINS[twin]] * 2 + ["bad"] * 10
    rows = [{"text": f"t {i}", "label": label} for i, label in enumerate(labels)]
    task = task_from_rows(rows)
    assert task.names == ("bad", "so good")
    assert sum(row.label == 1 for row in (*task.train, *task.test)) == 10
    assert any(ascii(TWINS[twin]) in note for note in task.notes)
    [row] = load_questions([{"text": "t", "label": TWINS[twin]}], task, answers=True)
    assert row.label == 1
    with pytest.raises(DataError, match="two or more different names"):
        task_from_rows(rows, classes=["so good", TWINS[twin]])


def test_normal_forms_are_one_class_and_one_spelling_stays_as_it_is() -> None:
    rows = [{"text": f"t {i}", "label": ["bad", "cafe\u0301"][i % 2]} for i in range(20)]
    assert task_from_rows(rows).names == ("bad", "cafe\u0301")
    rows[1] |= {"label": "caf\u00e9"}
    assert task_from_rows(rows).names == ("bad", "cafe\u0301")


def test_signs_that_are_a_part_of_emoji_tell_classes_apart() -> None:
    flags = [
        "\U0001f3f4" + "".join(chr(0xE0000 + ord(c)) for c in code) + "\U000e007f"
        for code in ("gbsct", "gbwls")
    ]
    rows = [{"text": f"t {i}", "label": flags[i % 2]} for i in range(20)]
    assert len(task_from_rows(rows).names) == 2


def test_an_answer_names_its_option_whatever_cannot_be_seen() -> None:
    assert first(task_from_rows(asked(["iron", "tin"], "tin\u200b"))).label == 1
    assert first(task_from_rows(asked(OBJECTS, "\ufeffB"))).label == 1
    code = ["if a:\n  b", "if a:\n    b"]
    assert first(task_from_rows(asked(code, code[1]))).label == 1


def test_numbers_and_bytes_read_as_they_are_meant() -> None:
    row = {"share": np.float32(0.1), "text": b"yes", "none": np.float32("nan"), "number": np.int64(3)}
    assert read_table([row]).rows == [{"share": 0.1, "text": "yes", "none": None, "number": 3}]
