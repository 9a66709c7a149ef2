"""What is published names no place on the machine it was made on."""

import re
from pathlib import Path
from typing import Any

# An absolute path: of two parts and more, or of one with a drive or a tilde before it.
PATH = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?(?:[\\/][^\\/\s'\",;]+){2,}|(?<!\w)~[\\/][^\s'\",;]+")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def scrubbed(value: Any) -> Any:
    """Return JSON values with every absolute path cut down to its last part."""
    if isinstance(value, dict):
        return {key: scrubbed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [scrubbed(part) for part in value]
    return PATH.sub(_last, value) if isinstance(value, str) else value


def _last(found: re.Match[str]) -> str:
    return re.split(r"[\\/]", found.group())[-1]


def hub_name(name: str) -> str | None:
    """Return a language model's name if it is one of the hub's, and not a folder's."""
    return name if HUB_NAME.fullmatch(name) and not Path(name).exists() else None
