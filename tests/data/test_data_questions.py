"""Rows to be answered by a trained model."""

from pathlib import Path

import pytest
from app_cases import write_rows

import bara_pyro as bp
from bara_pyro.data import (
    SOURCES,
    ColumnNames,
    Columns,
    Task,
    as_letters,
    load_questions,
    load_task,
    schemas,
    task_from_rows,
)
from bara_pyro.errors import DataError

LETTERED = Task("arc", ("A", "B", "C"))
WORDED = Task("boolq", ("False", "True"))


@pytest.fixture
def questions(tmp_path):
    def read(task, *rows):
        return load_questions(write_rows(tmp_path / "ask.jsonl", rows), task)

    return read


def test_choices_with_and_without_an_answer(questions):
    row = {"question": "A fruit?", "choices": ["stone", "pear"], "context": "Food."}
    unknown, known = questions(LETTERED, row, row | {"id": "mine", "answer": "pear"})
    assert unknown.question == known.question == "A fruit?\nA) stone\nB) pear\nAnswer:"
    assert (unknown.id, unknown.label, unknown.context) == ("row-1", -1, "Food.")
    assert (known.id, known.label) == ("mine", 1)


def test_whole_prompts_stay_as_they_are(questions):
    found = questions(LETTERED, {"question": "q A) x B) y Answer :"}, {"question": "q\nA) x\nAnswer:"})
    assert [row.question for row in found] == ["q A) x B) y Answer :", "q\nA) x\nAnswer:"]


def test_words(questions):
    unknown, known = questions(WORDED, {"question": "is it"}, {"question": "is it", "answer": True})
    assert unknown.question == known.question == "is it\nAnswer:"
    assert (unknown.label, known.label) == (-1, 1)


ARC = Task("arc_easy", tuple("ABCDE"))
NEWS = Task("ag_news", tuple("ABCD"), names=SOURCES["ag_news"].names)
OWN = as_letters(Task("film", ("good", "so so"), columns=Columns("review", "stars")))
BAD = {
    "no choices": (
        LETTERED,
        {"question": "q"},
        r"ask\.jsonl, row 1: it has no 'choices': give its options \(A, B, C of task .*\) there as a list, "
        "or end 'question' like 'A:goats B:ducks Answer :'",
    ),
    "choices": (
        WORDED,
        {"question": "q", "choices": ["a", "b"]},
        "choices a, b are not the classes of the run, False, True: leave the choices out",
    ),
    "too many": (LETTERED, {"question": "q", "choices": list("abcd")}, "4 options, but .* 'arc' end at C"),
    "unknown": (WORDED, {"question": "q", "answer": "maybe"}, "'maybe' is not one of the labels False, True"),
    "no question": (WORDED, {"answer": "True"}, "no column for the text .* among 'answer': name it with"),
    "name": (OWN, {"review": "dull", "stars": "neg"}, "answer 'neg' is not one of the labels good, so so"),
    "number": (OWN, {"review": "dull", "stars": 1}, "answer 1 is not one of the labels good, so so"),
    "others": (OWN, {"review": "dull", "choices": ["good", "bad"]}, "choices good, bad are not the classes"),
    "half of an option": (LETTERED, {"question": "q", "choices": ["a", "\udfff"]}, "'choices' is not valid"),
    "empty": (OWN, {"review": None}, r"no text in 'review' \(found None\): give one, or leave the row out"),
    "labels of options": (
        ARC,
        {"question": "q", "choices": {"text": ["a", "b"], "label": 5}},
        "its options' labels in 'choices' are not a list: 5",
    ),
    "marks": (
        Task("truthful_qa", tuple("ABC")),
        {"question": "q", "mc1_targets": {"choices": ["a", "b"], "labels": 5}},
        "its 'labels' in 'mc1_targets' are not a list: 5",
    ),
    "topic": (NEWS, {"text": "won", "label": "pos"}, "'pos' is not one of World, Sports, Business, Sci/Tech"),
}


@pytest.mark.parametrize("case", BAD)
def test_rows_that_do_not_fit(questions, case):
    task, row, sentence = BAD[case]
    with pytest.raises(DataError, match=sentence):
        questions(task, row)


