"""Code that runs inside the sandbox: one process serves a function over pipes, another runs its test.

The text of this module precedes both programs, so it imports only the standard library. The two processes
exchange only plain data, as lines of JSON, and rebuild them as objects of exactly the built-in types.
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
# Dictionaries of the standard library that equal a plain dict with the same items and are sent as one.
MAPPINGS = (dict, Counter, OrderedDict, defaultdict)
# Integers with more bits are sent as hexadecimal text, because Python limits decimal text to 4,300 digits.
PLAIN_BITS = 64


class NotPlainError(Exception):
    """A value is not of a built-in type, or a message does not encode one."""


class CallFailedError(BaseException):
    """A call returned no value. It is not an `Exception`, so that no test catches it by accident."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def to_message(value: Any) -> object:
    """Return a value for JSON, with type names beside containers, bytes, complex and large numbers.

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
    raise NotPlainError(f"{kind.__name__} is not plain data")


def from_message(sent: object) -> Any:
    """Return the decoded value, of exactly the built-in types; a `NotPlainError` for another message."""
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
    """Run a program, then call one of its functions for every line of arguments."""
    with os.fdopen(requests, "rb") as calls, os.fdopen(replies, "wb") as results:
        try:
            names: dict[str, Any] = {"__name__": "program"}
            exec(compile(program, "<program>", "exec"), names)  # noqa: S102 - in the sandbox
            function = names[entry_point]
        except BaseException as error:  # noqa: BLE001 - whatever the program raises
            send(results, _raised(error))
            return
        for line in calls:
            send(results, _answer(function, line))


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
    """Return a function that calls the other process; if it returns no value, it raises `CallFailedError`."""
    calls, results = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")

    def candidate(*args: object, **kwargs: object) -> object:
        try:
            send(calls, to_message((args, kwargs)))
        except OSError:
            pass  # the program has ended, perhaps after a last result
        except (NotPlainError, ValueError, RecursionError) as error:
            raise CallFailedError("error", f"the test's arguments cannot be sent: {error}") from None
        return _value(results.readline(LONGEST))

    return candidate


def _value(line: bytes) -> object:
    """Return the value in a reply, which the tested program may have chosen freely."""
    if not line.endswith(b"\n"):
        if len(line) >= LONGEST:
            raise CallFailedError("output", "the program returned too long a value")
        raise CallFailedError("error", "the program ended")
    try:
        kind, *rest = json.loads(line)
        if kind == "value" and len(rest) == 1:
            return from_message(rest[0])
        name, message = (str(part)[:500] for part in rest)
    except MemoryError:
        raise CallFailedError("memory", "the program returned too large a value") from None
    except (NotPlainError, TypeError, ValueError, RecursionError) as error:
        raise CallFailedError("error", f"the program did not return plain data: {error}") from None
    raise CallFailedError("memory" if name == "MemoryError" else "error", f"{name}: {message}")


def examine(prompt: str, test: str, entry_point: str, nonce: str, requests: int, replies: int) -> None:
    """Run `check(candidate)` of a test and print the verdict [reason, message] after the nonce.

    Names that the prompt defines beside the function have their original values here, even if the program
    changes them.
    """
    verdict, sys.stdout = sys.stdout, sys.stderr
    print(nonce, json.dumps(_verdict(prompt, test, entry_point, remote(requests, replies))), file=verdict)


def _verdict(prompt: str, test: str, entry_point: str, candidate: Callable[..., object]) -> tuple[str, str]:
    names: dict[str, Any] = {"__name__": "examination"}
    try:
        exec(compile(prompt, "<prompt>", "exec"), names)  # noqa: S102 - trusted, in the sandbox
        names[entry_point] = candidate
        exec(compile(test, "<test>", "exec"), names)  # noqa: S102 - trusted, in the sandbox
        check = names["check"]
    except Exception as error:  # noqa: BLE001 - any fault of the problem
        return "error", f"the problem itself does not run: {type(error).__name__}: {error}"
    try:
        check(candidate)
    except CallFailedError as failure:
        return failure.reason, str(failure)
    except Exception as error:  # noqa: BLE001 - a value of the wrong kind breaks a test anywhere
        return "wrong", _message(error)
    return "passed", ""


def _message(error: Exception) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except ValueError:  # it contains an integer with more digits than Python writes
        return name
