"""Letters for classes of any name and number, and rows asked as a run was trained to be asked."""

import pytest
from data_cases import byte_level, word_level

from bara_pyro.data import Example, Task, answer_token_ids, as_asked, as_letters, encode_labels
from bara_pyro.data.labels import CODES
from bara_pyro.errors import DataError

ROWS = (Example("1", "Answer:", 0, "good"), Example("2", "q\nAnswer:", 1))


def task_of(*names):
    return Task("t", names, test=ROWS)


def test_words_where_they_are_single_tokens_else_letters():
    tokenizer = word_level(["yes", "no", "A", "B", "C"])
    assert encode_labels(task_of("yes", "no"), tokenizer) == task_of("yes", "no")
    found = encode_labels(task_of("so so", "no"), tokenizer)
    assert (found.labels, found.names) == (("A", "B"), ("so so", "no"))
    assert [row.question for row in found.test] == ["A) so so\nB) no\nAnswer:", "q\nA) so so\nB) no\nAnswer:"]
    assert encode_labels(found, tokenizer) is found
    assert encode_labels(task_of("yes", "no"), tokenizer, "letters").labels == ("A", "B")
    assert encode_labels(task_of("so so", "no"), tokenizer, "words").labels == ("so so", "no")
    with pytest.raises(DataError, match="4 classes, and the tokenizer has single tokens for only 3"):
        encode_labels(Task("t", ("a b", "c d", "e f", "g h")), tokenizer)


@pytest.mark.parametrize("count", [26, 27, 60, 62])
def test_more_classes_than_capital_letters(count):
    tokenizer = byte_level()
    names = tuple(f"class number {i}" for i in range(count))
    found = encode_labels(Task("many", names, test=ROWS), tokenizer)
    assert found.labels == CODES[:count]
    assert len(set(answer_token_ids(tokenizer, found.labels).tolist())) == count
    assert f"{found.labels[-1]}) class number {count - 1}\nAnswer:" in found.test[0].question


def test_codes_that_are_no_token_are_passed_over():
    tokenizer = word_level(["A", "C", "x", "7", "AB"])
    names = tuple(f"class {i}" for i in range(5))
    assert encode_labels(Task("few", names), tokenizer).labels == ("A", "C", "x", "7", "AB")


def test_the_real_llama_has_letters_for_many(llama):
    names = tuple(f"class {i}" for i in range(50))
    labels = encode_labels(Task("many", names), llama).labels
    assert len(set(answer_token_ids(llama, labels).tolist())) == 50


def test_classes_in_another_order_are_put_in_the_order_of_the_run():
    rows = (Example("1", "Answer:", 0, truth=(0.7, 0.3)), Example("2", "Answer:", 1), Example("3", "Answer:"))
    found = as_asked(Task("t", ("no", "yes"), test=rows), ("A", "B", "C"), ("yes", "maybe", "no"))
    assert found.labels == ("A", "B", "C")
    assert [row.label for row in found.test] == [2, 0, -1]
    assert found.test[0].truth == (0.3, 0.0, 0.7)
    assert all(row.question == "A) yes\nB) maybe\nC) no\nAnswer:" for row in found.test)


def test_what_cannot_be_put_in_order_is_refused():
    options = Task("arc", ("A", "B"))
    assert as_asked(options, ("A", "B", "C"), ()) is options
    with pytest.raises(
        DataError, match="answers of 't' are no, yes, but the run's are bad, good, which has no 'no'"
    ):
        as_asked(task_of("no", "yes"), ("bad", "good"), ("bad", "good"))
    with pytest.raises(
        DataError, match="answers of 'arc' are the options of each row, but the run's are bad, good"
    ):
        as_asked(options, ("bad", "good"), ("bad", "good"))
    with pytest.raises(DataError, match="the run's are the options of each row"):
        as_asked(task_of("no", "yes"), ("A", "B"), ())
    printed = as_letters(task_of("no", "yes"))
    assert as_asked(printed, printed.labels, printed.names) is printed
    with pytest.raises(
        DataError, match=r"lists its answers as A = no, B = yes, but the run .* A = yes, B = no"
    ):
        as_asked(printed, ("A", "B"), ("yes", "no"))
