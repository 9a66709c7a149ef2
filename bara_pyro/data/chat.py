"""Messages as tokens: a prompt as a chat template writes it, and the reply that is learnt behind it."""

from collections.abc import Sequence

from bara_pyro.data.messages import Message, said_by_user
from bara_pyro.data.templates import Written, model_of, written
from bara_pyro.data.tokens import Tokenizer, continuation, front_ids, ids_of
from bara_pyro.data.turns import turn_end
from bara_pyro.errors import DataError
from bara_pyro.types import Fields


def prompt_tokens(
    prompt: str | Sequence[Message], tokenizer: Tokenizer, what: str = "", options: Fields | None = None
) -> list[int]:
    """Return the tokens of what a reply follows: of a text, or of messages up to the assistant's turn.

    Args:
        prompt: it.
        tokenizer: with a chat template for messages.
        what: it is, for errors.
        options: what the template is given beside messages.

    Raises:
        DataError: messages are given, and the tokenizer has no chat template, or one that refuses them or
            leaves out what they say.
    """
    if isinstance(prompt, str):
        return front_ids(tokenizer) + ids_of(tokenizer, [prompt])[0]
    _check_template(tokenizer)
    found = written(prompt, tokenizer, what or f"the messages {str([*prompt])[:80]}", options)
    return ids_of(tokenizer, [found.given])[0]


def in_chat(prompt: str | Sequence[Message], tokenizer: Tokenizer) -> tuple[Message, ...]:
    """Return a prompt as messages, a plain one as what a user says, because chat=True (--chat) asks for that.

    Raises:
        DataError: it is plain, and the tokenizer has no chat template.
    """
    if isinstance(prompt, str) and not tokenizer.chat_template:
        raise DataError(
            f"{model_of(tokenizer)} has no chat template: leave out chat=True (--chat), or give a model "
            "made for conversations."
        )
    return said_by_user(prompt)


def _check_template(tokenizer: Tokenizer) -> None:
    if not tokenizer.chat_template:
        raise DataError(
            f"{model_of(tokenizer)} has no chat template, which messages need: give texts in their place, "
            "without a column 'system', or a model made for conversations."
        )


def answered(
    prompt: Sequence[Message], reply: Message, tokenizer: Tokenizer, what: str, options: Fields
) -> tuple[list[int], list[int]]:
    """Return the tokens of messages up to the assistant's turn, and those that a reply adds to them.

    Args:
        prompt: what the reply follows.
        reply: the assistant's message.
        tokenizer: with a chat template.
        what: is written, for errors.
        options: what the template is given beside messages.

    Raises:
        DataError: see `prompt_tokens`; or the reply does not come last in what the template writes.
    """
    _check_template(tokenizer)
    found = written(prompt, tokenizer, what, options, reply)
    if not found.whole.startswith(found.given):
        raise DataError(
            f"The chat template does not put the reply of {what} behind what opens the assistant's turn: "
            "give prompt and completion as texts."
        )
    return ids_of(tokenizer, [found.given])[0], _learnt(found, tokenizer)


def _learnt(found: Written, tokenizer: Tokenizer) -> list[int]:
    """Return what a template writes of a reply, up to the token that ends it.

    What it writes behind that token is never generated. The reply may speak of such tokens itself: the end is
    the first of them behind its last text.
    """
    reply = found.whole[len(found.given) :]
    tokens = continuation(tokenizer, found.given, reply)
    closing = {tokenizer.eos_token_id, turn_end(tokenizer)} - {None}
    behind = ids_of(tokenizer, [found.tail[-len(reply) :]])[0] if reply else []
    ends = [place for place, token in enumerate(tokens) if token in closing]
    if count := sum(token in closing for token in behind):
        return tokens[: ends[-count] + 1]
    bare = tokens
    while bare and not tokenizer.decode(bare[-1:]).strip():
        bare = bare[:-1]
    added = tokenizer.added_tokens_decoder
    if bare and bare[-1] in added and added[bare[-1]].special:  # a call may end in a token of its own
        return bare
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [*tokens, *end] if tokens else []  # of a template that closes no turn: a reply would never stop
