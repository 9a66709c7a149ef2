"""Types of what is read from files: names and values that are checked where they are used."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
"""An object as JSON and YAML have it."""

Fields = Mapping[str, Any]
"""The same, only to be read."""
