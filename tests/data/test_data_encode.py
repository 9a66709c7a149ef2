"""Answer tokens and truncation, on byte-level, word-level and SentencePiece-like tokenizers."""

import random
from dataclasses import replace

import pytest
import torch
from data_cases import byte_level, sentence_piece, word_level

from bara_pyro.data import Example, answer_token_ids, encode, prompt_text
from bara_pyro.data.tokens import MARGIN, MOST, ids_of, leading
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, DataError

TEXT = "the cat sat on a mat, and then (it is said) 37 dogs came; née Ünal said: «go»"
WORDS = TEXT.split()
PIECES = sentence_piece()


def example(context_words, seed=0, name="r"):
    rng = random.Random(seed)
    context = " ".join(rng.choices(WORDS, k=context_words))
    return Example(f"{name}-{context_words}", "Who came?\nA) a dog\nB) the cat\nAnswer:", 1, context)


def test_half_a_character_is_refused():
    row = Example("a", "x" * 50 + " vome \ud800 meets " + "y" * 50, 0)
    said = (
        r"text 'x{14} vome \\ud800 meets y{12}' is not valid Unicode \('\\ud800' is half a character\): write"
    )
    with pytest.raises(DataError, match=said):
        encode([row], byte_level())


# --- the token of an answer


@pytest.mark.parametrize("merge", [("Ġ", "A"), (":", "A")])  # with a space before, or across the prompt's end
def test_a_byte_level_answer_is_the_label_alone_whatever_merges(merge):
    tokenizer = byte_level([merge])
    assert "".join(merge) in tokenizer.tokenize("Answer: A Answer:A")
    assert tokenizer.convert_ids_to_tokens(answer_token_ids(tokenizer, ["A", "B"]).tolist()) == ["A", "B"]


def test_sentence_piece_answer_has_no_space():
    assert PIECES.tokenize("A") == ["▁A"]
    ids = answer_token_ids(PIECES, ["A", "B", "C"])
    assert PIECES.convert_ids_to_tokens(ids.tolist()) == ["A", "B", "C"]
    assert ids.dtype == torch.long


def test_word_level_answers():
    assert answer_token_ids(word_level(["False", "True"]), ["False", "True"]).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("tokenizer", "labels", "sentence"),
    [
        (
            *(byte_level(), ["True", "False"]),
            r"label 'True' is 4 tokens \('T', 'r', 'u', 'e'\).*labels='letters' \(--labels letters\)",
        ),
        (word_level(["Yes"]), ["Yes", "Maybe"], "label 'Maybe' is not in the tokenizer's vocabulary"),
        (word_level(["Yes"]), ["Yes", " Yes"], "labels 'Yes' and ' Yes' are the same token"),
    ],
    ids=["several tokens", "unknown", "the same token"],
)
def test_labels_that_cannot_be_asked_for(tokenizer, labels, sentence):
    with pytest.raises(DataError, match=sentence):
        answer_token_ids(tokenizer, labels)


def test_real_llama_answers_follow_the_prompt_directly(llama):
    labels = [*"ABCDEFGHIJKLM", "0", "1"]
    for label, token in zip(labels, answer_token_ids(llama, labels).tolist(), strict=True):
        for prompt in ("Answer:", "Who?\nA) x\nB) y\nAnswer:"):
            assert llama(prompt + label)["input_ids"] == [*llama(prompt)["input_ids"], token]
    with pytest.raises(DataError, match="'False' is 4 tokens"):
        answer_token_ids(llama, ["False", "True"])


# --- truncation


