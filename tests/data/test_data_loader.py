"""Folders, files and the hub: what is read, and one clear sentence for everything that cannot be."""

import json
import logging
from pathlib import Path

import datasets
import pytest
from app_cases import write_rows

from bara_pyro.data import SOURCES, Example, Generated, Task, load_task, register_task, registry
from bara_pyro.data.reply_tasks import load_replies
from bara_pyro.errors import ConfigError, DataError


def arc_rows(count, prefix="Q", **changes):
    choices = {"text": ["iron", "air"], "label": ["A", "B"]}
    rows = [
        {"id": f"{prefix}{i}", "question": f"{prefix} {i}?", "choices": choices, "answerKey": "AB"[i % 2]}
        for i in range(count)
    ]
    return [row | changes for row in rows]


@pytest.fixture
def arc(tmp_path):
    write_rows(tmp_path / "arc_easy" / "train.jsonl", arc_rows(20))
    write_rows(tmp_path / "arc_easy" / "validation.jsonl", arc_rows(6, "V"))
    return tmp_path


# --- folders


def test_folder_by_key_paper_name_and_hub_name(arc):
    task = load_task("arc_easy", arc)
    assert (task.name, task.labels) == ("arc_easy", ("A", "B", "C", "D", "E"))
    assert (len(task.train), len(task.validation), len(task.test)) == (20, 0, 6)
    question = "V 1?\nA) iron\nB) air\nAnswer:"
    assert task.test[1] == Example("V1", question, 1, options=("A", "B"), texts=("iron", "air"))
    assert "tested on the official validation split, as in related papers" in task.notes
    assert load_task("ARC-E", str(arc)) == load_task("allenai/ai2_arc:ARC-Easy", arc) == task


def test_hub_name_of_several_datasets():
    with pytest.raises(
        DataError, match="allenai/ai2_arc has several datasets: choose one of arc_challenge, arc_e"
    ):
        load_task("allenai/ai2_arc")


def test_changed_file_is_read_afresh_and_quietly(arc, capfd, caplog):
    assert len(load_task("arc_easy", arc).test) == 6
    write_rows(arc / "arc_easy" / "validation.jsonl", arc_rows(9, "V"))
    bars, level = datasets.are_progress_bars_disabled(), logging.getLogger("datasets").level
    assert len(load_task("arc_easy", arc).test) == 9
    assert (datasets.are_progress_bars_disabled(), logging.getLogger("datasets").level) == (bars, level)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_validation_rows_come_off_train_by_seed(arc):
    whole = load_task("arc_easy", arc)
    first, again = (load_task("arc_easy", arc, validation_rows=5, seed=3) for _ in range(2))
    other = load_task("arc_easy", arc, validation_rows=5, seed=4)
    assert first == again
    assert set(first.validation) != set(other.validation)
    assert (len(first.train), len(first.validation), first.test) == (15, 5, whole.test)
    assert set(first.train) | set(first.validation) == set(whole.train)
    assert not set(first.train) & set(first.validation)
    smaller = load_task("arc_easy", arc, validation_rows=2, seed=3)
    assert set(smaller.validation) < set(first.validation)


@pytest.mark.parametrize("rows", [-1, 20, 99])
def test_validation_rows_out_of_range(arc, rows):
    with pytest.raises(
        ConfigError, match=f"validation_rows is {rows}: choose 0 or more, and fewer than the 20"
    ):
        load_task("arc_easy", arc, validation_rows=rows)


def test_repeated_and_leaked_rows_are_noted(arc):
    rows = arc_rows(3, "V") + arc_rows(1, "V", id="W") + arc_rows(1, "Q", id="X")
    write_rows(arc / "arc_easy" / "validation.jsonl", rows)
    notes = load_task("arc_easy", arc).notes
    assert "1 test rows repeat another test row" in notes
    assert "1 test rows are also in train" in notes


def boolq_rows(count):
    return [{"question": f"is it {i}", "answer": i % 3 == 0, "passage": f"text {i}"} for i in range(count)]


