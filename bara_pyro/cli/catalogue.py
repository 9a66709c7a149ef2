"""The names of methods and tasks without importing them, which takes seconds: for lists and for slips.

`catalogue.json` is written from the registries by `python -m bara_pyro.cli.catalogue`; a test compares both.
The registries themselves are asked where there are plug-ins: installed (entry points) or given (--plugin).
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
    """One line of a list: a method and what it is, or a task, its name in papers and where it comes from."""

    name: str
    summary: str
    source: str


Catalogue = dict[str, list[Entry]]
Item = TypeVar("Item")


def catalogue() -> Catalogue:
    """Return what there is: the lists `methods` and `tasks`."""
    if PLUGINS or any(entry_points(group=group) for group in GROUPS):
        return registered()
    shipped: Catalogue = json.loads(FILE.read_text(encoding="utf-8"))
    return shipped


def check_method(value: object) -> None:
    """Refuse the name of a method that there is not, before the methods are imported.

    Args:
        value: of the setting `method`: a name, or settings with a `name`.

    Raises:
        ConfigError: the name is unknown.
    """
    name = value.get("name", DEFAULT_METHOD) if isinstance(value, dict) else value
    known = [entry["name"] for entry in catalogue()["methods"]]
    if name is not None and name not in known:
        raise ConfigError(unknown("method", name, known))


def registered() -> Catalogue:
    """Return the same from the registries themselves, which takes seconds."""
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


def _entries(registry: Registry[Item], made: Callable[[Item], Entry]) -> list[Entry]:
    """Return a line a thing; of one whose package fails the sentence that says so, which stops no other."""
    lines = []
    for name in registry:
        try:
            lines.append(made(registry.find(name)))
        except ConfigError as error:
            lines.append(Entry(name=name, summary=str(error), source=""))
    return lines


if __name__ == "__main__":
    FILE.write_text(json.dumps(registered(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
