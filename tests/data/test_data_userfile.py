"""A user's own files in the generic schema."""

from pathlib import Path

import pandas as pd
import pytest
from app_cases import write_rows

from bara_pyro.data import load_task, task_from_rows
from bara_pyro.data.reply_tasks import load_replies
from bara_pyro.data.rows import too_few
from bara_pyro.errors import ConfigError, DataError


def lines(path, rows):
    return str(write_rows(path, rows))


def reviews(count, answers=("bad", "good")):
    return [{"question": f"Review {i}", "answer": answers[i % len(answers)]} for i in range(count)]


@pytest.mark.parametrize("answer", ["B", "pear", 1])
def test_choices_and_the_three_ways_to_answer(tmp_path, answer):
    row = {"question": "A fruit?", "choices": ["stone", "pear", "nail"], "answer": answer, "context": "Food."}
    train = lines(tmp_path / "t.jsonl", [row | {"id": "mine"}])
    other = row | {"question": "A sweet fruit?"}
    task = load_task(train, test_file=lines(tmp_path / "e.jsonl", [other]))
    assert task.labels == ("A", "B", "C")
    assert task.train[0].question == "A fruit?\nA) stone\nB) pear\nC) nail\nAnswer:"
    assert (task.train[0].id, task.train[0].label, task.train[0].context) == ("mine", 1, "Food.")
    assert task.test[0].id == "test-1"


def test_numbers_as_options_keep_their_form(tmp_path):
    row = {"question": "2 + 2?", "choices": [3, "04", "2021-01-01"], "answer": "04"}
    path = lines(tmp_path / "t.jsonl", [row])
    task = load_task(path, test_file=lines(tmp_path / "e.jsonl", [row | {"answer": 0}]))  # another answer
    assert task.train[0].question == "2 + 2?\nA) 3\nB) 04\nC) 2021-01-01\nAnswer:"
    assert (task.train[0].label, task.test[0].label) == (1, 0)


def test_labels_without_choices_are_the_sorted_answers(tmp_path):
    task = load_task(lines(tmp_path / "reviews.jsonl", reviews(60)))
    assert (task.name, task.labels) == ("reviews", ("bad", "good"))
    assert task.train[0].question.endswith("\nAnswer:")
    assert all(row.label == int(row.question.split()[1]) % 2 for row in (*task.train, *task.test))
    assert load_task(lines(tmp_path / "r.jsonl", reviews(60)), labels="letters").labels == ("A", "B")


def test_classes_fix_the_order_and_catch_a_typing_error(tmp_path):
    path = lines(tmp_path / "r.jsonl", reviews(60))
    assert load_task(path, classes=["good", "bad"]).labels == ("good", "bad")
    path = lines(tmp_path / "r.jsonl", [*reviews(60), {"question": "q", "answer": "goood"}])
    with pytest.raises(
        DataError, match=r"r\.jsonl, row 61: its answer 'goood' is not one of the labels good, bad"
    ):
        load_task(path, classes=["good", "bad"])


def test_a_class_that_no_row_has_is_named(tmp_path):
    path = lines(tmp_path / "r.jsonl", reviews(60))
    notes = load_task(path, classes=["good", "bad", "baad", "so so"]).notes
    assert "no row has the answer 'baad', 'so so': a typing error in the classes?" in notes
    assert not any("no row has" in note for note in load_task(path).notes)


def test_the_fewest_rows_that_are_named_are_enough(tmp_path):
    for fraction, rows in ((0.2, 3), (0.1, 6), (0.9, 3)):
        path = lines(tmp_path / "r.jsonl", reviews(rows))
        task = load_task(path, test_fraction=fraction)
        assert task.train
        assert task.test
        with pytest.raises(DataError, match=f"give at least {rows}, "):
            load_task(lines(tmp_path / "f.jsonl", reviews(rows - 1)), test_fraction=fraction)
        replies = [{"prompt": f"p{i}", "completion": "c"} for i in range(rows)]
        assert load_replies(lines(tmp_path / "c.jsonl", replies), test_fraction=fraction).test
    with pytest.raises(ConfigError, match="test_fraction is 1"):
        load_task(path, test_fraction=1)


