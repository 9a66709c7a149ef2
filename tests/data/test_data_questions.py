"""Rows to be answered by a trained model."""

import json

import pytest

from bara_pyro.data import Task, load_questions
from bara_pyro.errors import DataError

LETTERED = Task("arc", ("A", "B", "C"))
WORDED = Task("boolq", ("False", "True"))


@pytest.fixture
def questions(tmp_path):
    def read(task, *rows):
        path = tmp_path / "ask.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_questions(path, task)

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


BAD = {
    "no choices": (
        LETTERED,
        {"question": "q"},
        r"ask\.jsonl, row 1: it has no 'choices', and .* options of each row \(A, B, C\)",
    ),
    "choices": (
        WORDED,
        {"question": "q", "choices": ["a", "b"]},
        "choices a, b are not the classes of the run, False, True: leave them out",
    ),
    "too many": (LETTERED, {"question": "q", "choices": list("abcd")}, "4 options, and .* 'arc' end at C"),
    "unknown": (
        WORDED,
        {"question": "q", "answer": "maybe"},
        "answer 'maybe' is none of the labels False, True",
    ),
    "no question": (
        WORDED,
        {"answer": "True"},
        "no column for the text or question among 'answer': name it with --text",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_rows_that_do_not_fit(questions, case):
    task, row, sentence = BAD[case]
    with pytest.raises(DataError, match=sentence):
        questions(task, row)
