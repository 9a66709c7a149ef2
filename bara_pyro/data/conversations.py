"""Read conversations in TRL's formats: prompts with replies, as texts or as messages of several roles."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from bara_pyro.data.rows import check_ids, column_in, own_id
from bara_pyro.data.tables import Data, DataTable, label_text, read_table
from bara_pyro.data.tokens import check_unicode
from bara_pyro.errors import DataError
from bara_pyro.types import Fields

Message = Mapping[str, Any]
"""A message: `role`, `content`, and other parts that a chat template may use."""
PROMPTS = ("prompt", "instruction", "question")
"""Columns of prompts."""
SYSTEM_COLUMNS = ("system", "system_prompt")
"""Columns of a system message beside a prompt."""
SYSTEM = ("system", "developer")
"""Roles of messages that come before the first turn."""
REPLIES = ("completion", "chosen", "response", "output", "answer")
"""Columns of replies."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Parts of an assistant's message; columns with these names are refused."""
UNREAD = {
    "chat_template_kwargs": "write their values into a copy of the template",
    **dict.fromkeys(("tools", "documents", "functions"), "only what is said is read"),
    **dict.fromkeys(("image", "images", "audio", "audios", "video", "videos"), "only texts are read"),
}
# What Arrow and CSV put where other rows have something.
EMPTY: tuple[object, ...] = (None, "", "[]", [], (), {})


@dataclass(frozen=True)
class Conversation:
    """A prompt and the reply to learn, as texts or as messages.

    Attributes:
        prompt: a text, or the messages before the reply, each with `role` and `content`.
        reply: a text, or the assistant's message if it has other parts, such as reasoning.
        id: a stable identifier.
    """

    prompt: str | tuple[Message, ...]
    reply: str | Message
    id: str

    def spoken(self) -> "Conversation":
        """Return a copy whose plain prompt has become a message of the user."""
        return replace(self, prompt=said_by_user(self.prompt))


def load_conversations(data: Data, split: str = "row") -> list[Conversation]:
    """Read the conversations of a file, DataFrame, `datasets.Dataset` or list of dictionaries.

    Rows have one of TRL's formats:

    - `messages`: a conversation whose last message is the assistant's reply;
    - `prompt` (a text or messages) with `completion`;
    - `prompt`, `chosen` and `rejected`: the chosen reply is learnt.

    The column `prompt` may also be called `instruction` or `question`, and `completion` may be `response`,
    `output` or `answer`. If the reply column holds messages, the last one is the reply and the others follow
    the prompt, which they may repeat. A column `input` beside an `instruction` (Alpaca's format) is put below
    it. A text in `system` or `system_prompt` becomes the system message.

    Args:
        data: the rows.
        split: prefix of the identifiers of rows without an id, `<split>-<row>`.

    Raises:
        DataError: the file cannot be read, a row has none of these formats or invalid Unicode, messages do
            not end with the assistant's or contradict the prompt, or two rows have the same id.

    Examples:
        >>> import bara_pyro as bp
        >>> [row] = bp.load_conversations([{"prompt": "Count on from 3 :", "completion": " 4 5"}])
        >>> row.prompt, row.reply, row.id
        ('Count on from 3 :', ' 4 5', 'row-1')
    """
    return conversations_in(read_table(data), split)


def conversations_in(table: DataTable, split: str) -> list[Conversation]:
    """Return the conversations of a table; see `load_conversations`."""
    conversations = []
    for number, row in enumerate(table.rows, 1):
        where = f"row {number} of {table.place}"
        one = _conversation(row, where, own_id(row) or f"{split}-{number}")
        check_unicode(texts_of([one.prompt, one.reply, one.id]), row, where)
        conversations.append(one)
    check_ids([row.id for row in conversations], table.place)
    return conversations


