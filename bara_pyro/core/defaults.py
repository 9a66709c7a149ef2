"""The default of a parameter, read from where it is defined, so that no number is typed twice."""

import inspect
from collections.abc import Callable
from typing import Any


def default(of: Callable[..., Any], name: str) -> Any:
    """Return the default value of the parameter `name` of a function or a class's constructor.

    Raises:
        LookupError: there is no such parameter, or it has no default.
    """
    parameter = inspect.signature(of).parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        raise LookupError(f"{of.__qualname__} has no default for a parameter {name!r}.")
    return parameter.default
