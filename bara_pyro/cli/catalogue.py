"""List methods and tasks, and refuse unknown names, without importing them, which takes seconds.

`catalogue.json` is written from the registries by `python -m bara_pyro.cli.catalogue`; a test compares both.
If plug-ins are installed (entry points) or given (--plugin), the lists come from the registries.
"""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypedDict, TypeVar

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.registry import PLUGINS, Registry
from bara_pyro.settings import DEFAULT_METHOD

FILE = Path(__file__).parent / "catalogue.json"
GROUPS = ("bara_pyro.methods", "bara_pyro.tasks", "bara_pyro.reply_tasks")


class Entry(TypedDict):
    """One line of a list: a method and its summary, or a task, its name in papers and its source."""

    name: str
    summary: str
    source: str


Catalogue = dict[str, list[Entry]]
Item = TypeVar("Item")


def catalogue() -> Catalogue:
    """Return the lists `methods` and `tasks`."""
    if PLUGINS or any(entry_points(group=group) for group in GROUPS):
        return registered()
    shipped: Catalogue = json.loads(FILE.read_text(encoding="utf-8"))
    return shipped


def check_method(value: object) -> None:
    """Raise a `ConfigError` for an unknown method, given by name or settings, before the slow imports."""
    name = value.get("name", DEFAULT_METHOD) if isinstance(value, dict) else value
    known = [entry["name"] for entry in catalogue()["methods"]]
    if name is not None and name not in known:
        raise ConfigError(unknown("method", name, known))


def registered() -> Catalogue:
    """Return the same lists from the registries, which takes seconds."""
    from bara_pyro.data.registry import SOURCES, TASKS
    from bara_pyro.data.reply_tasks import REPLY_SOURCES, REPLY_TASKS
    from bara_pyro.methods import METHODS

    return {
        "methods": _entries(METHODS, lambda m: Entry(name=m.name, summary=m.summary, source="")),
        "tasks": [
            *_entries(TASKS, lambda t: Entry(name=t.name, summary=t.paper, source=t.where)),
            *(Entry(name=key, summary=source.paper, source=source.hub) for key, source in SOURCES.items()),
            *_entries(REPLY_TASKS, lambda t: Entry(name=t.name, summary="replies", source=t.where)),
            *(Entry(name=k, summary="replies", source=s.hub) for k, s in REPLY_SOURCES.items()),
        ],
    }


def _entries(registry: Registry[Item], entry_of: Callable[[Item], Entry]) -> list[Entry]:
    """Return a line for each name; if its package cannot be imported, the line says why."""
    lines = []
    for name in registry:
        try:
            lines.append(entry_of(registry.find(name)))
        except ConfigError as error:
            lines.append(Entry(name=name, summary=str(error), source=""))
    return lines


if __name__ == "__main__":
    FILE.write_text(json.dumps(registered(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
