"""Diversity of replies: BLEU by hand and by a loop over sacrebleu, n-grams by hand."""

import math
import sys

import numpy as np
import pytest
import sacrebleu

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.diversity import distinct_n, self_bleu_diversity

TEXT = "a bird may sing where no one hears it , or else be still and wait for rain ."


def random_replies(prompts: int = 4, samples: int = 5) -> list[list[str]]:
    rng, text = np.random.default_rng(0), TEXT.split()

    def reply() -> str:
        start = rng.integers(0, 8)
        words = text[start : start + rng.integers(2, 10)]
        words[rng.integers(len(words))] = str(rng.choice(text))
        return " ".join(words)

    return [[reply() for _ in range(samples)] for _ in range(prompts)]


def test_self_bleu_by_hand() -> None:
    # Three words: the orders are 1 to 3. 2 of 3 words and 1 of 2 pairs are found; that 0 of 1 triples are
    # counts as half a one (NIST's smoothing). Lengths are equal.
    found = self_bleu_diversity([["the cat sat", "the cat ran"]])
    assert found.per_prompt == pytest.approx([100 - 100 * (2 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)])
    # The short one is all in the long one, for a penalty of e^(1 - 5/3); of the long one 3 of 5 words, 2 of
    # 4 pairs, 1 of 3 triples, and half a one of 2 quadruples are found, without a penalty.
    short, long = math.exp(1 - 5 / 3), (3 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** (1 / 4)
    found = self_bleu_diversity([["a b c", "a b c d e"]])
    assert found.per_prompt == pytest.approx([100 - 50 * (short + long)])


def test_self_bleu_equals_a_loop_over_sacrebleu() -> None:
    replies = random_replies()
    found = self_bleu_diversity(replies)
    expected = []
    for of_prompt in replies:
        scores = []
        for i, reply in enumerate(of_prompt):
            rest = [other for j, other in enumerate(of_prompt) if j != i]
            scores.append(sacrebleu.sentence_bleu(reply, rest, use_effective_order=True).score)
        expected.append(100 - sum(scores) / len(scores))
    assert found.per_prompt == pytest.approx(expected)
    assert found.mean == pytest.approx(sum(expected) / len(expected))
    assert len(set(expected)) == 4
    assert "nrefs:4|" in found.signature
    assert "eff:yes" in found.signature
    assert f"version:{sacrebleu.__version__}" in found.signature


def test_the_same_replies_are_not_diverse_and_foreign_ones_are() -> None:
    found = self_bleu_diversity([["to be or not to be"] * 3, ["a b c d", "e f g h", "i j k l"]])
    assert found.per_prompt.tolist() == [0.0, 100.0]
    assert found.mean == 50.0


def test_blank_replies_are_the_same_reply() -> None:
    found = self_bleu_diversity([["", "  "], ["", "a b"], ["", ""]])
    assert found.per_prompt.tolist() == [0.0, 100.0, 0.0]


def test_without_sacrebleu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ConfigError, match=r"pip install 'bara-pyro\[text\]'"):
        self_bleu_diversity([["a", "b"]])
    assert distinct_n([["a", "b"]], 1).tolist() == [100.0]


def test_as_many_replies_of_every_prompt() -> None:
    with pytest.raises(DataError, match="Prompt 1 has 3 replies and prompt 0 has 2"):
        self_bleu_diversity([["a", "b"], ["a", "b", "c"]])
    with pytest.raises(DataError, match="Prompt 0 has 1 replies"):
        self_bleu_diversity([["a"], ["b"]])


def test_distinct_n_by_hand() -> None:
    # 7 words: a b c | a b | A b. Distinct words a b c A; pairs (a b) (b c) (A b); one triple.
    replies = [["a b c", " a\tb\n", "A b"], ["x x x x", "", "x"]]
    assert distinct_n(replies, 1) == pytest.approx([400 / 7, 100 / 5])
    assert distinct_n(replies, 2) == pytest.approx([300 / 7, 100 / 5])
    assert distinct_n(replies, 3) == pytest.approx([100 / 7, 100 / 5])
    assert distinct_n(replies, 4) == pytest.approx([0, 100 / 5])
    assert distinct_n(replies, 5).tolist() == [0, 0]


def test_no_n_gram_goes_from_one_reply_into_the_next() -> None:
    assert distinct_n([["a", "b"]], 2).tolist() == [0.0]
    assert distinct_n([["a b"]], 2).tolist() == [50.0]


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_n_is_a_positive_integer(n) -> None:
    with pytest.raises(ConfigError, match="give a positive integer"):
        distinct_n([["a"]], n)


@pytest.mark.parametrize(
    ("replies", "sentence"),
    [
        ([], "replies is empty"),
        (["one text", "another"], r"replies\[0\] is 'one text': give a list of texts for each prompt"),
        ([["a", "b"], ["a", None]], r"replies\[1\] is \['a', None\]"),
    ],
)
def test_unusable_replies(replies, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        distinct_n(replies, 1)
    with pytest.raises(DataError, match=sentence):
        self_bleu_diversity(replies)


def test_a_prompt_without_words() -> None:
    with pytest.raises(DataError, match="The replies to prompt 1 have no word"):
        distinct_n([["a"], ["", " "]], 1)
