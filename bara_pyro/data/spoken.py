"""Find the texts of a conversation and replace each by a unique mark, to see where a template writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bara_pyro.data.messages import Message
from bara_pyro.data.tools import DOCUMENTS, TOOLS, is_list
from bara_pyro.types import Fields, Json

# Parts of messages that link or sort them and are not text.
LINKS = ("role", "type", "id", "tool_call_id")
# Roles whose name is part of the text; the name of a tool is known from its call.
SPEAKERS = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Text:
    """A text of a conversation.

    Attributes:
        role: role of its message; None outside messages.
        part: the part of the message or of the row that holds it: "content", "tools".
        said: the text.
        is_marked: whether a mark replaces it; names of arguments are kept.
    """

    role: str | None
    part: str
    said: str
    is_marked: bool = True


def mark_of(number: int) -> str:
    """Return the mark that replaces the text of this number."""
    return f"mark{number}end"


def marked(messages: Sequence[Message], options: Fields, texts: list[Text]) -> tuple[list[Message], Fields]:
    """Return messages and template options with a mark in place of each text; appends them to `texts`."""
    with_marks: list[Message] = [{key: _part(message, key, texts) for key in message} for message in messages]
    beside = dict(options)
    if TOOLS in options:
        beside[TOOLS] = [_tool(tool, texts) for tool in options[TOOLS]]
    if DOCUMENTS in options:
        beside[DOCUMENTS] = _all(options[DOCUMENTS], (None, DOCUMENTS), texts)
    return with_marks, beside


def _part(message: Message, key: str, texts: list[Text]) -> object:
    role = message["role"]
    if key in LINKS or (key == "name" and role not in SPEAKERS):
        return message[key]
    return _all(message[key], (role, key), texts)


def _all(value: object, place: tuple[str | None, str], texts: list[Text], whole: bool = False) -> object:
    """Mark all texts of a value except links; of arguments (`whole`), everything except their names."""
    if isinstance(value, str):
        return _mark(value, place, texts) if value.strip() else value
    if is_list(value):
        return [_all(part, place, texts, whole) for part in value]
    if not isinstance(value, Mapping):
        return value
    if whole:
        texts.extend(Text(*place, key, is_marked=False) for key in value)
    return {
        key: part if key in LINKS and not whole else _all(part, place, texts, whole or key == "arguments")
        for key, part in value.items()
    }


def _tool(value: object, texts: list[Text]) -> object:
    """Mark names and descriptions in a tool's schema, except the names of its parameters."""
    if is_list(value):
        return [_tool(part, texts) for part in value]
    if not isinstance(value, Mapping):
        return value
    tool: Json = {}
    for key, part in value.items():
        if key in ("name", "description") and isinstance(part, str) and part.strip():
            tool[key] = _mark(part, (None, TOOLS), texts)
            continue
        if key == "properties" and isinstance(part, Mapping):
            texts.extend(Text(None, TOOLS, name, is_marked=False) for name in part)
        if key == "enum" and is_list(part):
            texts.extend(Text(None, TOOLS, one, is_marked=False) for one in part if isinstance(one, str))
        tool[key] = _tool(part, texts)
    return tool


def _mark(text: str, place: tuple[str | None, str], texts: list[Text]) -> str:
    texts.append(Text(*place, text))
    return mark_of(len(texts) - 1)
