"""Read the tools and tool calls of a row, given as objects or as JSON texts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from bara_pyro.errors import DataError
from bara_pyro.types import Fields, Json

TOOLS, DOCUMENTS, OPTIONS = "tools", "documents", "chat_template_kwargs"
BESIDE = (TOOLS, DOCUMENTS, OPTIONS)
"""Columns beside a conversation that are passed to its chat template."""
UNREAD = {
    "functions": "give 'tools', and calls in 'tool_calls'",
    **dict.fromkeys(("image", "images", "audio", "audios", "video", "videos"), "only texts are read"),
}

GIVEN = (*BESIDE, *UNREAD)
"""All columns that `template_options` checks."""


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a list or another sequence except a text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def template_options(row: Fields, where: str) -> Json:
    """Return a row's arguments for its chat template beside messages: tools, documents and further options.

    `tools` and `documents` are lists of objects, or their JSON; `chat_template_kwargs` an object, or its
    JSON.

    Raises:
        DataError: a column has another format, or the row holds images, sounds or OpenAI's `functions`.
    """
    for column, way_out in UNREAD.items():
        if row.get(column) not in (None, "", [], {}):
            raise DataError(f"{where} has a column {column!r}, which is not read: leave it out ({way_out}).")
    columns: Json = {}
    for column in (TOOLS, DOCUMENTS):
        value = parsed(row.get(column))
        if value in (None, "", []):
            continue
        objects = [parsed(one) for one in value] if is_list(value) else []
        if not objects or not all(isinstance(one, Mapping) for one in objects):
            raise DataError(
                f"{column!r} of {where} is {str(value)[:60]!r}: give a list of objects, or its JSON."
            )
        _check_whole(row[column], column, where)
        columns[column] = objects
    options = parsed(row.get(OPTIONS))
    if options in (None, ""):
        return columns
    if not isinstance(options, Mapping):
        raise DataError(f"{OPTIONS!r} of {where} is {str(options)[:60]!r}: give an object, or its JSON.")
    if twice := sorted(columns.keys() & options.keys()):
        raise DataError(f"{where} has {twice[0]!r} both as a column and in {OPTIONS!r}: leave one out.")
    return columns | {name: value for name, value in options.items() if value is not None}


def tool_calls(value: object, where: str) -> list[Json]:
    """Return the tool calls of a message, each as a `function` with the JSON of its arguments.

    A call without a name, or with arguments that are not an object, raises a `DataError`.
    """
    calls = parsed(value)
    if is_list(calls) and calls is value:
        arguments = [_function(call).get("arguments") for call in calls if isinstance(call, Mapping)]
        _check_whole(arguments, "arguments", where)
    read_calls = [_call(parsed(call), where) for call in calls] if is_list(calls) else []
    if not read_calls:
        raise DataError(f"'tool_calls' in {where} are {str(value)[:60]!r}: give a list of calls.")
    return read_calls


def _call(call: object, where: str) -> Json:
    fields = call if isinstance(call, Mapping) else {}
    function = _function(fields)
    name, raw = function.get("name"), function.get("arguments")
    arguments = {} if raw in (None, "") else raw
    if not isinstance(name, str) or not isinstance(parsed(arguments), Mapping):
        raise DataError(
            f"A tool call in {where} is {str(call)[:60]!r}: give it a 'name', and 'arguments' that are an "
            "object or its JSON."
        )
    around = {key: part for key, part in fields.items() if part is not None and fields is not function}
    others = {key: part for key, part in function.items() if part is not None}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", **around, "function": {**others, "arguments": text}}


def with_arguments(message: Fields, read: Callable[[Any], object]) -> Json:
    """Return a message with `read` applied to the arguments of each of its tool calls."""
    copied = dict(message)
    if "tool_calls" in copied:
        copied["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": read(call["function"]["arguments"])}}
            for call in copied["tool_calls"]
        ]
    return copied


def _function(call: Fields) -> Fields:
    """Return the part of a call with its name and arguments: its `function`, or the call itself."""
    function = call.get("function")
    return function if isinstance(function, Mapping) else call


def parsed(value: object) -> object:
    """Return the value of a JSON text; any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _check_whole(value: object, column: str, where: str) -> None:
    """Refuse nulls, which Arrow adds to an object for each key that only other rows have."""
    if empty := next(_nulls(value), None):
        raise DataError(
            f"{column!r} in {where} has null for {empty!r}, which Arrow adds for keys of other rows: leave "
            "it out, or give the column as JSON text."
        )


def _nulls(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if part is None:
                yield str(key)
            yield from _nulls(part)
    elif is_list(value):
        for part in value:
            yield from _nulls(part)
