"""Texts that end a reply, with tokenizers of every kind."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizer_cases import byte_fallback, byte_level, word_piece, words
from transformers import PreTrainedTokenizerFast

from bara_pyro.extras.replies.generation.stopping import Stop

Maker = Callable[[], PreTrainedTokenizerFast]


@pytest.mark.parametrize(
    ("maker", "pieces", "stop", "there"),
    [
        (byte_level, ["so \N{OWL}", "\N{FOX FACE}"], "\N{OWL}\N{FOX FACE}", True),
        (byte_level, ["a", " ", "."] * 8, "a." * 8, True),  # spaces taken away
        (byte_level, ["a", " ", "'", " "] * 8, "a'" * 8, True),
        (byte_fallback, ["é"] * 8 + ["Ω"], "Ω", True),  # one run of bytes
        (byte_fallback, ["<0xFF>"] + ["é"] * 8 + ["Ω"], "Ω", False),  # one bad byte, and none can be read
        (byte_fallback, ["It's", *["<|tool|>"] * 60, "</s>", "It's"], "It'sIt's", True),  # without a text
        (word_piece, ["owl", ".", "grey"], "owl. grey", True),
        (words, ["The", "owl"], "The owl", True),
    ],
)
def test_a_text_of_many_tokens_ends_a_reply(
    maker: Maker, pieces: Sequence[str], stop: str, there: bool
) -> None:
    tokenizer = maker()
    tokenizer.clean_up_tokenization_spaces = maker is byte_level
    width, row = 2, [token for piece in ("It's", "what", *pieces) for token in tokens_of(tokenizer, piece)]
    ids = torch.tensor([[5] * width + row, tokenizer.all_special_ids[:1] * (width + len(row))])
    found = Stop(["never", stop], tokenizer, width)
    for end in range(width + 1, ids.shape[1] + 1):
        ended = found(ids[:, :end], torch.empty(0))
        assert ended.tolist() == [found.counts[0] is not None, False]
    told = [tokenizer.decode(row[:count], skip_special_tokens=True) for count in range(1, len(row) + 1)]
    expected = next((count for count, text in enumerate(told, 1) if stop in text), None)
    assert found.counts == [expected, None]
    assert (expected is not None) == there


def tokens_of(tokenizer: PreTrainedTokenizerFast, piece: str) -> list[int]:
    known = tokenizer.convert_tokens_to_ids(piece)
    if isinstance(known, int) and known != tokenizer.convert_tokens_to_ids("<unk>"):
        return [known]
    if "<0x00>" in tokenizer.get_vocab():
        return [tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in piece.encode()]
    return list(tokenizer(piece, add_special_tokens=False)["input_ids"])
