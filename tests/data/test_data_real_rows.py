"""The real rows through the real Llama's tokenizer; skipped where they are absent."""

from collections import Counter

import pytest

from bara_pyro.data import answer_token_ids, encode, load_task
from bara_pyro.errors import DataError

ROWS = {  # train and test rows, as the README of the rows counts them
    "arc_easy": (2251, 570),
    "arc_challenge": (1119, 299),
    "openbookqa": (4957, 500),
    "winogrande_s": (640, 1267),
    "winogrande_m": (2558, 1267),
    "boolq": (1600, 1670),
    "mmlu_college_chemistry": (0, 100),
    "mmlu_college_physics": (0, 102),
    "hellaswag": (0, 300),
    "truthful_qa": (0, 200),
    "ag_news": (2000, 1000),
}


@pytest.mark.parametrize("name", ROWS)
def test_counts_labels_and_encoding(rows_dir, llama, name):
    task = load_task(name, rows_dir, labels="letters")
    assert (len(task.train), len(task.test)) == ROWS[name]
    rows = [*task.train, *task.test]
    assert len({row.id for row in rows}) == len(rows)
    assert {row.label for row in rows} <= set(range(len(task.labels)))
    assert len(answer_token_ids(llama, task.labels)) == len(task.labels)
    whole = encode(rows, llama, max_length=1024)
    assert not whole.dropped
    assert not whole.shortened
    cut = encode(rows, llama, max_length=300, too_long="drop")
    assert max(map(len, cut.token_ids)) <= 300
    assert len(cut) + len(cut.dropped) == len(rows)
    answer = llama("\nAnswer:", add_special_tokens=False)["input_ids"][1:]
    assert all(
        tokens[-len(answer) :] == answer and tokens[0] == llama.bos_token_id for tokens in cut.token_ids
    )


def test_every_option_is_printed_in_order(rows_dir):
    task = load_task("arc_challenge", rows_dir)
    for row in (*task.train, *task.test):
        lines = row.question.split("\n")
        options = [line[:3] for line in lines if line[:3] in ("A) ", "B) ", "C) ", "D) ", "E) ")]
        assert options == ["A) ", "B) ", "C) ", "D) ", "E) "][: len(options)]
        assert 3 <= len(options) <= 5
        assert row.label < len(options)


def test_boolq_answers_are_not_swapped(rows_dir):
    task = load_task("boolq", rows_dir)
    counts = Counter(task.labels[row.label] for row in (*task.train, *task.test))
    assert counts == {"True": 2033, "False": 1237}  # most answers of BoolQ are yes
    assert max(len(row.context) for row in task.test) == 1024
    assert (
        task.train[0].question == "True or False: does ethanol take more energy make that produces?\nAnswer:"
    )
    assert task.labels[task.train[0].label] == "False"


def test_boolq_words_are_several_tokens_for_the_real_llama(rows_dir, llama):
    with pytest.raises(DataError, match=r"'False' is 4 tokens .* labels='letters'"):
        answer_token_ids(llama, load_task("boolq", rows_dir).labels)


def test_truthful_qa_right_option_is_spread(rows_dir):
    counts = Counter(row.label for row in load_task("truthful_qa", rows_dir).test)
    assert max(counts.values()) < 80
    assert len(counts) >= 5


def test_repeated_rows_are_reported(rows_dir):
    assert "11 test rows repeat another test row" in load_task("mmlu_college_physics", rows_dir).notes