def test_boolq_without_train_file_is_divided_and_says_so(tmp_path):
    write_rows(tmp_path / "boolq" / "validation.jsonl", boolq_rows(1605))
    task = load_task("boolq", tmp_path)
    assert (task.labels, len(task.train), len(task.test)) == (("False", "True"), 1600, 5)
    assert (task.train[0].id, task.test[0].id) == ("validation-1", "validation-1601")
    assert "no train file: trained on validation rows 1 to 1600, tested on the other 5" in task.notes
    assert any("swaps them" in note for note in task.notes)
    write_rows(tmp_path / "boolq" / "train.jsonl", boolq_rows(3))
    task = load_task("boolq", tmp_path)
    assert (len(task.train), len(task.test), task.train[0].id) == (3, 1605, "train-1")


def test_unknown_label_style(arc):
    with pytest.raises(ConfigError, match="Unknown label style 'digits': choose one of auto, letters, words"):
        load_task("arc_easy", arc, labels="digits")


def test_evaluated_only(tmp_path):
    row = {"question": "q", "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 3}
    write_rows(tmp_path / "mmlu_college_physics" / "test.jsonl", [row])
    task = load_task("mmlu_college_physics", tmp_path)
    assert (len(task.train), len(task.test), task.test[0].label) == (0, 1, 3)
    with pytest.raises(ConfigError, match="there are no training rows"):
        load_task("mmlu_college_physics", tmp_path, validation_rows=1)


# --- what cannot be read


def test_unknown_name():
    with pytest.raises(
        DataError,
        match=r"Unknown dataset 'arc': choose one of ag_news, .*micro-wgs.*, or a file that ends in .csv",
    ):
        load_task("arc")


@pytest.mark.parametrize("name", ["rows.xlsx", "rows.TXT", "rows.own"])
def test_a_file_of_another_kind_is_no_unknown_name(name, tmp_path):
    if name == "rows.own":
        name = str(tmp_path / name)
        Path(name).write_text("rows")
    for load in (load_task, load_replies):
        with pytest.raises(DataError, match=r"rows\.\w+ is not a \.csv, .*save it as one of") as refused:
            load(name)
        assert "Unknown" not in str(refused.value)


def test_missing_folder_names_what_is_there(arc):
    with pytest.raises(
        DataError,
        match=r"no folder .*openbookqa \(datasets in .*: arc_easy\): .*/train\.jsonl and openb",
    ):
        load_task("openbookqa", arc)


def test_missing_split(arc):
    (arc / "arc_easy" / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"There is no file .*arc_easy.train\.jsonl"):
        load_task("arc_easy", arc)


FIRST = json.dumps(arc_rows(1)[0])
BROKEN = {
    "empty": ("", r"validation\.jsonl is empty: give at least one row"),
    "blank": ("\n \n", r"validation\.jsonl is empty"),
    "cut off": (FIRST + '\n{"id": "V', r"line 2 is not valid JSON.*each line must be one JSON object"),
    "no object": (FIRST + "\n[1]\n", r"validation\.jsonl, line 2 is not a JSON object: '\[1\]'"),
    "not text": (b'{"id": "\xff\xfe"}', r"validation\.jsonl is not UTF-8 text \(byte 8\)"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(arc, case):
    content, sentence = BROKEN[case]
    content = content if isinstance(content, bytes) else content.encode()
    (arc / "arc_easy" / "validation.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        load_task("arc_easy", arc)


ROWS = {
    "no answer": ({"answerKey": ""}, "row 2: it has no answer in 'answerKey': fill it in, or leave the row"),
    "absent": ({"answerKey": None}, "row 2: it has no answer in 'answerKey'"),
    "unknown": ({"answerKey": "Z"}, "row 2: its answer 'Z' is not one of A, B"),
    "number": ({"question": 3}, "row 2: it has no text in 'question' \\(found 3\\)"),
    "same id": ({"id": "V0"}, "rows 1 and 2 share the id 'V0'"),
    "id of train": ({"id": "Q0"}, "Train and test of arc_easy share 1 ids, such as 'Q0'"),
}


@pytest.mark.parametrize("case", ROWS)
def test_bad_row_names_file_and_row(arc, case):
    change, sentence = ROWS[case]
    rows = arc_rows(3, "V")
    rows[1] |= change
    path = write_rows(arc / "arc_easy" / "validation.jsonl", rows)
    where = "" if case == "id of train" else f"{path}, "
    with pytest.raises(DataError, match=f"^{where}{sentence}"):
        load_task("arc_easy", arc)


def test_answer_beyond_the_classes(tmp_path):
    choices = {"text": list("abcde"), "label": list("ABCDE")}
    row = {"id": "1", "question_stem": "q", "choices": choices, "answerKey": "E"}
    write_rows(tmp_path / "openbookqa" / "validation.jsonl", [row])
    with pytest.raises(DataError, match="row 1: its answer is option 5, but the classes end at D"):
        load_task("openbookqa", tmp_path)


# --- the hub, without a network


def hub(monkeypatch, answer):
    calls = []

    def load_dataset(*args, **options):
        calls.append((*args, options["split"], options["revision"]))
        return answer(options["split"])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_is_asked_for_the_splits_of_the_table(monkeypatch):
    rows = {"train": arc_rows(4), "validation": arc_rows(2, "V")}
    calls = hub(monkeypatch, lambda split: datasets.Dataset.from_list(rows[split]))
    task = load_task("arc_easy", revision="abc")
    assert (len(task.train), len(task.test)) == (4, 2)
    assert sorted(calls) == [
        ("allenai/ai2_arc", "ARC-Easy", split, "abc") for split in ("train", "validation")
    ]
    assert task.notes[0] == "allenai/ai2_arc, ARC-Easy at revision abc"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "boolq",
            {"text_column": "text"},
            "has no effect on 'boolq', which is not a file",
        ),
        ("mine.csv", {"test_file": "b.csv", "test_fraction": 0.5}, "leave one out"),
        ("mine.csv", {"data_dir": "data"}, "data_dir='data' has no effect on 'mine.csv', which is a file"),
        ("mine.csv", {"revision": "v1"}, "revision='v1' has no effect on 'mine.csv', which is a file"),
        ("micro-wgs", {"revision": "v1"}, "revision='v1' has no effect on 'micro-wgs', which is generated"),
    ],
)
def test_options_without_effect_are_refused(name, options, said):
    with pytest.raises(ConfigError, match=said):
        load_task(name, **options)


def test_rows_of_a_folder_say_that_no_revision_was_asked_for(arc):
    assert f"read from {arc}, whatever revision abc holds" in load_task("arc_easy", arc, revision="abc").notes
    assert not any("revision" in note for note in load_task("arc_easy", arc).notes)


def test_ag_news_is_tested_on_its_test_split_at_the_hub(monkeypatch):
    rows = [{"text": "t", "label": 2}, {"text": "u", "label": 0}]
    calls = hub(monkeypatch, lambda split: datasets.Dataset.from_list(rows))
    assert len(load_task("ag_news").test) == 2
    assert {call[2] for call in calls} == {"train", "test"}


@pytest.mark.parametrize(
    "error", [ConnectionError("Couldn't reach it\nat all"), ValueError("no such config")]
)
def test_no_hub_is_one_sentence_with_a_way_out(monkeypatch, error):
    def fail(split):
        raise error

    hub(monkeypatch, fail)
    with pytest.raises(
        DataError, match=r"(Couldn't reach it|no such config)\): check .* data_dir \(--data-dir\)"
    ) as caught:
        load_task("arc_easy")
    assert "\n" not in str(caught.value)


def test_table_names_are_unambiguous():
    papers = [source.paper.lower() for source in SOURCES.values()]
    assert len(set(papers)) == len(papers)
    assert all(SOURCES[paper].paper.lower() == paper for paper in papers if paper in SOURCES)


# --- tasks that are made


def test_a_registered_task_is_made_by_its_own_function(monkeypatch):
    monkeypatch.setattr(registry.TASKS, "_items", dict(registry.TASKS))
    rows = [Example(str(i), "Q Answer:", i % 2) for i in range(6)]

    def made(seed):
        return Task(f"micro-x-{seed}", ("yes", "no"), rows[:2], rows[2:5], rows[5:])

    register_task(Generated("micro-x", "", "here", made))
    with pytest.raises(ConfigError, match="'micro-x' is already registered"):
        register_task(Generated("micro-x", "", "here", made))
    assert load_task("micro-x", seed=7).name == "micro-x-7"
    assert len(load_task("micro-x").validation) == 3
    assert len(load_task("micro-x", validation_rows=2).validation) == 2
    assert load_task("micro-x", labels="letters").test[0].question == "Q\nA) yes\nB) no\nAnswer:"
    with pytest.raises(ConfigError, match="validation_rows is 9: choose 1 to 3"):
        load_task("micro-x", validation_rows=9)
