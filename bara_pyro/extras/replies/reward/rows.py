"""Turn a prompt and its reply into a row of tokens."""

from collections.abc import Sequence

from bara_pyro.data.conversations import Conversation, said_by_assistant, said_by_user
from bara_pyro.data.templates import written
from bara_pyro.data.tokens import Tokenizer, check_unicode, ids_of
from bara_pyro.errors import DataError


def row_of(conversation: Conversation, tokenizer: Tokenizer, max_length: int) -> list[int] | None:
    """Return the tokens of a prompt with its reply, or None if the reply alone exceeds `max_length`.

    If there is a chat template, both go through it, including what it writes after the reply, as on the cards
    of reward models; a plain prompt counts as a user's message. Otherwise the reply directly follows the
    prompt, with the tokenizer's usual special tokens and one end-of-text token at the end. A row that is too
    long loses the beginning of its prompt, except a special token at its start; the reply is never cut.

    Raises:
        DataError: messages are given without a chat template, the template rejects them or drops a text, a
            text is not valid Unicode, or there are no tokens.
    """
    prompt, both = _texts(conversation, tokenizer)
    check_unicode([prompt, both])
    if tokenizer.chat_template:  # the template writes the special tokens
        before, tokens = ids_of(tokenizer, [prompt, both])
    else:
        before, tokens = (list(tokenizer(text, verbose=False)["input_ids"]) for text in (prompt, both))
    if not tokens:
        raise DataError(f"Prompt and reply of row {conversation.id!r} have no tokens: give a text.")
    end = tokenizer.eos_token_id
    if not tokenizer.chat_template and end is not None and tokens[-1] != end:
        tokens.append(end)
    excess = len(tokens) - max_length
    if excess <= 0:
        return tokens
    front = 1 if tokens[0] in tokenizer.all_special_ids else 0
    if _common(before, tokens) - front < excess:
        return None
    return tokens[:front] + tokens[front + excess :]


def _texts(conversation: Conversation, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return a prompt, and the prompt with its reply."""
    if not tokenizer.chat_template:
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
