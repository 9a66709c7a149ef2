"""Write messages with a chat template, and check that it omits none of their texts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jinja2 import TemplateError

from bara_pyro.data.conversations import Message, is_list, messages_of
from bara_pyro.data.tokens import Tokenizer
from bara_pyro.errors import DataError
from bara_pyro.types import Fields, Json
from bara_pyro.untrusted.templates import rendered

# Exceptions of templates about messages in a form that they do not expect.
FAILURES = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
# Arguments of `apply_chat_template` that are not those of a template.
OURS = (
    *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
    "continue_final_message",
)
# What to do about a message that a template omits, by its role.
WAYS_OUT = {
    "system": "put it into the user's first message",
    "developer": "give it the role 'system'",
    "tool": "choose a model whose template writes the role 'tool'",
}


Writer = Callable[[Sequence[Message]], tuple[str, str]]
# Parts of messages that link or sort them and are not text.
LINKS = ("role", "type", "id", "tool_call_id")
# Roles whose name is part of the text; the name of a tool is not said by anybody.
SPEAKERS = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Text:
    """A text of a conversation: the role of its message, the part that holds it ("content"), and the text."""

    role: str
    part: str
    said: str


@dataclass(frozen=True)
class Written:
    """Messages as a chat template writes them.

    Attributes:
        given: the messages up to the assistant's turn.
        whole: all messages with the reply; equals `given` without one.
        tail: the end of `whole`, after the last text.
    """

    given: str
    whole: str
    tail: str


def written(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    what: str,
    options: Fields | None = None,
    reply: Message | None = None,
) -> Written:
    """Write messages with a chat template, without and with a reply.

    A text is given as it is or, if the template then does not write every text of the messages, as a list of
    one part, as models expect that also read images. The template may change white space and write a text as
    JSON. `options` are further arguments of the template, and `what` names the messages in errors, for
    example "row 'a'".

    Raises:
        DataError: the template refuses the messages, omits a text in both forms, or does not know an option.
    """
    options = options or {}
    _check_options(tokenizer, options, what)
    every = [*messages] if reply is None else [*messages, reply]
    checked = messages_of(every, what, "messages")
    failed: Exception | None = None
    lost: list[Text] = []
    for in_parts in (False, True):
        writer = partial(_rendered, tokenizer, options, in_parts, answered=reply is not None)
        try:
            texts, missing = _tried(checked, writer)
        except FAILURES as error:
            failed = failed or error
            continue
        if in_parts:
            missing += _spoiled(checked, texts.whole)
        if not missing:
            return texts
        lost = missing if not lost or len(missing) < len(lost) else lost
    if lost:
        raise _left_out(lost[0], tokenizer, what)
    raise DataError(
        f"The chat template refuses {what} ({str(failed).rstrip('.')[:120]}): change its messages."
    ) from failed


def model_of(tokenizer: Tokenizer) -> str:
    """Return the name of a tokenizer's model, or what stands for it within a sentence."""
    return tokenizer.name_or_path or "the tokenizer"


def _left_out(text: Text, tokenizer: Tokenizer, what: str) -> DataError:
    shown = f"{text.said.strip()[:40]!r}"
    way_out = WAYS_OUT.get(text.role, "change or leave out the message")
    if text.part != "content":
        way_out = f"leave {text.part!r} out of that message"
    elif "</think>" in text.said:
        way_out = "remove the thoughts"
    return DataError(
        f"The chat template of {model_of(tokenizer)} omits the {text.role}'s {text.part!r} {shown} of "
        f"{what}: {way_out}, or choose another model."
    )


def _check_options(tokenizer: Tokenizer, options: Fields, what: str) -> None:
    """Refuse options that the template does not use, or that are not for it."""
    template = tokenizer.chat_template
    if not isinstance(template, str):
        template = tokenizer.get_chat_template(None)
    for name in options:
        if name in OURS or not re.search(rf"\b{re.escape(name)}\b", template):
            raise DataError(
                f"The chat template of {model_of(tokenizer)} does not use {name!r} in {what}: leave it out."
            )


def _rendered(
    tokenizer: Tokenizer, options: Fields, in_parts: bool, messages: Sequence[Message], *, answered: bool
) -> tuple[str, str]:
    """Return the text up to the assistant's turn, and the whole text; they are the same unless `answered`."""
    formed = [{**message, "content": [_as_part(message)]} for message in messages] if in_parts else messages
    prompt = formed[:-1] if answered else formed
    before = rendered(tokenizer, prompt, options, opened=True)
    return before, rendered(tokenizer, formed, options, opened=False) if answered else before


def _as_part(message: Message) -> Json:
    return {"type": "text", "text": message["content"]}


def _tried(messages: Sequence[Message], writer: Writer) -> tuple[Written, list[Text]]:
    """Return the template's output, and the texts that it omits.

    Each text must be in the output. The template is also run with a unique mark in place of each text, which
    must be in that output: a short text may be there by chance.
    """
    before, full = writer(messages)
    texts: list[Text] = []
    with_marks = [{key: _part(message, key, texts) for key in message} for message in messages]
    marks = {_mark(number): text for number, text in enumerate(texts)}
    try:
        _, tried = writer(with_marks)
    except FAILURES:  # the template parses a text
        tried = "".join(marks)
    bare = _bare(full)
    missing = [
        *(text for mark, text in marks.items() if mark not in tried),
        *(text for text in texts if _bare(text.said) not in bare and _bare(_inside(text.said)) not in bare),
    ]
    tail = tried[max((tried.rfind(mark) + len(mark) for mark in marks), default=0) :]
    if not tail or not full.endswith(tail):  # the ending depends on a text
        last_text = messages[-1]["content"].strip()
        tail = full.rpartition(last_text)[2] if last_text else ""
    return Written(before, full, tail), missing


def _part(message: Message, key: str, texts: list[Text]) -> object:
    """Return a part of a message with a mark in place of each text, which is added to `texts`."""
    if key in LINKS or (key == "name" and message["role"] not in SPEAKERS):
        return message[key]
    return _marked(message[key], message["role"], key, texts)


def _marked(value: object, role: str, part: str, texts: list[Text]) -> object:
    if isinstance(value, str) and value.strip():
        texts.append(Text(role, part, value))
        return _mark(len(texts) - 1)
    if is_list(value):
        return [_marked(one, role, part, texts) for one in value]
    if isinstance(value, Mapping):
        return {key: one if key in LINKS else _marked(one, role, part, texts) for key, one in value.items()}
    return value


def _mark(number: int) -> str:
    return f"mark{number}end"


def _spoiled(messages: Sequence[Message], whole: str) -> Iterator[Text]:
    """Yield texts whose part is written as Python or JSON, because the template expects the text itself."""
    for message in messages:
        part = _as_part(message)
        if str(part) in whole or _json(part) in whole:
            yield Text(message["role"], "content", message["content"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _inside(text: str) -> str:
    """Return a text as JSON, without the quotes around it."""
    return _json(text)[1:-1]


def _bare(text: str) -> str:
    """Return a text without white space, which templates change."""
    return "".join(text.split())
