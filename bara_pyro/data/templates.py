"""Write messages with a chat template, and check that it omits none of their texts."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from jinja2 import TemplateError

from bara_pyro.data.messages import Message, messages_of
from bara_pyro.data.spoken import Text, mark_of, marked
from bara_pyro.data.tokens import Tokenizer
from bara_pyro.data.tools import BESIDE, parsed, with_arguments
from bara_pyro.errors import DataError
from bara_pyro.types import Fields
from bara_pyro.untrusted.templates import rendered

# Exceptions of templates about messages in a form that they do not expect.
FAILURES = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
# Arguments of `apply_chat_template` that rows must not set.
OURS = ("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message")
# What to do about a message that a template omits, by its role.
WAYS_OUT = {
    "system": "put it into the user's first message",
    "developer": "give it the role 'system'",
    "tool": "choose a model whose template writes the role 'tool'",
}


Writer = Callable[[Sequence[Message], Fields], tuple[str, str]]


@dataclass(frozen=True)
class Form:
    """One of the forms in which templates expect messages.

    Attributes:
        as_text: whether arguments of tool calls are JSON texts instead of objects.
        absent: whether a message without a text has no `content`.
        in_parts: whether a text is a list of one part, as in models that also read images.
    """

    as_text: bool = False
    absent: bool = False
    in_parts: bool = False

    def of(self, message: Message) -> Message:
        """Return a message in this form; its tool calls must have objects as arguments."""
        formed = with_arguments(message, _json) if self.as_text else dict(message)
        content = formed["content"]
        if self.absent and content == "":
            del formed["content"]
        elif self.in_parts:
            formed["content"] = [{"type": "text", "text": content}]
        return formed


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

    The first form (`Form`) is used in which the template writes every text: contents, reasoning, names and
    arguments of tool calls, tools and documents. The template may change white space and write a text as
    JSON. `options` are further arguments of the template (`data.tools.template_options`), and `what` names
    the messages in errors, for example "row 'a'".

    Raises:
        DataError: the template refuses the messages, omits a text in every form, or does not know an option.
    """
    options = options or {}
    _check_options(tokenizer, options, what)
    every = [*messages] if reply is None else [*messages, reply]
    parsed_messages = [with_arguments(message, parsed) for message in messages_of(every, what, "messages")]
    failed: Exception | None = None
    lost: list[Text] = []
    for form in _forms(parsed_messages):
        writer = partial(_rendered, tokenizer, form, answered=reply is not None)
        try:
            texts, missing = _tried(parsed_messages, options, writer)
        except FAILURES as error:
            failed = failed or error
            continue
        missing += _spoiled(parsed_messages, form, texts.whole)
        if not missing:
            return texts
        lost = missing if not lost or len(missing) < len(lost) else lost
    if lost:
        raise _left_out(lost[0], tokenizer, what)
    raise DataError(
        f"The chat template refuses {what} ({str(failed).rstrip('.')[:120]}): change its messages."
    ) from failed


def model_of(tokenizer: Tokenizer) -> str:
    """Return the name of a tokenizer's model, for the beginning of a sentence."""
    return tokenizer.name_or_path or "The tokenizer"


def _left_out(text: Text, tokenizer: Tokenizer, what: str) -> DataError:
    of = tokenizer.name_or_path or "the tokenizer"
    shown = f"{text.said.strip()[:40]!r}"
    if text.role is None:
        return DataError(
            f"The chat template of {of} omits {shown} in {text.part!r} of {what}: leave it out, or choose a "
            "model whose template writes it."
        )
    way_out = WAYS_OUT.get(text.role, "change or leave out the message")
    if text.part != "content":
        way_out = f"leave {text.part!r} out of that message"
    elif "</think>" in text.said:
        way_out = "remove the thoughts"
    return DataError(
        f"The chat template of {of} omits the {text.role}'s {text.part!r} {shown} of {what}: {way_out}, or "
        "choose another model."
    )


def _check_options(tokenizer: Tokenizer, options: Fields, what: str) -> None:
    """Refuse options that the template does not use, or that rows must not set."""
    template = tokenizer.chat_template
    if not isinstance(template, str):
        template = tokenizer.get_chat_template(None, options.get("tools"))
    for name in options.keys() - BESIDE:
        if name in OURS or not re.search(rf"\b{re.escape(name)}\b", template):
            of = tokenizer.name_or_path or "the tokenizer"
            raise DataError(
                f"The chat template of {of} does not use {name!r} of 'chat_template_kwargs' in {what}: leave "
                "it out."
            )


def _forms(messages: Sequence[Message]) -> Iterator[Form]:
    """Yield the different forms of these messages."""
    calls = any("tool_calls" in message for message in messages)
    empty = any(message["content"] == "" for message in messages)
    texts = any(message["content"] for message in messages)
    yield from (
        Form(*form) for form in dict.fromkeys(product((False, calls), (False, empty), (False, texts)))
    )


def _rendered(
    tokenizer: Tokenizer, form: Form, messages: Sequence[Message], options: Fields, *, answered: bool
) -> tuple[str, str]:
    """Return the text up to the assistant's turn, and the whole text; they are the same unless `answered`."""
    formed = [form.of(message) for message in messages]
    prompt = formed[:-1] if answered else formed
    before = rendered(tokenizer, prompt, options, opened=True)
    return before, rendered(tokenizer, formed, options, opened=False) if answered else before


def _tried(messages: Sequence[Message], options: Fields, writer: Writer) -> tuple[Written, list[Text]]:
    """Return the template's output, and the texts that it omits.

    Each text must be in the output. The template is also run with a unique mark in place of each text, which
    must be in that output: a short text may be there by chance.
    """
    before, full = writer(messages, options)
    texts: list[Text] = []
    with_marks, beside = marked(messages, options, texts)
    marks = {mark_of(number): text for number, text in enumerate(texts) if text.is_marked}
    try:
        _, tried = writer(with_marks, beside)
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


def _spoiled(messages: Sequence[Message], form: Form, whole: str) -> Iterator[Text]:
    """Yield texts that are written as Python or as double JSON: the template expects another form."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            as_json = _json(arguments)
            wrong = _inside(as_json) if form.as_text else str(arguments)
            if wrong != as_json and wrong in whole:
                yield Text(message["role"], "tool_calls", as_json)
        for part in form.of(message).get("content", ()) if form.in_parts else ():
            if str(part) in whole or _json(part) in whole:
                yield Text(message["role"], "content", part["text"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _inside(text: str) -> str:
    """Return a text as JSON, without the quotes around it."""
    return _json(text)[1:-1]


def _bare(text: str) -> str:
    """Return a text without white space, which templates change."""
    return "".join(text.split())
