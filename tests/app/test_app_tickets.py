"""A practitioner's table: columns found and carried through, texts asked, every kind of rows in Python."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from app_cases import Bara, Place, assert_one_sentence, questions, write_rows

import bara_pyro as bp
from bara_pyro.cli.running import run as train
from bara_pyro.data import load_questions, load_task
from bara_pyro.errors import DataError
from bara_pyro.extras.active.acquire import ask_pool
from bara_pyro.runs.asked import ask, calibration_rows, rows_to_decide
from bara_pyro.untrusted.files import read_jsonl

NAMES = ["Ticket ID", "Created At", "Customer Message", "Category"]


def tickets() -> list[dict[str, str]]:
    return [
        dict(
            zip(
                NAMES, (f"T-{7 * i}", f"2024-03-{1 + i % 28:02}", row["question"], row["answer"]), strict=True
            )
        )
        for i, row in enumerate(questions())
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tickets") / "tickets.csv"
    pd.DataFrame(tickets()).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def tagged(place: Place, table: Path) -> Path:
    """A run on the table, nothing of which was named."""
    out = table.parent / "run"
    train(Place(place.backbone, table).config(train__steps=3, predict__samples=[0]), out)
    return out


def test_columns_of_a_table_are_found_and_its_ids_kept(tagged: Path, table: Path) -> None:
    task = load_task(str(table))
    assert task.columns is not None
    assert (task.columns.text, task.columns.label, task.columns.id) == (
        "Customer Message", "Category", "Ticket ID",
    )  # fmt: skip
    ids = {row["Ticket ID"] for row in tickets()}
    assert {row.id for row in (*task.train, *task.test)} == ids
    assert {row["id"] for row in read_jsonl(tagged / "predictions.jsonl")} < ids


@pytest.mark.parametrize("name", ["ticket_text", "Ticket Text", "TicketText", "ticket-text"])
def test_the_last_word_of_a_name_says_what_a_column_holds(name: str) -> None:
    rows = [
        {"ticketId": i, name: row["question"], "kind_label": row["answer"]}
        for i, row in enumerate(questions())
    ]
    columns = bp.task_from_rows(rows).columns
    assert columns is not None
    assert (columns.text, columns.label, columns.id) == (name, "kind_label", "ticketId")


def test_of_several_columns_the_option_to_type_is_named() -> None:
    rows = [{"First Message": "a", "Last Message": "b", "Category": c} for c in "xyxyxy"]
    with pytest.raises(DataError, match=r"'First Message', 'Last Message'.*--text-column \"First Message\""):
        bp.task_from_rows(rows)


def test_ids_that_repeat_or_name_something_else_are_no_ids() -> None:
    rows = [{"text": f"t {i}", "label": "xy"[i % 2], "customer_id": i // 2, "paid": i} for i in range(10)]
    task = bp.task_from_rows(rows)
    assert {row.id for row in task.train} <= {f"row-{i + 1}" for i in range(10)}
    # Numbered anew in each file, they would be the same in train and test.
    numbered = [row | {"row_id": i} for i, row in enumerate(rows)]
    assert bp.task_from_rows(numbered, [row | {"text": "u"} for row in numbered]).test[0].id == "test-1"
    clustered = bp.task_from_rows(
        [row | {"author_id": i} for i, row in enumerate(rows)], cluster_column="author_id"
    )
    assert clustered.train[0].id.startswith("row-")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_predictions_keep_the_columns_of_the_table(
    tagged: Path, table: Path, suffix: str, tmp_path: Path, bara: Bara
) -> None:
    out = tmp_path / f"answers{suffix}"
    assert bara("predict", tagged, "--input", table, "--output", out, "--samples", 0).code == 0
    readers = {".parquet": pd.read_parquet, ".jsonl": lambda file: pd.DataFrame(read_jsonl(file))}
    read = readers.get(suffix, lambda file: pd.read_csv(file, sep="\t" if suffix == ".tsv" else ","))
    found = read(out)
    pd.testing.assert_frame_equal(found[NAMES], pd.DataFrame(tickets()), check_dtype=False)
    assert list(found["id"]) == list(found["Ticket ID"])
    assert set(found["label"]) <= {"yes", "no"}


def test_columns_named_as_predicted_ones_are_kept_under_another_name(
    tagged: Path, tmp_path: Path, bara: Bara
) -> None:
    rows = [
        {
            "id": i,
            "Customer Message": row["question"],
            "label": "no",
            "probs": [0.5],
            "input_label": None,
            "x": 2 * [i],
        }
        for i, row in enumerate(questions()[:3])
    ]
    answers = bp.predict(tagged, rows, samples=0)
    line = answers.lines()[1]
    assert (line["id"], line["input_label"], line["input_probs"], line["x"]) == ("1", "no", [0.5], [1, 1])
    assert set(line["probs"]) == {"yes", "no"}
    assert set(answers.rows[1]) == {"id", "label", "probs", "total", "aleatoric", "epistemic"}
    write_rows(tmp_path / "rows.jsonl", rows)
    for name in ("a.csv", "a.parquet"):
        assert (
            bara("predict", tagged, "--input", tmp_path / "rows.jsonl", "--output", tmp_path / name).code == 0
        )
    assert (
        pd.read_csv(tmp_path / "a.csv")["x"][1] == pd.read_parquet(tmp_path / "a.parquet")["x"][1] == "[1, 1]"
    )


def test_a_column_that_no_file_can_hold_is_named(tagged: Path) -> None:
    answers = bp.predict(tagged, pd.DataFrame(tickets()[:2]).assign(picture=b"\xff"), samples=0)
    assert any("'picture'" in note for note in answers.notes)
    assert "picture" not in answers.lines()[0]


# --- texts, and standard output


def test_texts_are_answered_on_standard_output(tagged: Path, bara: Bara) -> None:
    asked = [row["question"] for row in questions()[:2]]
    found = bara("predict", tagged, *asked, "--samples", 0)
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert [line["Customer Message"] for line in lines] == asked
    rows = bp.predict(tagged, asked, samples=0).rows
    assert [line["probs"] for line in lines] == [row["probs"] for row in rows]
    whole = json.loads(bara("predict", tagged, *asked, "--samples", 0, "--json").out)
    assert whole["rows"] == lines


@pytest.mark.parametrize("output", [(), ("--output", "-"), ("--output", "/dev/stdout")])
def test_rows_of_a_file_go_to_standard_output(
    tagged: Path, table: Path, output: tuple[str, ...], bara: Bara
) -> None:
    found = bara("predict", tagged, "--input", table, "--samples", 0, *output)
    lines = [json.loads(line) for line in found.out.splitlines()]
    assert [line["Ticket ID"] for line in lines] == [row["Ticket ID"] for row in tickets()]


def test_what_is_asked_is_one_thing(tagged: Path, table: Path, bara: Bara) -> None:
    assert_one_sentence(bara("predict", tagged), "--input")
    assert_one_sentence(bara("predict", tagged, "is the fox red ?", "--input", table), str(table))
    assert_one_sentence(bara("predict", tagged, " "), "empty")


def test_pipes_are_neither_read_nor_waited_for(tagged: Path, table: Path, tmp_path: Path, bara: Bara) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.csv")
    for command in (
        ("predict", "--input", table),
        ("conformal", "--input", table),
        ("acquire", "--input", table),
    ):
        result = bara(command[0], tagged, *command[1:], "--output", pipe, "--overwrite")
        assert_one_sentence(result, str(pipe), "regular file")


# --- looking at the prompt first


def test_columns_are_named_to_look_at_a_file(tmp_path: Path, bara: Bara) -> None:
    rows = [{"a": f"is the fox {i} ?", "b": "xy"[i % 2], "c": f"note {i}"} for i in range(10)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    assert_one_sentence(bara("tasks", path), "--text-column")
    options = ("--text-column", "a", "--label-column", "b", "--context-column", "c")
    found = bara("tasks", path, *options)
    assert all(part in found.out for part in ("is the fox", "note"))
    assert_one_sentence(bara("tasks", "--text-column", "a"), "--text-column")
    assert_one_sentence(bara("tasks", "micro-wgs", "--text-column", "a"), "micro-wgs")


# --- a language model that cannot read the rows


def test_rows_that_a_language_model_cannot_read_are_refused(tmp_path: Path, bara: Bara) -> None:
    long = "Hello, could somebody please cancel my latest purchase because nothing arrived until yesterday"
    rows = [{"text": f"{long} {i}", "label": "ab"[i % 2]} for i in range(20)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    result = bara("train", "--task", path, "--out", tmp_path / "run", "--steps", 1)
    assert_one_sentence(result, "% of the tokens", "--model")
    said = " Goodbye farewell darling friend whoever happens"
    told = [{"prompt": "Hello Jane", "completion": f"{said} {i}"} for i in range(10)]
    with pytest.raises(DataError, match="--model"):
        bp.train(task=bp.replies_from_rows(told), steps=1, out=tmp_path / "replies")


# --- rows in Python


def test_every_kind_of_rows_is_taken_everywhere(place: Place, table: Path, tmp_path: Path) -> None:
    frame, how = pd.read_csv(table), {"model": place.backbone, "method": "lora", "steps": 2}
    runs = [
        bp.train(task=rows, out=tmp_path / str(i), **how)
        for i, rows in enumerate([frame, frame.to_dict("records"), table])
    ]
    assert len({tuple(row.id for row in run.task.test) for run in runs}) == 1
    kinds = [frame, frame.to_dict("records"), table, str(table)]
    for rows in (*kinds, [*frame["Customer Message"]], frame["Customer Message"]):
        assert len(bp.predict(tmp_path / "0", rows, samples=0).rows) == 40
    scores = [
        bp.evaluate(run, rows, samples=0)["metrics"] for run in (runs[0], tmp_path / "0") for rows in kinds
    ]
    assert all(score == scores[0] for score in scores)
    assert scores[0]["0"]["n"] == 40
    assert bp.evaluate(str(tmp_path / "2"), samples=0)["metrics"]["0"]["n"] == 8


def test_decisions_take_the_same_kinds_of_rows(tagged: Path, table: Path) -> None:
    run, frame = bp.load_system(tagged), pd.read_csv(table)
    texts = [*frame["Customer Message"]]
    found = [ask(run, rows, "given", samples=0) for rows in (table, frame, frame.to_dict("records"), texts)]
    assert all(asked.log_probs.equal(found[0].log_probs) for asked in found)
    assert [row.id for row in found[1].examples] == [row["Ticket ID"] for row in tickets()]
    assert len(ask_pool(run, frame, samples=2).examples) == 40
    own, read = (load_questions(rows_to_decide(run, rows), run.task) for rows in (frame, table))
    assert own == read
    other = frame.assign(**{"Customer Message": [f"is {text}" for text in texts]})
    assert len(calibration_rows(run, other)) == 40
    with pytest.raises(DataError, match="are training rows"):
        calibration_rows(run, frame)


def test_settings_say_how_rows_from_python_are_read(place: Place, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table).rename(columns={"Customer Message": "a", "Category": "b"})
    how = {"model": place.backbone, "method": "lora", "steps": 1, "out": tmp_path / "run"}
    run = bp.train(task=frame, text_column="a", label_column="b", test_fraction=0.5, limit=15, **how)
    assert (len(run.task.train), len(run.task.test)) == (15, 15)


def test_a_text_is_no_file_and_texts_have_no_answers(tagged: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="list of texts"):
        bp.predict(tagged, "is the fox red ?")
    with pytest.raises(DataError, match="no column for the answer"):
        bp.train(task=["is the fox red ?"], out=tmp_path / "run")
    with pytest.raises(DataError, match="row 2 is not a dictionary"):
        bp.predict(tagged, [{"Customer Message": "is the fox red ?"}, "is the fox red ?"])


def test_what_python_prints_is_short(tagged: Path, table: Path) -> None:
    run = bp.load_system(tagged)
    answers = bp.predict(run, table, samples=0)
    for value in (run, run.backbone, run.task, run.split("train"), answers, bp.load_replies("micro-chat")):
        assert len(repr(value)) < 500
    assert all(part in repr(run) for part in ("'tickets'", "yes", "trainable"))
    assert "T-0" in repr(answers)
    frame = answers.to_pandas()
    assert list(frame.columns[:5]) == ["id", *NAMES]
    assert list(frame["prob_yes"]) == [row["probs"]["yes"] for row in answers.rows]
