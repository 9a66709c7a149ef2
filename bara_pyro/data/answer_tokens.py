"""Answers as tokens: one token per label, or the tokens of a whole text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.data.schemas import ANSWER
from bara_pyro.data.tokens import Tokenizer, continuation, ids_of
from bara_pyro.data.types import LETTERS, ChatFrame
from bara_pyro.errors import DataError


def answer_token_ids(tokenizer: Tokenizer, labels: Sequence[str], chat: ChatFrame | None = None) -> Tensor:
    """Return the token of each label as it follows the prompt without a space.

    A label's token is what the tokenizer adds when the label is appended to a line break; if that is not one
    token, it is the encoding of the label by itself. Appending the label to the prompt could give another
    token, because some tokenizers merge across the boundary ("Answer:A" may contain the token ":A"). So could
    the label by itself, because SentencePiece puts a space before the first word of a text (["_", "A"] or
    ["_A"]). The result is the token of "A" for GPT-2 or Qwen tokenizers and of "A" inside a word for Llama,
    as in the published protocol (class tokens without a leading space).

    Args:
        tokenizer: a Hugging Face tokenizer.
        labels: C distinct labels, in class order.
        chat: the text around each question, if questions go through a chat template; a label's token is then
            the one that the template continues with.

    Returns:
        Token ids, long, `C`.

    Raises:
        DataError: a label is several tokens or an unknown token, or two labels are the same token.

    Examples:
        >>> import bara_pyro as bp
        >>> tokenizer = bp.load_backbone("microworld").tokenizer
        >>> tokens = bp.answer_token_ids(tokenizer, ["A", "B"])
        >>> tokenizer.convert_ids_to_tokens(tokens.tolist())
        ['A', 'B']
    """
    label_of: dict[int, str] = {}
    for label in labels:
        token = _single(tokenizer, label, label_tokens(tokenizer, label, chat))
        if token in label_of:
            raise DataError(
                f"The labels {label_of[token]!r} and {label!r} are the same token ({token}): rename one, or "
                "use labels='letters' (--labels letters)."
            )
        label_of[token] = label
    return torch.tensor(list(label_of), dtype=torch.long)


def label_tokens(tokenizer: Tokenizer, label: str, chat: ChatFrame | None = None) -> list[int]:
    """Return the tokens of a label of any length as it follows the prompt; see `answer_token_ids`."""
    if chat is not None:
        return continuation(tokenizer, chat.after, chat.space + label)
    readings = [continuation(tokenizer, "\n", label), ids_of(tokenizer, [label])[0]]
    return next((reading for reading in readings if len(reading) == 1), readings[0])


def _single(tokenizer: Tokenizer, label: str, tokens: list[int]) -> int:
    way_out = "use labels='letters' (--labels letters) to answer with a letter instead."
    if label in LETTERS and (len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id):
        raise DataError(
            f"The tokenizer has no single token for the letter {label!r}: use another model, or a task with "
            "fewer options."
        )
    if len(tokens) != 1:
        pieces = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(tokens)))
        raise DataError(f"The label {label!r} is {len(tokens)} tokens ({pieces}), but must be one: {way_out}")
    if tokens[0] == tokenizer.unk_token_id:
        raise DataError(f"The label {label!r} is not in the tokenizer's vocabulary: {way_out}")
    return tokens[0]


def text_tokens(tokenizer: Tokenizer, text: str, chat: ChatFrame | None = None) -> list[int]:
    """Return the tokens of an answer's whole text as it follows a prompt and a space, or a chat's prompt.

    Raises:
        DataError: the text has no tokens, or an unknown one.
    """
    tokens = (
        continuation(tokenizer, ANSWER, f" {text}")
        if chat is None
        else continuation(tokenizer, chat.after, chat.space + text)
    )
    if not tokens or tokenizer.unk_token_id in tokens:
        raise DataError(
            f"The tokenizer cannot read the answer {text!r}: choose another language model (--model), use "
            "letters (--labels letters), or rename the answers."
        )
    return tokens
