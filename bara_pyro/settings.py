"""Settings that are added later: a new field must not rename results that are stored already."""

from typing import Any, TypeVar

from pydantic import Field

T = TypeVar("T")


def later(default: T, description: str, **limits: Any) -> T:
    """Return a field that was added after results had been stored under a configuration's hash.

    While it has its default it is left out of what is dumped, and so of the hash: a configuration that does
    not use it keeps the name that its stored results have. For the same reason its default, once released,
    must never change. Use it for every new field of a section or of a method's settings:

        text_column: str | None = later(None, "column of the text")

    Args:
        default: the value with which everything is as before.
        description: what it does, for help and errors.
        limits: further arguments of `pydantic.Field`, such as `gt=0`.
    """
    field: T = Field(default, description=description, exclude_if=lambda value: value == default, **limits)
    return field
