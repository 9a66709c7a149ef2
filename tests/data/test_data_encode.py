"""Answer tokens and truncation, on byte-level, word-level and SentencePiece-like tokenizers."""

import random

import pytest
import torch

from bara_pyro.data import Example, answer_token_ids, collate, encode, prompt_text
from bara_pyro.errors import ConfigError, DataError

TEXT = "the cat sat on a mat, and then (it is said) 37 dogs came; née Ünal said: «go»"
WORDS = TEXT.split()


def example(context_words, seed=0, name="r"):
    rng = random.Random(seed)
    context = " ".join(rng.choices(WORDS, k=context_words))
    return Example(f"{name}-{context_words}", "Who came?\nA) a dog\nB) the cat\nAnswer:", 1, context)


# --- the token of an answer


def test_byte_level_answer_is_the_label_without_a_space(make_byte_level):
    tokenizer = make_byte_level([("Ġ", "A")])
    assert tokenizer.convert_ids_to_tokens(answer_token_ids(tokenizer, ["A", "B"]).tolist()) == ["A", "B"]


def test_merge_across_the_end_of_the_prompt_does_not_matter(make_byte_level):
    tokenizer = make_byte_level([(":", "A")])
    assert tokenizer.tokenize("Answer:A")[-1] == ":A"
    assert tokenizer.convert_ids_to_tokens(answer_token_ids(tokenizer, ["A", "B"]).tolist()) == ["A", "B"]


def test_sentence_piece_answer_has_no_space(sentence_piece_tokenizer):
    assert sentence_piece_tokenizer.tokenize("A") == ["▁A"]
    ids = answer_token_ids(sentence_piece_tokenizer, ["A", "B", "C"])
    assert sentence_piece_tokenizer.convert_ids_to_tokens(ids.tolist()) == ["A", "B", "C"]
    assert ids.dtype == torch.long


def test_word_level_answers(make_word_level):
    assert answer_token_ids(make_word_level(["False", "True"]), ["False", "True"]).tolist() == [2, 3]


def test_several_tokens_name_the_label_its_tokens_and_the_way_out(make_byte_level):
    with pytest.raises(
        DataError,
        match=r"label 'True' is 4 tokens \('T', 'r', 'u', 'e'\).*labels='letters' \(--labels letters\)",
    ):
        answer_token_ids(make_byte_level(), ["True", "False"])


def test_unknown_label(make_word_level):
    with pytest.raises(DataError, match="label 'Maybe' is not in the tokenizer's vocabulary"):
        answer_token_ids(make_word_level(["Yes"]), ["Yes", "Maybe"])


def test_labels_that_are_the_same_token(make_word_level):
    with pytest.raises(DataError, match="labels 'Yes' and ' Yes' are the same token"):
        answer_token_ids(make_word_level(["Yes"]), ["Yes", " Yes"])


def test_real_llama_answers_follow_the_prompt_directly(llama):
    labels = [*"ABCDEFGHIJKLM", "0", "1"]
    for label, token in zip(labels, answer_token_ids(llama, labels).tolist(), strict=True):
        for prompt in ("Answer:", "Who?\nA) x\nB) y\nAnswer:"):
            assert llama(prompt + label)["input_ids"] == [*llama(prompt)["input_ids"], token]
    with pytest.raises(DataError, match="'False' is 4 tokens"):
        answer_token_ids(llama, ["False", "True"])


# --- truncation


def tokenizers(request):
    """Return the three kinds; the byte-level one glues a full stop to a line break, as Qwen's does."""
    make = request.getfixturevalue("make_byte_level")
    return {
        "bytes": make([(";", "Ċ"), ("t", "h"), ("th", "e")]),
        "words": request.getfixturevalue("make_word_level")(
            [*WORDS, "Who", "came?", "A)", "B)", "a", "dog", "cat", "Answer:"]
        ),
        "pieces": request.getfixturevalue("sentence_piece_tokenizer"),
    }


@pytest.mark.parametrize("kind", ["bytes", "words", "pieces"])
def test_only_the_context_is_cut_and_not_more_than_needed(request, kind):
    tokenizer = tokenizers(request)[kind]
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


@pytest.mark.parametrize("kind", ["bytes", "words", "pieces"])
def test_context_disappears_before_the_question_is_touched(request, kind):
    tokenizer = tokenizers(request)[kind]
    alone = encode([example(0)], tokenizer).token_ids[0]
    split = encode([example(30)], tokenizer, len(alone))
    assert split.token_ids[0] == alone
    assert split.shortened == ("r-30",)


def test_question_too_long_is_an_error_or_dropped_never_cut(make_byte_level):
    tokenizer = make_byte_level()
    rows = [example(0, name="long"), Example("short-1", "Q\nAnswer:", 0)]
    length = len(rows[0].question)
    with pytest.raises(
        DataError,
        match=f"row 'long-0' is {length} tokens long and max_length is 20: raise max_length, or .*drop",
    ):
        encode(rows, tokenizer, 20)
    split = encode(rows, tokenizer, 20, too_long="drop")
    assert (split.ids, split.dropped, len(split)) == (("short-1",), ("long-0",), 1)


def test_bad_options(make_byte_level):
    with pytest.raises(ConfigError, match="max_length is 0: choose a positive"):
        encode([], make_byte_level(), 0)
    with pytest.raises(
        ConfigError, match="Unknown way to treat long questions 'cut': choose one of drop, error"
    ):
        encode([], make_byte_level(), too_long="cut")


def test_front_specials_stay_and_end_specials_are_left_out(sentence_piece_tokenizer):
    tokens = encode([example(2)], sentence_piece_tokenizer).token_ids[0]
    assert tokens == sentence_piece_tokenizer(prompt_text(example(2)))["input_ids"][:-1]
    assert tokens[0] == sentence_piece_tokenizer.bos_token_id
    assert sentence_piece_tokenizer.eos_token_id not in tokens


# --- padding


@pytest.mark.parametrize("kind", ["bytes", "words", "pieces"])
def test_left_padding_and_mask(request, kind):
    tokenizer = tokenizers(request)[kind]
    rows = [example(1), example(9), example(4)]
    batch = collate(rows, tokenizer, torch.tensor([5, 6]), max_length=500)
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


def test_padding_id_without_a_padding_token(make_byte_level, make_word_level, sentence_piece_tokenizer):
    assert encode([], make_byte_level()).pad_id == make_byte_level().eos_token_id
    assert encode([], sentence_piece_tokenizer).pad_id == 0
    assert make_word_level(["a"]).pad_token_id is None
    batch = collate([example(0), example(5)], make_byte_level(), torch.tensor([1]))
    assert (batch.input_ids[0][~batch.attention_mask[0]] == make_byte_level().eos_token_id).all()


def test_unknown_labels_are_none(make_byte_level):
    rows = [example(1), Example("x", "Q\nAnswer:")]
    assert collate(rows, make_byte_level(), torch.tensor([1])).labels is None
