"""Messages of a conversation, and what they come from: a cell of a row, or a plain text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bara_pyro.data.cells import label_text
from bara_pyro.data.tools import is_list, tool_calls
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

Message = Mapping[str, Any]
"""A message: `role`, `content`, and whatever else a chat template may write of it."""
PROMPTS = ("prompt", "instruction", "question")
"""Columns that prompts are found in."""
SYSTEM_COLUMNS = ("system", "system_prompt")
"""Columns beside a prompt of what is said before it."""
SYSTEM = ("system", "developer")
"""Roles of what is said before anybody asks."""


def said_by_user(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """Return a plain prompt as what a user says in a conversation; messages as they are."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)


def said_by_assistant(reply: str | Message) -> Message:
    """Return a plain reply as what the assistant says; a message as it is."""
    return {"role": "assistant", "content": reply} if isinstance(reply, str) else reply


def texts_of(value: object) -> Iterator[str]:
    """Yield all texts of a prompt, a message or a reply, the names of its parts included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield key
            yield from texts_of(part)
    elif is_list(value):
        for part in value:
            yield from texts_of(part)


def shown_message(said: str | Message) -> str:
    """Return a plain text, or what a message says, for a reader: its text, then its other parts by name."""
    if isinstance(said, str):
        return said
    others = {key: part for key, part in said.items() if key not in ("role", "content")}
    told = [f"{key}: {part if isinstance(part, str) else json.dumps(part)}" for key, part in others.items()]
    return "\n".join([*([said["content"]] if said["content"] or not told else []), *told])


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


def parted(messages: Sequence[Message], where: str) -> tuple[tuple[Message, ...], str | Message]:
    """Return messages but the last, and that one, as a text where it has no more.

    An answer whose `weight` is 0 (OpenAI's) is not learnt: the last is the last with another weight.

    Raises:
        DataError: the last is not the assistant's, or every answer has the weight 0.
    """
    if messages[-1]["role"] != "assistant":
        raise no_reply(len(messages), messages[-1]["role"], where)
    answers = [n for n, said in enumerate(messages) if said["role"] == "assistant"]
    learnt = [n for n in answers if _weight(messages[n], where) != 0]
    if not learnt:
        raise DataError(f"Every answer of {where} has the 'weight' 0, and nothing is to learn: leave it out.")
    last = {key: part for key, part in messages[learnt[-1]].items() if key != "weight"}
    return tuple(messages[: learnt[-1]]), last["content"] if last.keys() == {"role", "content"} else last


def given_only(messages: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Return messages that are read and not learnt, without their weights.

    Raises:
        DataError: one has a `weight` other than 0, which asks for it to be learnt.
    """
    if any(_weight(said, where) for said in messages):
        raise DataError(
            f"A message of {where} before the reply has the 'weight' 1, and one answer a row is learnt: give "
            "it the weight 0, or a row of its own."
        )
    return unweighted(messages)


def unweighted(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages without their weights, which say what is learnt."""
    return tuple({key: part for key, part in said.items() if key != "weight"} for said in messages)


def _weight(message: Message, where: str) -> object:
    """Return the weight of a message, None where it has none."""
    weight = message.get("weight")
    if weight is not None and (weight not in (0, 1) or (weight and message["role"] != "assistant")):
        raise DataError(
            f"A message of the {message['role']} of {where} has the 'weight' {repr(weight)[:20]}: give 0 or "
            "1, and 1 to the assistant's only."
        )
    return weight


def no_reply(count: int, role: str, where: str) -> DataError:
    """Return the error of messages that do not end with an answer of the assistant."""
    return DataError(
        f"The last of {count} messages of {where} is the {role}'s: give what comes before a reply, and then "
        "the assistant's."
    )


def joined_turns(
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
    one, other = (
        [{**message, "content": message["content"].strip()} for message in unweighted(messages)]
        for messages in (some, others)
    )
    return one == other


def messages_of(value: object, where: str, column: str) -> list[Message]:
    """Return the messages of a cell with all that they have; nulls are what they have not.

    Raises:
        DataError: the cell holds anything else, or a message is without a role or a text; tool calls do in
            place of a text.
    """
    found = [_message(part, where) for part in value] if is_list(value) else []
    whole = [message for message in found if message is not None]
    if not whole or len(whole) < len(found):
        raise DataError(
            f"{column!r} of {where} is {_told(value)}: give {'' if column == 'messages' else 'a text or '}a "
            "list of messages, each with a 'role' and a text as its 'content'."
        )
    return whole


def _message(value: object, where: str) -> Message | None:
    """Return a message of a cell; None where it is none."""
    if not isinstance(value, Mapping):
        return None
    found = {str(key): part for key, part in value.items() if part is not None}
    if "tool_calls" in found:
        calls = found.pop("tool_calls")
        if calls not in ("", "[]", [], ()):
            found["tool_calls"] = tool_calls(calls, where)
            found.setdefault("content", "")
    if is_list(parts := found.get("content")):
        texts = [
            part["text"] for part in parts if isinstance(part, Mapping) and part.keys() == {"type", "text"}
        ]
        if texts and len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            found["content"] = "".join(texts)  # as templates that take parts write them
    fine = isinstance(found.get("role"), str) and isinstance(found.get("content"), str)
    return found if fine else None


def _told(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"the number {value}" if is_number else repr(str(value)[:60])
