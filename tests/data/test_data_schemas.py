"""Hand-made rows, hand-written prompts."""

from collections import Counter

import pytest

from bara_pyro.data import Example, Task, as_letters, schemas
from bara_pyro.errors import DataError


def arc_row(labels="ABCD", answer="B", **changes):
    texts = ["iron", "air", "ice", "oil", "salt"][: len(labels)]
    choices = {"text": texts, "label": list(labels)}
    return {"id": "Q1", "question": "Which is a gas?", "choices": choices, "answerKey": answer} | changes


FOUR = "Which is a gas?\nA) iron\nB) air\nC) ice\nD) oil\nAnswer:"
NAMES = {"sentence": "Ann thanked Eve, for _ had helped.", "option1": "Ann", "option2": "Eve", "answer": "2"}
SUM = {"question": "2 + 2 =", "subject": "maths", "choices": ["3", "4", "5", "6"], "answer": 1}
CUP = {"ctx": "He lifts the cup and", "endings": ["sings.", "drinks.", "flies.", "melts."], "label": "1"}
COLD = {"question": "is ice cold", "answer": True, "passage": "Ice is cold."}
HOT = {"question": "is ice hot?", "answer": False, "passage": "x" * 2000}
TOPICS = "What is the topic of this article?\nA) World\nB) Sports\nC) Business\nD) Sci/Tech\nAnswer:"
# The first word is the schema: row, prompt, label, context.
CASES = {
    "ai2_arc letters": (arc_row(), FOUR, 1, ""),
    "ai2_arc numbers": (arc_row("1234", "2"), FOUR, 1, ""),
    "ai2_arc three": (arc_row("ABC", "C"), FOUR.replace("D) oil\n", ""), 2, ""),
    "ai2_arc five": (arc_row("ABCDE", "E"), FOUR.replace("oil\n", "oil\nE) salt\n"), 4, ""),
    "openbookqa": (arc_row() | {"question": None, "question_stem": "Which is a gas?"}, FOUR, 1, ""),
    "winogrande": (
        *(NAMES, "Fill in the blank: Ann thanked Eve, for _ had helped.\nA) Ann\nB) Eve\nAnswer:", 1, ""),
    ),
    "boolq true": (COLD, "True or False: is ice cold?\nAnswer:", 1, "Ice is cold."),
    "boolq false": (HOT, "True or False: is ice hot?\nAnswer:", 0, "x" * 1024),
    "mmlu": (SUM, "2 + 2 =\nA) 3\nB) 4\nC) 5\nD) 6\nAnswer:", 1, ""),
    "hellaswag": (
        CUP,
        "What comes next? He lifts the cup and\nA) sings.\nB) drinks.\nC) flies.\nD) melts.\nAnswer:",
        1,
        "",
    ),
    "ag_news": ({"text": "The team won again.", "label": 1}, TOPICS, 1, "The team won again."),
}


def schema_of(case):
    return getattr(schemas, case.split()[0])


@pytest.mark.parametrize("case", CASES)
def test_prompt_and_label(case):
    row, question, label, context = CASES[case]
    found = schema_of(case)(row, "r-1")
    assert (found.id, found.question, found.label, found.context) == ("r-1", question, label, context)


def test_options_go_by_the_names_that_the_rows_give_them():
    assert schemas.ai2_arc(arc_row("1234", "2"), "r").options == ("1", "2", "3", "4")
    assert schemas.ai2_arc(arc_row("ABCDE", "E"), "r").options == ("A", "B", "C", "D", "E")
    assert schemas.winogrande(NAMES, "r").options == ("1", "2")
    assert schemas.mmlu(SUM, "r").options == ("0", "1", "2", "3")
    assert schemas.ag_news(CASES["ag_news"][0], "r").options == ()


@pytest.mark.parametrize("case", CASES)
def test_without_its_answer_a_row_asks_the_same(case):
    row, question, _, context = CASES[case]
    found = schema_of(case)({**row, "answerKey": None, "answer": None, "label": " "}, "r-1")
    assert (found.question, found.label, found.context) == (question, -1, context)


