"""Turn a prompt and its reply into a row of tokens, and rows into a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bara_pyro.data.conversations import Conversation
from bara_pyro.data.messages import said_by_assistant, said_by_user
from bara_pyro.data.templates import written
from bara_pyro.data.tokens import Tokenizer, check_unicode, ids_of
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.reward.model import CHAT


def row_of(conversation: Conversation, tokenizer: Tokenizer, form: str, max_length: int) -> list[int] | None:
    """Return the tokens of a prompt with its reply, or None if the reply alone exceeds `max_length`.

    With "chat", both go through the chat template, including what the template writes after the reply, as on
    the cards of reward models; a plain prompt counts as a user's message. With "ended", the reply directly
    follows the prompt, with the tokenizer's usual special tokens and one end-of-text token at the end. A row
    that is too long loses the beginning of its prompt, except a special token at its start, and never a part
    of its reply.

    Raises:
        DataError: messages are given without the form "chat", the template rejects them or drops a text, a
            text is not valid Unicode, or there are no tokens.
    """
    prompt, both = _texts(conversation, tokenizer, form)
    check_unicode([prompt, both])
    if form == CHAT:  # the template writes the special tokens
        before, tokens = ids_of(tokenizer, [prompt, both])
    else:
        before, tokens = (list(tokenizer(text, verbose=False)["input_ids"]) for text in (prompt, both))
    if not tokens:
        raise DataError(f"Prompt and reply of row {conversation.id!r} have no tokens: give a text.")
    end = tokenizer.eos_token_id
    if form != CHAT and end is not None and tokens[-1] != end:
        tokens.append(end)
    excess = len(tokens) - max_length
    if excess <= 0:
        return tokens
    front = 1 if tokens[0] in tokenizer.all_special_ids else 0
    if _common(before, tokens) - front < excess:
        return None
    return tokens[:front] + tokens[front + excess :]


def _texts(conversation: Conversation, tokenizer: Tokenizer, form: str) -> tuple[str, str]:
    """Return a prompt, and the prompt with its reply."""
    if form != CHAT:
        prompt, reply = conversation.prompt, conversation.reply
        if not (isinstance(prompt, str) and isinstance(reply, str)):
            raise DataError(
                f"Row {conversation.id!r} is a conversation, but the reward model has no chat template: give "
                "prompt and reply as texts."
            )
        return prompt, prompt + reply
    messages, reply = said_by_user(conversation.prompt), said_by_assistant(conversation.reply)
    texts = written(messages, tokenizer, f"row {conversation.id!r}", reply=reply)
    return texts.given, texts.whole


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two rows."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return rows as ids and mask (long, `B x T`), where T is the length of the longest row.

    Padding is always on the right, so that tokens keep their positions, which matters in models with learnt
    positions.
    """
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask
