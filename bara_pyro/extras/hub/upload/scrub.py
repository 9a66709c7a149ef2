"""What is published names no place on the machine it was made on."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# An absolute path: of two parts and more, or of one with a drive or a tilde before it.
PATH = re.compile(
    r"(?<![\w.:/])(?:file://)?(?:~|[A-Za-z]:)?(?:[\\/][^\\/\s'\",;]+){2,}|(?<!\w)~[\\/][^\s'\",;]+"
)
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def scrubbed(value: Any, known: Iterable[str] = ()) -> Any:
    """Return JSON values with every absolute path cut down to its last part.

    Args:
        value: text, or lists and dictionaries of it.
        known: places that are named in it, relative ones too; a space in one says nothing of where it ends.
    """
    known = sorted(known, key=len, reverse=True)
    if isinstance(value, dict):
        return {key: scrubbed(part, known) for key, part in value.items()}
    if isinstance(value, list):
        return [scrubbed(part, known) for part in value]
    if not isinstance(value, str):
        return value
    for place in known:
        value = value.replace(place, Path(place).name)
    return PATH.sub(_last, value)


def _last(found: re.Match[str]) -> str:
    return re.split(r"[\\/]", found.group())[-1]


def hub_name(name: str) -> str | None:
    """Return a language model's name if it is one of the hub's, and not a folder's."""
    return name if HUB_NAME.fullmatch(name) and not Path(name).exists() else None