# The byte-level one glues a sign to a line break, as Qwen's does.
TOKENIZERS = {
    "bytes": byte_level([(";", "Ċ"), ("t", "h"), ("th", "e")]),
    "words": word_level([*WORDS, "Who", "came?", "A)", "B)", "a", "dog", "cat", "Answer:"]),
    "pieces": PIECES,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_only_the_context_is_cut_and_not_more_than_needed(kind):
    tokenizer = TOKENIZERS[kind]
    question = tokenizer("a\n" + example(0).question, add_special_tokens=False)["input_ids"]
    question = question[len(tokenizer("a", add_special_tokens=False)["input_ids"]) :]
    for context_words in (0, 1, 2, 3, 5, 8, 13, 21, 40, 80):
        row = example(context_words, seed=context_words)
        whole = encode([row], tokenizer, 10_000)
        full = whole.token_ids[0]
        assert not whole.shortened
        for max_length in range(len(question) + 3, len(question) + 63, 3):
            split = encode([row], tokenizer, max_length)
            tokens = split.token_ids[0]
            if len(full) <= max_length:
                assert tokens == full
                assert not split.shortened
                continue
            assert split.shortened == (row.id,)
            assert tokens[-len(question) + 1 :] == question[1:]  # question[0] is the line break
            assert max_length - 1 <= len(tokens) <= max_length
            kept = len(tokens) - len(question)
            assert tokens[:kept] == full[:kept]  # BOS and the beginning of the context


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_context_disappears_before_the_question_is_touched(kind):
    tokenizer = TOKENIZERS[kind]
    alone = encode([example(0)], tokenizer).token_ids[0]
    split = encode([example(30)], tokenizer, len(alone))
    assert split.token_ids[0] == alone
    assert split.shortened == ("r-30",)


def test_question_too_long_is_an_error_or_dropped_never_cut():
    tokenizer = byte_level()
    rows = [example(0, name="long"), Example("short-1", "Q\nAnswer:", 0)]
    length = len(rows[0].question)
    with pytest.raises(
        DataError,
        match=f"row 'long-0' is {length} tokens long, but max_length is 20: raise max_length, or .*drop",
    ):
        encode(rows, tokenizer, 20)
    split = encode(rows, tokenizer, 20, too_long="drop")
    assert (split.ids, split.dropped, len(split)) == (("short-1",), ("long-0",), 1)


def test_bad_options():
    with pytest.raises(ConfigError, match="max_length is 0: choose a positive"):
        encode([], byte_level(), 0)
    with pytest.raises(
        ConfigError, match="Unknown way to treat long questions 'cut': choose one of drop, error"
    ):
        encode([], byte_level(), too_long="cut")


def test_front_specials_stay_and_end_specials_are_left_out():
    tokens = encode([example(2)], PIECES).token_ids[0]
    assert tokens == PIECES(prompt_text(example(2)))["input_ids"][:-1]
    assert tokens[0] == PIECES.bos_token_id
    assert PIECES.eos_token_id not in tokens


# --- padding


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_left_padding_and_mask(kind):
    tokenizer = TOKENIZERS[kind]
    rows = [example(1), example(9), example(4)]
    batch = encode(rows, tokenizer, 500).batch(range(3), torch.tensor([5, 6]))
    lengths = [len(tokens) for tokens in encode(rows, tokenizer, 500).token_ids]
    assert batch.input_ids.shape == (3, max(lengths)) == batch.attention_mask.shape
    assert batch.attention_mask.dtype == torch.bool
    assert batch.attention_mask.sum(1).tolist() == lengths
    assert batch.attention_mask[:, -1].all()
    for row, length in enumerate(lengths):
        assert not batch.attention_mask[row, : max(lengths) - length].any()
    assert batch.labels.tolist() == [1, 1, 1]
    assert batch.ids == ("r-1", "r-9", "r-4")
    assert batch.answer_ids.tolist() == [5, 6]


def test_padding_id_without_a_padding_token():
    assert encode([], byte_level()).pad_id == byte_level().eos_token_id
    assert encode([], PIECES).pad_id == 0
    assert word_level(["a"]).pad_token_id is None
    split = encode([example(0), example(5)], byte_level())
    batch = split.batch(range(2), torch.tensor([1, 2, 3, 4, 5, 6]))
    assert (batch.input_ids[0][~batch.attention_mask[0]] == byte_level().eos_token_id).all()


def test_unknown_labels_are_none():
    rows = [example(1), Example("x", "Q\nAnswer:")]
    assert encode(rows, byte_level()).batch(range(2), torch.tensor([1])).labels is None


def test_two_rows_of_one_name():
    rows = [Example("a", "x"), Example("b", "y"), Example("a", "z")]
    with pytest.raises(DataError, match="rows 1 and 3 share the id 'a'"):
        encode(rows, word_level(["x", "y", "z"]))


def test_padding_between_tokens():
    mask = torch.tensor([[False, True, True], [True, False, True]])
    with pytest.raises(DataError, match="between tokens"):
        Batch(torch.ones(2, 3, dtype=torch.long), mask, torch.tensor([1, 2]))


# --- texts far longer than what is kept


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.characters = tokenizer, 0

    def __call__(self, texts, **how):
        self.characters += sum(map(len, [texts] if isinstance(texts, str) else texts))
        return self.tokenizer(texts, **how)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_first_tokens_are_those_of_the_whole_text(kind):
    rng = random.Random(0)
    for _ in range(60):
        text = " ".join(rng.choices([*WORDS, " " * 40, "=" * 90, "thethe" * 30], k=rng.choice([3, 60, 900])))
        whole, count = ids_of(TOKENIZERS[kind], [text])[0], rng.choice([1, 7, 40, 300])
        [start] = leading(TOKENIZERS[kind], [text], count)
        assert start.tokens == (whole if start.whole else whole[:count])
        assert start.whole or len(whole) > count


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("part", ["context", "question"])
def test_what_is_cut_off_costs_nothing(kind, part):
    tokenizer, kept = Counting(TOKENIZERS[kind]), 80
    row = example(400)
    once = encode([row], TOKENIZERS[kind], kept, too_long="drop")
    longer = replace(row, **{part: " ".join([getattr(row, part)] * 1000)})
    many = encode([longer], tokenizer, kept, too_long="drop")
    assert tokenizer.characters < 8000 < len(prompt_text(longer))
    if part == "question":
        assert (many.token_ids, many.dropped) == ((), (row.id,))
    else:
        assert (many.token_ids, many.shortened) == (once.token_ids, (row.id,))


@pytest.mark.parametrize("filling", [" ", "a"])
def test_blanks_and_an_endless_word_are_read_up_to_a_bound(filling):
    tokenizer, few = Counting(TOKENIZERS["words"]), Example("r", "Who came?", 0, f"the {filling * 9000} cat")
    assert encode([few], tokenizer, 60).token_ids == (ids_of(TOKENIZERS["words"], [prompt_text(few)])[0],)
    tokenizer.characters = 0
    split = encode([replace(few, context=f"the {filling * 10**6} cat")], tokenizer, 60)
    assert split.shortened == ("r",)
    assert tokenizer.characters < 3 * MOST * (60 + MARGIN)


# --- what the language model takes


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_language_models_bound_is_as_good_as_max_length(kind):
    rows = [example(50)]
    assert encode(rows, TOKENIZERS[kind], 300, context=64) == encode(rows, TOKENIZERS[kind], 64)
    assert encode(rows, TOKENIZERS[kind], 64, context=300) == encode(rows, TOKENIZERS[kind], 64)
    with pytest.raises(DataError, match="the language model takes 5"):
        encode(rows, TOKENIZERS[kind], 300, context=5)


def test_an_answer_has_room_behind_its_question():
    row = replace(example(50), texts=("a dog", "the cat sat on a mat,"))
    split = encode([row], TOKENIZERS["words"], 300, context=40, classes=2)
    [longest] = [len(text) for text in split.texts[0] if len(text) == 6]
    assert len(split.token_ids[0]) + longest - 1 == 40
    endless = replace(row, texts=("a", "cat " * 10**5))
    assert encode([endless], TOKENIZERS["words"], 300, context=40, classes=2, too_long="drop").dropped == (
        row.id,
    )