def test_a_topic_by_its_name():
    assert schemas.ag_news({"text": "t", "label": "Business"}, "r").label == 2


def truthful_row(options):
    labels = [1] + [0] * (len(options) - 1)
    return {"question": "Who?", "mc1_targets": {"choices": options, "labels": labels}}


def test_truthful_qa_shuffle_keeps_and_spreads_the_right_option():
    options = ["right", "wrong", "bad", "false"]
    places = Counter()
    for number in range(400):
        example = schemas.truthful_qa(truthful_row(options), f"validation-{number}")
        lines = example.question.split("\n")
        assert lines[1 + example.label] == f"{'ABCD'[example.label]}) right"
        assert sorted(line[3:] for line in lines[1:-1]) == sorted(options)
        places[example.label] += 1
    assert all(70 <= places[place] <= 130 for place in range(4))  # 100 expected, standard deviation 8.7


def test_truthful_qa_shuffle_depends_on_the_id():
    row = truthful_row(["right", "wrong", "bad", "false"])
    assert len({schemas.truthful_qa(row, f"a-{i}").question for i in range(50)}) > 10


ODD = {"choices": ["a", "b"], "labels": [1, 1]}
BAD = {
    "ai2_arc unknown": (arc_row(answer="F"), "its answer 'F' is not one of A, B, C, D"),
    "ai2_arc labels": (
        arc_row(choices={"text": ["a", "b"], "label": ["A"]}),
        "2 options but 1 different labels",
    ),
    "ai2_arc no choices": (arc_row(choices=None), "2 to 26 options in 'choices'"),
    "ai2_arc one choice": (arc_row("A"), "2 to 26 options in 'choices'"),
    "ai2_arc empty option": (arc_row(choices={"text": ["a", " "], "label": ["A", "B"]}), "not a text: ' '"),
    "ai2_arc no question": (arc_row(question=" "), "no text in 'question'"),
    "openbookqa no question": (arc_row(question_stem=" "), "no text in 'question_stem'"),
    "winogrande": (NAMES | {"answer": "3"}, "not one of 1, 2"),
    "boolq": (COLD | {"answer": "yes"}, "'yes' is not one of False, True"),
    "boolq passage": (COLD | {"passage": None}, "no text in 'passage'"),
    "mmlu": (SUM | {"answer": 4}, "answer '4' is not one of 0, 1, 2, 3"),
    "truthful_qa": ({"question": "q", "mc1_targets": ODD}, "mark exactly one of 2 options"),
    "ag_news": ({"text": "t", "label": 4}, "answer 4 is not one of 0, 1, 2, 3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows(case):
    row, sentence = BAD[case]
    with pytest.raises(DataError, match=sentence):
        schema_of(case)(row, "r-1")


def test_letters_rewrite_a_task():
    rows = [schemas.boolq(COLD, "r-1"), schemas.boolq(HOT, "r-2")]
    task = as_letters(Task("boolq", ("False", "True"), train=rows[:1], test=rows[1:], notes=("n",)))
    assert task.labels == ("A", "B")
    assert task.train[0].question == "True or False: is ice cold?\nA) False\nB) True\nAnswer:"
    assert [row.label for row in (*task.train, *task.test)] == [1, 0]
    assert (task.train[0].context, task.test[0].id) == ("Ice is cold.", "r-2")
    assert task.notes == ("n", "letters stand for the labels: A = False, B = True")


def test_letters_leave_lettered_tasks_alone():
    task = Task("arc", ("A", "B"), test=[Example("1", "Q\nA) x\nB) y\nAnswer:", 0)])
    assert as_letters(task) is task


def test_letters_run_out():
    assert as_letters(Task("many", tuple(map(str, range(30))))).labels[25:] == ("Z", "a", "b", "c", "d")
    with pytest.raises(DataError, match="999 labels, but letters end at ZZ"):
        as_letters(Task("too many", tuple(map(str, range(999)))))
