"""The tokens of answers: the one of each label, and those of a whole text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.data.schemas import ANSWER
from bara_pyro.data.tokens import Tokenizer, continuation, ids_of
from bara_pyro.data.types import LETTERS
from bara_pyro.errors import DataError


def answer_token_ids(tokenizer: Tokenizer, labels: Sequence[str]) -> Tensor:
    """Return the token that each label is when it follows the prompt without a space.

    The rule: what the tokenizer adds to a line break when the label is appended; where that is not one token,
    what it makes of the label alone. A line break, and not the prompt's own end, because some tokenizers
    merge across ("Answer:A" may hold the token ":A"), and the label alone is not enough either: SentencePiece
    puts a space in front of a text's first word (["_", "A"] or ["_A"]), which the label does not have here.
    For GPT-2 or Qwen tokenizers this is the token of "A", for Llama ones that of "A" inside a word: the
    tokens of the published protocol (class tokens without a leading space).

    Args:
        tokenizer: a Hugging Face tokenizer.
        labels: C distinct labels, in class order.

    Returns:
        long, `C`.

    Raises:
        DataError: a label is several tokens or unknown to the tokenizer, or two labels are the same token.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> tokens = bp.answer_token_ids(tokenizer, ["A", "B"])
        >>> tokenizer.convert_ids_to_tokens(tokens.tolist())
        ['A', 'B']
    """
    found: dict[int, str] = {}
    for label in labels:
        token = _single(tokenizer, label, label_tokens(tokenizer, label))
        if token in found:
            raise DataError(
                f"The labels {found[token]!r} and {label!r} are the same token ({token}): rename one, or "
                "use labels='letters' (--labels letters)."
            )
        found[token] = label
    return torch.tensor(list(found), dtype=torch.long)


def label_tokens(tokenizer: Tokenizer, label: str) -> list[int]:
    """Return the tokens of a label of any length where it follows the prompt; see `answer_token_ids`."""
    readings = [continuation(tokenizer, "\n", label), ids_of(tokenizer, [label])[0]]
    return next((reading for reading in readings if len(reading) == 1), readings[0])


def _single(tokenizer: Tokenizer, label: str, tokens: list[int]) -> int:
    way_out = "use labels='letters' (--labels letters), which asks for a letter instead."
    if label in LETTERS and (len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id):
        raise DataError(
            f"The tokenizer has no single token for the letter {label!r}: use another model, or a task with "
            "fewer options."
        )
    if len(tokens) != 1:
        pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(tokens)))
        raise DataError(
            f"The label {label!r} is {len(tokens)} tokens ({pieces}), and an answer must be one: {way_out}"
        )
    if tokens[0] == tokenizer.unk_token_id:
        raise DataError(f"The label {label!r} is not in the tokenizer's vocabulary: {way_out}")
    return tokens[0]


def text_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of an answer's whole text behind a prompt, from which a space parts it.

    Raises:
        DataError: it has none, or the tokenizer does not know one of them.
    """
    tokens = continuation(tokenizer, ANSWER, f" {text}")
    if not tokens or tokenizer.unk_token_id in tokens:
        raise DataError(
            f"The tokenizer cannot read the answer {text!r}: give another language model (--model), ask for "
            "letters (--labels letters), or give the answers other names."
        )
    return tokens