def _conversation(row: Fields, where: str, row_id: str) -> Conversation:
    whole = row.get("messages")
    if whole is None and is_list(row.get("chosen")) and column_in(row, PROMPTS) is None:
        whole = row["chosen"]
    prompt: str | tuple[Message, ...]
    if whole is not None:
        turns, reply = parted(messages_of(whole, where, "messages"), where)
        if not turns:
            raise no_reply(1, "assistant", where)
        prompt = after_system(turns, row, where)
    else:
        column = column_in(row, REPLIES)
        prompt_column = column_in(row, (name for name in PROMPTS if name != column))
        if prompt_column is None or column is None:
            raise DataError(
                f"There is no reply to learn in {where}, which has {', '.join(map(str, row)) or 'no columns'}"
                f": give 'messages', or 'prompt' with one of {', '.join(map(repr, REPLIES))}."
            )
        prompt, reply = asked_in(row, prompt_column, where), row[column]
        if not isinstance(reply, str):
            turns, reply = parted(messages_of(reply, where, column), where)
            prompt = joined_turns(said_by_user(prompt), turns, prompt_column, where)
    check_read(row, where)
    known = set(texts_of(reply))
    for column in REASONING:
        if row.get(column) and row[column] not in known:
            raise DataError(
                f"{where} has a column {column!r}, which is not read: leave it out, or put it into the "
                "assistant's message."
            )
    return Conversation(prompt, reply, row_id)


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a list or another sequence except a text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_read(row: Fields, where: str) -> None:
    """Raise a `DataError` if a row has a column that changes what is said and is not read."""
    for column, way_out in UNREAD.items():
        if row.get(column) not in EMPTY:
            raise DataError(f"{where} has a column {column!r}, which is not read: leave it out ({way_out}).")


def said_by_user(prompt: str | Sequence[Message]) -> tuple[Message, ...]:
    """Return a plain prompt as a message of the user; messages are returned unchanged."""
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)


def said_by_assistant(reply: str | Message) -> Message:
    """Return a plain reply as a message of the assistant; a message is returned unchanged."""
    return {"role": "assistant", "content": reply} if isinstance(reply, str) else reply


def texts_of(value: object) -> Iterator[str]:
    """Yield all texts of a prompt, a message or a reply, including the names of its parts."""
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
    """Return a message as text for a reader: its content, then its other parts by name."""
    if isinstance(said, str):
        return said
    others = {key: part for key, part in said.items() if key not in ("role", "content")}
    lines = [f"{key}: {part if isinstance(part, str) else json.dumps(part)}" for key, part in others.items()]
    return "\n".join([*([said["content"]] if said["content"] or not lines else []), *lines])


def asked_in(row: Fields, column: str, where: str) -> str | tuple[Message, ...]:
    """Return the prompt in a column, a text or messages, completed from the row's other columns.

    An `input` is put below an `instruction` (Alpaca's format); a text in one of `SYSTEM_COLUMNS` becomes the
    system message. Invalid messages, or two different system messages, raise a `DataError`.
    """
    value = row[column]
    if not isinstance(value, str):
        return after_system(tuple(messages_of(value, where, column)), row, where)
    extra = row.get("input") if column == "instruction" else None
    if extra is not None and not isinstance(extra, str):
        extra = label_text(extra, f"'input' of {where}")
    return after_system(f"{value}\n{extra}" if extra else value, row, where)


def after_system(prompt: str | tuple[Message, ...], row: Fields, where: str) -> str | tuple[Message, ...]:
    """Return a prompt preceded by the row's system message, if it has one."""
    column = next((name for name in SYSTEM_COLUMNS if row.get(name) not in (None, "")), None)
    if column is None:
        return prompt
    system = row[column]
    if not isinstance(system, str):
        raise DataError(f"{column!r} of {where} is {system!r:.60}: give a text, or leave it out.")
    first, messages = {"role": "system", "content": system}, said_by_user(prompt)
    opening, _ = _opening(messages)
    if not opening:
        return (first, *messages)
    if not _same(opening, [{**first, "role": opening[0]["role"]}]):
        raise DataError(
            f"The messages of {where} begin with the {opening[0]['role']}'s {opening[0]['content'][:60]!r}, "
            f"but {column!r} is {system[:60]!r}: keep only one."
        )
    return messages