def test_most_rows_keep_their_side_when_rows_are_added_and_seeds_change(tmp_path):
    small = load_task(lines(tmp_path / "r.jsonl", reviews(100)))
    large = load_task(lines(tmp_path / "r.jsonl", reviews(140)), seed=9)
    assert len(set(small.test) & set(large.test)) >= 14
    assert len(small.test) == 20
    assert any(note.startswith("20 of 100 rows held out") for note in small.notes)


PLAIN = {"question": "q", "answer": "a"}
TWO = {"question": "q", "choices": ["a", "b"], "answer": "A"}
BAD = {
    "no answer": (
        [PLAIN, PLAIN | {"answer": " "}, PLAIN | {"answer": "b"}],
        r"r\.jsonl, row 2: it has no answer in 'answer'",
    ),
    "no answers": (
        [PLAIN, *[PLAIN | {"answer": ""}] * 1200, PLAIN | {"answer": "b"}],
        "row 2: it has no answer in 'answer', one of 1,200 such rows: fill it in",
    ),
    "nan": ([PLAIN, PLAIN | {"answer": float("nan")}, PLAIN | {"answer": "b"}], "row 2: it has no answer"),
    "one answer": ([PLAIN], r"only one answer, 'a', in 'answer': give at least two"),
    "some choices": ([TWO, PLAIN], "row 2 has no 'choices', unlike row 1: give them in all rows or in none"),
    "option": ([TWO | {"answer": "C"}], "row 1: its answer 'C' is not an option: give a letter from A to B"),
    "index": ([TWO | {"answer": 2}], "an index from 0 to 1"),
    "bool": ([TWO | {"answer": True}], "answer True is not an option"),
    "double": ([TWO | {"choices": ["B", "A"]}], "'A' fits several options: give the option's index"),
    "number": (
        [TWO | {"choices": ["1", "2", "3"], "answer": 2}],
        "answer 2 fits several options: give the option's letter",
    ),
    "digits": (
        [TWO | {"choices": ["1", "2", "3"], "answer": "2"}],
        "answer '2' fits several options: give the option's letter",
    ),
    "null": ([TWO | {"choices": ["air", None]}], "have an empty option"),
    "repeated": (
        [TWO | {"choices": ["air", "ice", "air"], "answer": "air"}],
        "the option 'air' is listed 2 times: list each option once",
    ),
    "no list": ([TWO | {"choices": "a, b"}], "'choices' are not a list: 'a, b'"),
    "few": (
        [TWO],
        r"too few rows \(1\) to hold some out for testing: give at least 3, or .*\(--test-file\)",
    ),
    "few classes": ([PLAIN | {"answer": a} for a in "abcd"], r"too few rows \(4\) .*: give at least 5"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, case):
    rows, sentence = BAD[case]
    with pytest.raises(DataError, match=sentence):
        load_task(lines(tmp_path / "r.jsonl", rows))


BROKEN = {
    "t.csv: wide": (
        "question,answer\nq,a\nq,a,b\n",
        r"t\.csv, row 2 has 3 cells and the header has 2 \(separated by a comma\): use a comma",
    ),
    "t.csv: another separator": (
        "question;answer\nq, r;a\nq,b\n",
        r"row 2 has 1 cells .* \(separated by a semicolon, but this row by a comma\?\): use a semicolon",
    ),
    "t.csv: a column without a name": (
        "question,answer,,\nq,a,,\nq,b,and more,\n",
        r"t\.csv, row 2 has 'and more' in column 3, which has no name",
    ),
    "t.csv: short": ("question,answer,,\nq\n", r"row 1 has 1 cells and the header has 2"),
    "t.json: object": ("{}", "must hold a list of objects"),
    "t.json: lines": ("{}\n{}\n", r"t\.json, line 2 .* one object per line, name it \.jsonl"),
    "t.json: numbers": ("[1]", "row 1 is not a dictionary of columns: 1"),
    "t.jsonl: long number": ("1" * 5000, "number is too long"),
    "t.csv: two alike": ("text, text,label\na,b,c\n", "the name 'text' twice"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_files_that_cannot_be_parsed(tmp_path, case):
    text, sentence = BROKEN[case]
    path = tmp_path / case.split(":")[0]
    path.write_text(text)
    with pytest.raises(DataError, match=sentence):
        load_task(str(path))


def test_test_rows_that_all_stand_in_train_are_refused(tmp_path):
    path = lines(tmp_path / "r.jsonl", reviews(6))
    some = lines(tmp_path / "e.jsonl", reviews(6)[2:4])
    for test_file, count in ((path, 6), (some, 2)):
        with pytest.raises(DataError, match=f"All {count} test rows of r are also training rows") as refused:
            load_task(path, test_file=test_file)
        assert "(--test-file)" in str(refused.value)
    more = lines(tmp_path / "m.jsonl", [*reviews(2), {"question": "new", "answer": "bad"}])
    assert "2 test rows are also in train" in load_task(path, test_file=more).notes
    with pytest.raises(DataError, match="also training rows"):
        load_replies(path, test_file=path)


def test_a_text_is_no_context(tmp_path):
    """Where the text stands in place of a context, nothing is said of contexts that rows do not have."""
    rows = [{"text": f"film {i}", "label": ("bad", "good")[i % 2]} for i in range(6)]
    tested = [*rows[:2], rows[3] | {"label": "bad"}, {"text": "new", "label": "good"}]
    notes = load_task(lines(tmp_path / "r.jsonl", rows), test_file=lines(tmp_path / "e.jsonl", tested)).notes
    assert "2 test rows are also in train" in notes
    assert "1 test rows have a text that is in train with another answer" in notes
    assert not any("context" in note for note in notes)
    asked = [{"question": f"q{i}", "context": "c", "answer": ("a", "b")[i % 2]} for i in range(6)]
    path = lines(tmp_path / "q.jsonl", asked[:4])
    notes = load_task(path, test_file=lines(tmp_path / "p.jsonl", asked[4:])).notes
    assert "2 test rows have a context that is also in train" in notes


def test_train_and_test_file_must_agree(tmp_path):
    with_choices = lines(tmp_path / "c.jsonl", [{"question": "q", "choices": ["a", "b"], "answer": "A"}])
    with pytest.raises(DataError, match=r"Only one of .* has 'choices'"):
        load_task(lines(tmp_path / "r.jsonl", reviews(4)), test_file=with_choices)
    unseen = lines(tmp_path / "u.jsonl", reviews(1, answers=("odd",)))
    with pytest.raises(DataError, match=r"u\.jsonl, row 1: its answer 'odd' is not one of the labels bad"):
        load_task(lines(tmp_path / "r.jsonl", reviews(4)), test_file=unseen)


def test_numbers_as_options_mean_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    """Where no index is meant, the text is; a DataFrame's numbers are those of the CSV."""
    rows = [{"question": f"q{i}", "choices": "3|4|5|6", "answer": 3 + i % 4} for i in range(24)]
    pd.DataFrame([r for r in rows if r["answer"] > 3]).to_csv(tmp_path / "t.csv", index=False)
    frame = pd.read_csv(tmp_path / "t.csv")
    frame.to_parquet(tmp_path / "t.parquet")
    found = [
        load_task(str(tmp_path / "t.csv")),
        task_from_rows(frame),
        load_task(str(tmp_path / "t.parquet")),
    ]
    for task in found:
        for row in (*task.train, *task.test):
            said = int(frame.loc[frame["question"] == row.question.split("\n")[0], "answer"].iloc[0])
            assert row.texts[row.label] == str(said)


def test_a_class_that_is_set_aside_whole_is_refused(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "b" if i % 14 == 0 else "a"} for i in range(42)]
    path = lines(tmp_path / "rows.jsonl", rows)
    aside = len(load_task(path).train) - 1  # of one row that is left only one class is
    with pytest.raises(DataError, match=r"set aside for validation, no training row has the answer '[ab]'"):
        load_task(path, validation_rows=aside)
    kept = load_task(path, validation_rows=2)
    assert {row.label for row in kept.train} == {0, 1}


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.15, 0.2, 0.25, 1 / 3, 0.5, 0.9])
@pytest.mark.parametrize("kept", [1, 2, 7])
def test_the_fewest_rows_of_which_some_are_tested_on_are_counted(fraction: float, kept: int) -> None:
    fewest = kept + 1
    while round(fraction * fewest) < 1:
        fewest += 1
    assert f"at least {fewest}, " in str(too_few("rows.csv", "rows", kept, fraction, kept))


@pytest.mark.parametrize("fraction", [1e-9, 1e-300, 5e-324])
def test_a_fraction_of_next_to_nothing_is_refused_at_once(fraction: float) -> None:
    with pytest.raises(DataError, match=r"too few rows \(8\)"):
        task_from_rows([{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(8)], test_fraction=fraction)
