"""Results as they are stored: one JSON file a study, all of one form, which can be gone on with.

    {"schema": 2, "study": name, "about": {..}, "entries": {key: {..}, ..}, "comparisons": [..]}

`about` is what all entries share and depend on. An entry is one thing that was done, with what names it (arm,
task, seed ..) and what was found; `code` in it says which code did it. A study whose entries are runs has
their hashes there, and the scores in the records beside (`experiments.engine.study`).
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bara_pyro.errors import ConfigError, DataError
from bara_pyro.runs.atomic import write_json
from bara_pyro.untrusted.files import read_json
from experiments.engine.provenance import code_state

RESULTS = Path(__file__).parents[1] / "results"  # the committed ones
OUT = Path("runs/results")
SCHEMA = 2

Entry = dict[str, Any]


@dataclass
class Results:
    """What a study has found so far.

    Attributes:
        about: what all entries depend on; as JSON holds it, so lists and no tuples.
        entries: by key, in the order in which they were done.
        comparisons: what `experiments.engine.compare` found, where arms were compared.
    """

    path: Path
    study: str
    about: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)
    comparisons: list[dict[str, Any]] = field(default_factory=list)

    def add(self, key: str, entry: Mapping[str, Any]) -> Entry:
        """Keep an entry, with the code that made it, and write the file; returns it."""
        self.entries[key] = {**entry, "code": code_state()}
        self.write()
        return self.entries[key]

    def write(self) -> None:
        """Write the file, whole or not at all."""
        stored = {"schema": SCHEMA, "study": self.study, "about": self.about, "entries": self.entries}
        write_json(self.path, stored | ({"comparisons": self.comparisons} if self.comparisons else {}))


def having(entries: Iterable[Mapping[str, Any]], **fields: Any) -> list[Any]:
    """Return the entries that have these values."""
    return [e for e in entries if all(e.get(name) == value for name, value in fields.items())]


def distinct(entries: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    """Return the values that entries have, each once, in the order in which they come."""
    return list(dict.fromkeys(entry[key] for entry in entries))


def read_results(path: Path) -> Results:
    """Read a file of results; a `DataError` where it holds something else, or those of another schema."""
    stored = read_json(path)
    if not isinstance(stored, dict) or "entries" not in stored or stored.get("schema") != SCHEMA:
        raise DataError(f"{path} holds no results of schema {SCHEMA}: run the study again.")
    return Results(path, stored["study"], stored["about"], stored["entries"], stored.get("comparisons", []))


def resumed(path: Path, about: Mapping[str, Any]) -> Results:
    """Return what a file of results holds, to be gone on with, or the beginning of one.

    Raises:
        ConfigError: the file holds results that depend on something else than `about`.
    """
    if not path.exists():
        return Results(path, path.stem, dict(about))
    found = read_results(path)
    for name, value in about.items():
        # What was typed is not known of files from before it was kept.
        if found.about.get(name, value if name == "set" else None) != value:
            raise ConfigError(
                f"{path} holds results with {name}={found.about.get(name)}, not {value}: give another "
                "folder with --out."
            )
    return found


def results_option(parser: ArgumentParser, folder: Path = OUT) -> None:
    """Add --out: the folder of results, records and rows, by default not that of the committed ones."""
    parser.add_argument("--out", metavar="DIR", type=Path, default=folder,
        help="folder of the results; what it holds stays and is added to (the committed ones: "
        "experiments/results); default: %(default)s")  # fmt: skip