def parted(messages: Sequence[Message], where: str) -> tuple[tuple[Message, ...], str | Message]:
    """Return the messages before the reply, and the reply, as a text if it has no other parts.

    The reply is the last message; if it is not the assistant's, this raises a `DataError`.
    """
    *before, reply = messages
    if reply["role"] != "assistant":
        raise no_reply(len(messages), reply["role"], where)
    return tuple(before), reply["content"] if reply.keys() == {"role", "content"} else reply


def no_reply(count: int, role: str, where: str) -> DataError:
    """Return the error for messages that do not end with a reply of the assistant."""
    return DataError(
        f"The last of {count} messages of {where} is the {role}'s: end with a prompt and the assistant's "
        "reply to it."
    )


def joined_turns(
    given: tuple[Message, ...], turns: tuple[Message, ...], column: str, where: str
) -> tuple[Message, ...]:
    """Return a prompt followed by the turns before a reply; a prompt that the turns repeat is kept once.

    A system message may be in only one of the two. If the turns begin with another prompt than the column's,
    this raises a `DataError`.
    """
    (first_opening, first_turns), (other_opening, other_turns) = map(_opening, (given, turns))
    again = _same(other_turns[: len(first_turns)], first_turns)
    if again and (not first_opening or not other_opening or _same(first_opening, other_opening)):
        return (*(first_opening or other_opening), *first_turns, *other_turns[len(first_turns) :])
    if again or (other_turns and other_turns[0]["role"] == given[-1]["role"] == "user"):
        first = other_opening[0] if again else other_turns[0]
        raise DataError(
            f"The messages of {where} begin with the {first['role']}'s {first['content'][:60]!r}, which "
            f"differs from {column!r}: leave {column!r} out, or begin with its content."
        )
    return (*given, *turns)


def _opening(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split messages into the system messages at the beginning and the others."""
    count = next((n for n, message in enumerate(messages) if message["role"] not in SYSTEM), len(messages))
    return messages[:count], messages[count:]


def _same(some: Sequence[Message], others: Sequence[Message]) -> bool:
    """Return whether messages are equal except for white space around their texts."""
    one, other = (
        [{**message, "content": message["content"].strip()} for message in messages]
        for messages in (some, others)
    )
    return one == other


def messages_of(value: object, where: str, column: str) -> list[Message]:
    """Return the messages of a cell, without parts that are null, or raise a `DataError`.

    Each has a role and a text.
    """
    parts = [_message(part, where) for part in value] if is_list(value) else []
    messages = [message for message in parts if message is not None]
    if not messages or len(messages) < len(parts):
        raise DataError(
            f"{column!r} of {where} is {value!r:.60}: give {'' if column == 'messages' else 'a text or '}a "
            "list of messages, each with a 'role' and a text as 'content'."
        )
    return messages


def _message(value: object, where: str) -> Message | None:
    """Return a value as a message, or None if it is not one."""
    if not isinstance(value, Mapping):
        return None
    message = {str(key): part for key, part in value.items() if part is not None}
    for part in ("tool_calls", "weight"):
        if message.pop(part, None) not in EMPTY:
            raise DataError(
                f"A message of {where} has {part!r}, which is not read: leave the row out, or the part. Each "
                "row learns the text of its last answer."
            )
    if is_list(parts := message.get("content")):
        texts = [
            part["text"] for part in parts if isinstance(part, Mapping) and part.keys() == {"type", "text"}
        ]
        if texts and len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            message["content"] = "".join(texts)  # as templates join parts
    fine = isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    return message if fine else None
