"""Messages of a conversation, and what they come from: a cell of a row, or a plain text."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from bara_pyro.data.cells import label_text
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

Message = Mapping[str, str]
PROMPTS = ("prompt", "instruction", "question")
"""Columns that prompts are found in."""
SYSTEM_COLUMNS = ("system", "system_prompt")
"""Columns beside a prompt of what is said before it."""
SYSTEM = ("system", "developer")
"""Roles of what is said before anybody asks."""


def said_by_user(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """Return a plain prompt as what a user says in a conversation; messages as they are."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)


def texts_of(prompt: str | Sequence[Message]) -> list[str]:
    """Return the texts of a prompt: roles and contents."""
    return [text for message in said_by_user(prompt) for text in message.values()]


def asked_in(row: Fields, column: str, where: str) -> str | tuple[Message, ...]:
    """Return the prompt that a column holds, a text or messages, with what stands beside it.

    `input` is put below an `instruction` (Alpaca's format), and a text in one of `SYSTEM_COLUMNS` before it.

    Raises:
        DataError: messages that are none, or a system message of which there are two.
    """
    value = row[column]
    if not isinstance(value, str):
        return after_system(tuple(messages_of(value, where, column)), row, where)
    extra = row.get("input") if column == "instruction" else None
    if extra is not None and not isinstance(extra, str):
        extra = label_text(extra, f"'input' of {where}")
    return after_system(f"{value}\n{extra}" if extra else value, row, where)


def after_system(prompt: str | tuple[Message, ...], row: Fields, where: str) -> str | tuple[Message, ...]:
    """Return a prompt behind what a column of the row says before it; as it is where there is none."""
    column = next((name for name in SYSTEM_COLUMNS if row.get(name) not in (None, "")), None)
    if column is None:
        return prompt
    said = row[column]
    if not isinstance(said, str):
        raise DataError(f"{column!r} of {where} is {_told(said)}: give a text, or leave it out.")
    first, messages = {"role": "system", "content": said}, said_by_user(prompt)
    own, _ = _opening(messages)
    if not own:
        return (first, *messages)
    if not _same(own, [{**first, "role": own[0]["role"]}]):
        raise DataError(
            f"The messages of {where} begin with the {own[0]['role']}'s {own[0]['content'][:60]!r}, and "
            f"{column!r} says {said[:60]!r}: give one of the two."
        )
    return messages


def parted(messages: Sequence[Message], where: str) -> tuple[tuple[Message, ...], str]:
    """Return messages but the last, and the text of that; a `DataError` if it is not the assistant's."""
    *before, last = messages
    if last["role"] != "assistant":
        raise no_reply(len(messages), last["role"], where)
    return tuple(before), last["content"]


def no_reply(count: int, role: str, where: str) -> DataError:
    """Return the error of messages that do not end with an answer of the assistant."""
    return DataError(
        f"The last of {count} messages of {where} is the {role}'s: give what comes before a reply, and then "
        "the assistant's."
    )


def joined(
    given: tuple[Message, ...], turns: tuple[Message, ...], column: str, where: str
) -> tuple[Message, ...]:
    """Return a prompt and the turns between it and a reply, the prompt once where they begin with it again.

    What is said before anybody asks may stand in one of the two alone.

    Raises:
        DataError: the turns begin with another prompt than that of the column.
    """
    (own, asked), (other, said) = map(_opening, (given, turns))
    again = _same(said[: len(asked)], asked)
    if again and (not own or not other or _same(own, other)):
        return (*(own or other), *asked, *said[len(asked) :])
    if again or (said and said[0]["role"] == given[-1]["role"] == "user"):
        first = other[0] if again else said[0]
        raise DataError(
            f"The messages of {where} begin with the {first['role']}'s {first['content'][:60]!r}, which is "
            f"not what {column!r} says: leave {column!r} out, or begin with what it says."
        )
    return (*given, *turns)


def _opening(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Return the messages that stand before anybody asks, and the others."""
    count = next((n for n, message in enumerate(messages) if message["role"] not in SYSTEM), len(messages))
    return messages[:count], messages[count:]


def _same(some: Sequence[Message], others: Sequence[Message]) -> bool:
    """Return whether messages say the same; white space around a text, which files differ in, aside."""
    texts, other_texts = (
        [(message["role"], message["content"].strip()) for message in messages] for messages in (some, others)
    )
    return texts == other_texts


def messages_of(value: object, where: str, column: str) -> list[Message]:
    """Return the messages of a cell; a `DataError` that names its place where it holds anything else."""
    messages = list(value) if is_list(value) else []
    whole: list[Message] = [
        {"role": m["role"], "content": m["content"]}
        for m in messages
        if isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
    ]
    if not whole or len(whole) < len(messages):
        raise DataError(
            f"{column!r} of {where} is {_told(value)}: give {'' if column == 'messages' else 'a text or '}a "
            "list of messages, each with a 'role' and a text as its 'content'."
        )
    return whole


def _told(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"the number {value}" if is_number else repr(str(value)[:60])


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a cell holds a list, as messages are."""
    return isinstance(value, Sequence) and not isinstance(value, str)
