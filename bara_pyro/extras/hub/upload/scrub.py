"""Remove local paths from published files."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# An absolute path of at least two parts, or a path that begins with a drive or a tilde.
PATH = re.compile(
    r"(?<![\w.:/])(?:file://)?(?:~|[A-Za-z]:)?(?:[\\/][^\\/\s'\",;]+){2,}|(?<!\w)~[\\/][^\s'\",;]+"
)
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def scrubbed(value: Any, known: Iterable[str] = ()) -> Any:
    """Return JSON values with every absolute path shortened to its last part.

    Args:
        value: text, or lists and dictionaries of text.
        known: paths known to occur in it, also relative ones and ones with spaces.
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


def _last(match: re.Match[str]) -> str:
    return re.split(r"[\\/]", match.group())[-1]


def hub_name(name: str) -> str | None:
    """Return a language model's name if it is a hub name, or None if it is a folder."""
    return name if HUB_NAME.fullmatch(name) and not Path(name).exists() else None
