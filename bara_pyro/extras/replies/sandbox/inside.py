"""What runs inside the sandbox: a function served over pipes in one process, its test in another.

The text of this module is put in front of both programs; it imports nothing but the standard library. Only
plain data pass between the two, as lines of JSON, and are rebuilt as objects of exactly the built-in types.
"""

import json
import os
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, BinaryIO

LONGEST = 2**24  # bytes of one line
SCALARS = (type(None), bool, int, float, str)
SERIES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
# Dictionaries of the standard library that equal a plain one of the same items, and are sent as one.
MAPPINGS = (dict, Counter, OrderedDict, defaultdict)
# Whole numbers of more bits are sent as hexadecimal text: Python writes and reads no more than 4,300 decimal
# digits, a guard against quadratic time, which powers of two do not take.
PLAIN_BITS = 64


class NotPlainError(Exception):
    """A value is not of a built-in type, or no such value was sent."""


class CallFailedError(BaseException):
    """A call brought no value back. Not an `Exception`: no test can take it for something else."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def to_message(value: Any) -> object:
    """Return a value as JSON has it, each container and rarer number beside the name of its type.

    >>> to_message([1, (2.5, None)])
    ['list', [1, ['tuple', [2.5, None]]]]
    """
    kind = type(value)
    if kind is int and value.bit_length() > PLAIN_BITS:
        return ["int", hex(value)]
    if kind in SCALARS:
        return value
    if kind in MAPPINGS:
        return ["dict", [[to_message(key), to_message(item)] for key, item in dict.items(value)]]
    if kind in SERIES.values():
        return [kind.__name__, [to_message(item) for item in value]]
    if kind is complex:
        return ["complex", [value.real, value.imag]]
    if kind is bytes:
        return ["bytes", value.hex()]
    raise NotPlainError(f"{kind.__name__} is no plain data")


def from_message(sent: object) -> Any:
    """Return the value that was encoded, of exactly the built-in types.

    Raises:
        NotPlainError: what was sent is no such value.
    """
    try:
        return _rebuilt(sent)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotPlainError(f"no value was sent: {error}") from None


def _rebuilt(sent: Any) -> Any:
    if type(sent) in SCALARS:
        return sent
    if type(sent) is not list:
        raise TypeError("an object")
    name, parts = sent
    if name == "bytes":
        return bytes.fromhex(parts)
    if name == "int":
        return int(parts, 16)
    if type(parts) is not list:
        raise TypeError("a container without items")
    if name == "dict":
        return {_rebuilt(key): _rebuilt(item) for key, item in parts}
    if name == "complex":
        real, imag = map(float, parts)
        return complex(real, imag)
    if name not in SERIES:
        raise TypeError(f"an unknown type {name!r:.40}")
    return SERIES[name](map(_rebuilt, parts))


def send(pipe: BinaryIO, message: object) -> None:
    """Write one line of JSON."""
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def answer_calls(program: str, entry_point: str, requests: int, replies: int) -> None:
    """Run a program, then call one of its functions for every line of arguments until there are no more."""
    with os.fdopen(requests, "rb") as asked, os.fdopen(replies, "wb") as answered:
        try:
            names: dict[str, Any] = {"__name__": "program"}
            exec(compile(program, "<program>", "exec"), names)  # noqa: S102 - what the sandbox is for
            function = names[entry_point]
        except BaseException as error:  # noqa: BLE001 - whatever the program raises
            send(answered, _raised(error))
            return
        for line in asked:
            send(answered, _answer(function, line))


def _answer(function: Callable[..., object], line: bytes) -> object:
    try:
        args, kwargs = from_message(json.loads(line))
        return ["value", to_message(function(*args, **kwargs))]
    except BaseException as error:  # noqa: BLE001 - whatever the program raises
        return _raised(error)


def _raised(error: BaseException) -> object:
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - whatever the program raises
        message = ""
    return ["raised", type(error).__name__, str(message)[:500]]


def remote(requests: int, replies: int) -> Callable[..., object]:
    """Return a function that asks the other process; a call that brings no value raises `CallFailedError`."""
    asked, answered = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")

    def candidate(*args: object, **kwargs: object) -> object:
        try:
            send(asked, to_message((args, kwargs)))
        except OSError:
            pass  # it has ended, perhaps with a last word
        except (NotPlainError, ValueError, RecursionError) as error:
            raise CallFailedError("error", f"the test's arguments cannot be sent: {error}") from None
        return _value(answered.readline(LONGEST))

    return candidate


def _value(line: bytes) -> object:
    """Return the value in a reply; everything in it is the tested program's to choose."""
    if not line.endswith(b"\n"):
        if len(line) >= LONGEST:
            raise CallFailedError("output", "the program gave too long a value")
        raise CallFailedError("error", "the program ended")
    try:
        kind, *rest = json.loads(line)
        if kind == "value" and len(rest) == 1:
            return from_message(rest[0])
        name, message = (str(part)[:500] for part in rest)
    except MemoryError:
        raise CallFailedError("memory", "the program gave too large a value") from None
    except (NotPlainError, TypeError, ValueError, RecursionError) as error:
        raise CallFailedError("error", f"the program gave no plain value: {error}") from None
    raise CallFailedError("memory" if name == "MemoryError" else "error", f"{name}: {message}")


def examine(prompt: str, test: str, entry_point: str, nonce: str, requests: int, replies: int) -> None:
    """Run `check(candidate)` of a test and print the verdict after the nonce: [reason, message].

    What the prompt defines beside the function is the prompt's own here, whatever the program makes of it.
    """
    verdict, sys.stdout = sys.stdout, sys.stderr
    print(nonce, json.dumps(_verdict(prompt, test, entry_point, remote(requests, replies))), file=verdict)


def _verdict(prompt: str, test: str, entry_point: str, candidate: Callable[..., object]) -> tuple[str, str]:
    names: dict[str, Any] = {"__name__": "examination"}
    try:
        exec(compile(prompt, "<prompt>", "exec"), names)  # noqa: S102 - the problem's own
        names[entry_point] = candidate
        exec(compile(test, "<test>", "exec"), names)  # noqa: S102 - the problem's own
        check = names["check"]
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the problem
        return "error", f"the problem itself does not run: {type(error).__name__}: {error}"
    try:
        check(candidate)
    except CallFailedError as failure:
        return failure.reason, str(failure)
    except Exception as error:  # noqa: BLE001 - a value of the wrong kind breaks a test anywhere
        return "wrong", _told(error)
    return "passed", ""


def _told(error: Exception) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except ValueError:  # it holds a whole number of more digits than Python writes
        return name
