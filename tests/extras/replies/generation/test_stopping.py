"""Stop texts found in a tail: against the decoding of whole replies, and how much is decoded."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tokenizer_cases import TEXT, byte_fallback, byte_level, unigram, word_piece, words
from transformers import PreTrainedTokenizerFast

from bara_pyro.extras.replies.generation.stopping import Stop

BEFORE = ("It's", "what") * 40
MAKERS = (byte_level, byte_fallback, word_piece, unigram, words)
Maker = Callable[[], PreTrainedTokenizerFast]


def likely(tokenizer: PreTrainedTokenizerFast, rng: random.Random, length: int) -> list[int]:
    """Tokens of texts, some of them pieces that begin or end within a character, some of any kind."""
    found: list[int] = []
    while len(found) < length:
        text = rng.choice(TEXT) if rng.random() < 0.8 else f"a{chr(rng.randrange(0x80, 0x3000))}"
        told = tokenizer(text, add_special_tokens=False)["input_ids"]
        start = rng.randrange(len(told))
        found += told[start : start + rng.randrange(1, 12)]
        if rng.random() < 0.5:
            found += [rng.randrange(len(tokenizer) + 3) for _ in range(rng.randrange(1, 4))]
    return found[:length]


def some_stops(told: Sequence[str], rng: random.Random) -> list[str]:
    """Pieces of the replies, so that some rows end, and one that does not come."""
    whole = [text for text in told if text]
    places = [(text, rng.randrange(len(text) // 2, len(text))) for text in rng.choices(whole, k=2)]
    found = [text[at : at + rng.randrange(3, 14)] for text, at in places]
    return [*found, "never here"]


def by_whole(tokenizer: PreTrainedTokenizerFast, row: Sequence[int], stops: Sequence[str]) -> int | None:
    """The rule: the first token with which all of a reply, decoded, holds a text."""
    for count in range(1, len(row) + 1):
        told = str(tokenizer.decode(row[:count], skip_special_tokens=True))
        if any(text in told for text in stops):
            return count
    return None


def run(stop: Stop, ids: torch.Tensor) -> None:
    for end in range(stop.width + 1, ids.shape[1] + 1):
        ended = stop(ids[:, :end], torch.empty(0))
        assert ended.tolist() == [count is not None for count in stop.counts]


@pytest.mark.parametrize("tidied", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_tail_finds_what_the_whole_holds(maker: Maker, tidied: bool) -> None:
    tokenizer = maker()
    tokenizer.clean_up_tokenization_spaces = tidied
    rng = random.Random(f"{maker.__name__} {tidied}")
    found: list[int | None] = []
    late: list[int] = []
    for _ in range(8):
        rows = [likely(tokenizer, rng, 120) for _ in range(4)]
        stops = some_stops([str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows], rng)
        width = rng.randrange(3)
        ids = torch.tensor([[5] * width + row for row in rows])
        stop = Stop(stops, tokenizer, width)
        run(stop, ids)
        expected = [by_whole(tokenizer, row, stops) for row in rows]
        assert stop.counts == expected, (stops, rows)
        found += expected
        late += [count for count in expected if count is not None and count > stop._reach + 10]
    assert len(late) > 1  # behind the first tokens, which any tail holds
    assert None in found


@pytest.mark.parametrize(
    ("maker", "pieces", "stop", "there"),
    [
        (byte_level, ["so \N{OWL}", "\N{FOX FACE}"], "\N{OWL}\N{FOX FACE}", True),
        (byte_level, ["a", " ", "."] * 8, "a." * 8, True),  # spaces taken away
        (byte_level, ["a", " ", "'", " "] * 8, "a'" * 8, True),
        (byte_fallback, ["é"] * 8 + ["Ω"], "Ω", True),  # one run of bytes, of which a tail may begin in half
        (byte_fallback, ["<0xFF>"] + ["é"] * 8 + ["Ω"], "Ω", False),  # one bad byte, and none can be read
        (byte_fallback, ["It's", *["<|tool|>"] * 60, "</s>", "It's"], "It'sIt's", True),  # without a text
        (word_piece, ["owl", ".", "grey"], "owl. grey", True),
        (words, ["The", "owl"], "The owl", True),
    ],
)
def test_texts_of_many_tokens(maker: Maker, pieces: Sequence[str], stop: str, there: bool) -> None:
    """Behind so many others that the tail does not reach to the beginning."""
    tokenizer = maker()
    tokenizer.clean_up_tokenization_spaces = maker is byte_level
    row = [token for piece in (*BEFORE, *pieces) for token in tokens_of(tokenizer, piece)]
    found = Stop([stop], tokenizer, 0)
    run(found, torch.tensor([row]))
    assert found.counts == [by_whole(tokenizer, row, [stop])]
    assert (found.counts[0] is not None) == there


def tokens_of(tokenizer: PreTrainedTokenizerFast, piece: str) -> list[int]:
    known = tokenizer.convert_tokens_to_ids(piece)
    if isinstance(known, int) and known != tokenizer.convert_tokens_to_ids("<unk>"):
        return [known]
    if "<0x00>" in tokenizer.get_vocab():
        return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in piece.encode()]
    return list(tokenizer(piece, add_special_tokens=False)["input_ids"])


class Counting:
    """A tokenizer that counts what it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.decoded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        self.decoded += len(tokens)
        return str(self.tokenizer.decode(tokens, **options))


def test_as_much_is_decoded_a_token_however_long_the_reply() -> None:
    tokenizer = byte_level()
    rng = random.Random(0)
    row = likely(tokenizer, rng, 1600)
    spent = []
    for length in (400, 800, 1600):
        counting = Counting(tokenizer)
        run(Stop(["\n\nnever"], counting, 0), torch.tensor([row[:length]]))
        spent.append(counting.decoded)
    assert spent[1] < 2.1 * spent[0]
    assert spent[2] < 2.1 * spent[1]
    assert spent[2] < 40 * 1600
    ended = Counting(tokenizer)
    end = str(tokenizer.decode(row[20:23], skip_special_tokens=True))
    stop = Stop([end], ended, 0)
    run(stop, torch.tensor([row]))
    assert stop.counts[0] is not None
    assert ended.decoded < 2000  # none behind the end