# --- rows as the run's own rows were


def arc(labels, **changes):
    choices = {"text": ["iron", "air", "ice", "oil", "salt"][: len(labels)], "label": list(labels)}
    return {"id": "Q", "question": "A gas?", "choices": choices, "answerKey": labels[1]} | changes


@pytest.mark.parametrize("labels", ["ABCD", "1234", "ABCDE", "123"])
def test_a_run_on_arc_reads_arcs_rows(questions, labels):
    known, unknown = questions(ARC, arc(labels), arc(labels, id="R", answerKey=""))
    assert known.question == unknown.question == schemas.ai2_arc(arc(labels), "Q").question
    assert (known.label, unknown.label, known.options) == (1, -1, tuple(labels))


def test_a_run_on_arc_reads_rows_of_ones_own(questions):
    (found,) = questions(ARC, {"prompt": "A gas?", "options": ["iron", "air"], "target": "air"})
    assert (found.question, found.label) == ("A gas?\nA) iron\nB) air\nAnswer:", 1)
    assert found.options == ("iron", "air")


@pytest.mark.parametrize("name", ["arc_easy", "boolq", "ag_news"])
def test_a_run_reads_the_file_it_was_trained_on(rows_dir, name):
    task = load_task(name, rows_dir)
    path = rows_dir / name / f"{SOURCES[name].test}.jsonl"
    found = load_questions(path, Task(task.name, task.labels, names=task.names), answers=True)
    trained = {(row.context, row.question, row.label) for row in (*task.train, *task.test)}
    assert len(found) >= len(task.test)
    assert {(row.context, row.question, row.label) for row in found} <= trained


def test_a_lettered_run_reads_its_own_rows_and_ignores_the_order_of_choices(questions):
    alone, listed, renamed = questions(
        OWN,
        {"review": "dull", "stars": "so so"},
        {"review": "dull", "stars": "good", "choices": ["so so", "good"]},
        {"review": "dull", "stars": None},
    )
    assert {row.question for row in (alone, listed, renamed)} == {"A) good\nB) so so\nAnswer:"}
    assert [row.label for row in (alone, listed, renamed)] == [1, 0, -1]
    (other,) = questions(OWN, {"text": "dull"})
    assert (other.context, other.question) == ("dull", alone.question)


def test_named_columns_come_first(tmp_path):
    path = tmp_path / "ask.csv"
    path.write_text("review;remark;mark\nbad;dull;good\n")
    (found,) = load_questions(path, OWN, given=ColumnNames("remark", "mark"), answers=True)
    assert (found.context, found.label) == ("dull", 0)


def test_a_context_that_a_file_lacks_is_no_context_that_is_empty() -> None:
    """Without the passage every row would be the same question, and get the same answer."""
    told = [
        {"question": "is it cold ?", "para": f"it is {word} {i}", "answer": word}
        for i in range(6)
        for word in ("warm", "cold")
    ]
    task = task_from_rows(told, context_column="para")
    renamed = [{"question": "is it cold ?", "paras": "it is warm"}]
    with pytest.raises(
        DataError, match=r"has no column 'para', the context that .* \(--context-column\), or add"
    ):
        load_questions(renamed, task)
    [row] = load_questions(renamed, task, given=ColumnNames(context="paras"))
    assert row.context == "it is warm"
    rows = load_questions([{"question": "is it cold ?", "para": text} for text in ("it is warm", "")], task)
    assert [row.context for row in rows] == ["it is warm", ""]


GRADES = ("low", "middle", "high")


def reviews(count: int = 12) -> list[dict]:
    return [{"text": f"text {i}", "label": GRADES[i % 3]} for i in range(count)]


def test_numbers_mean_classes_in_later_files_as_in_the_first(tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": GRADES.index(row["label"])} for row in reviews()]
    task = bp.task_from_rows(rows, classes=GRADES)
    found = load_questions(rows, task, answers=True)
    assert [row.label for row in found] == [row["label"] for row in rows]
    named = bp.task_from_rows(reviews())  # in the order of the alphabet, which no number was given for
    with pytest.raises(DataError, match=r"answer 0 is not one of .* middle: .* leave it out"):
        load_questions(rows, named, answers=True)
