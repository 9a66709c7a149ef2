"""Results as they are stored: one compressed file of JSON lines a study, which can be gone on with.

    results/<study>.jsonl.gz
    {"schema": 3, "results": name, "about": {..}, "comparisons": [..]}    a set of results
    {"results": name, "key": key, "entry": {..}}                          an entry of it
    {"record": {..}}                                                      of a run (`record.py`)

A study may have several sets of results (`real`, `real_few`): all are in the file of its folder. `about` is
what all entries of a set share and depend on. An entry is one thing that was done, with what names it (arm,
task, seed ..) and what was found; `code` in it says which code did it. Of a study of arms the entries are
runs: arm, task and seed, and the hash of the record that holds the scores (`Study`).
"""

import fcntl
import gzip
import json
import zlib
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bara_pyro.atomic import atomic_write, jsonl_line
from bara_pyro.errors import DataError
from experiments.engine.record import Record, checked, committed

RESULTS = Path(__file__).parents[1] / "results"  # the committed ones
STUDIES = Path(__file__).parents[1] / "studies"
OUT = Path("runs/results")
SUFFIX = ".jsonl.gz"
LOCK = ".lock"
SCHEMA = 3
RUN = ("hash", "arm", "task", "seed")

Entry = dict[str, Any]
Seeds = dict[int, Record]
Arms = dict[str, dict[str, Seeds]]


@dataclass
class Results:
    """A set of results: what a study has found so far.

    Attributes:
        name: that of the study, or one that goes on from it (`<study>_<more>`).
        folder: of the results.
        about: what all entries depend on; as JSON holds it, so lists and no tuples.
        entries: by key, in the order in which they were done.
        comparisons: what `experiments.engine.differences` found, where arms were compared.
    """

    name: str
    folder: Path
    about: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)
    comparisons: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file that holds them."""
        return results_path(self.name, self.folder)

    def write(self) -> None:
        """Write them to their file, whole or not at all; what else it holds stays."""
        with changing(self.path) as store:
            store.sets[self.name] = self


@dataclass
class Store:
    """What one file holds: sets of results by name, records of runs by their configuration's hash."""

    folder: Path
    sets: dict[str, Results] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    def take(self, line: Mapping[str, Any]) -> None:
        """Add what a line of the file says; a `KeyError` or `ValueError` where it is none."""
        if "record" in line:
            self.records[line["record"]["config_hash"]] = line["record"]
        elif "key" in line:
            self.sets[line["results"]].entries[line["key"]] = line["entry"]
        elif line["schema"] == SCHEMA:
            name = line["results"]
            self.sets[name] = Results(name, self.folder, line["about"], {}, line["comparisons"])
        else:
            raise ValueError(f"schema {line['schema']}, this version reads {SCHEMA}")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the file; the same content is the same lines."""
        for name, found in sorted(self.sets.items()):
            head = {"schema": SCHEMA, "results": name}
            yield head | {"about": found.about, "comparisons": found.comparisons}
            yield from ({"results": name, "key": key, "entry": e} for key, e in found.entries.items())
        yield from ({"record": record} for _, record in sorted(self.records.items()))


def study_names(folder: Path = STUDIES) -> list[str]:
    """Return the names of all studies, those of the folders with a `study.py`."""
    return sorted(path.parent.name for path in folder.glob("*/study.py"))


def study_of(name: str) -> str:
    """Return the study that a set of results is of: the longest whose name it goes on from, or its own.

    A retired study is one whose results are committed.
    """
    retired = (path.name.removesuffix(SUFFIX) for path in RESULTS.glob(f"*{SUFFIX}"))
    known = (one for one in (*study_names(), *retired) if name == one or name.startswith(f"{one}_"))
    return max(known, key=len, default=name)


def results_path(name: str, folder: Path = RESULTS) -> Path:
    """Return the file that holds a set of results."""
    return folder / f"{study_of(name)}{SUFFIX}"


def read_store(path: Path) -> Store:
    """Read a file of results, empty if it is missing; a `DataError` if it holds something else."""
    store = Store(path.parent)
    if not path.exists():
        return store
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                store.take(json.loads(line))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no results ({error}): run the study again.") from error
    return store


@contextmanager
def changing(path: Path) -> Iterator[Store]:
    """Read a file of results, and write it as it was left; two processes wait for each other."""
    with locked(path.parent):
        store = read_store(path)
        yield store
        write_compressed(path, "".join(map(jsonl_line, store.lines())))


def write_compressed(path: Path, text: str) -> None:
    """Write a compressed file without the time of writing: the same text is the same bytes."""
    atomic_write(path, lambda file: file.write(gzip.compress(text.encode(), mtime=0)))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, waiting for it; the system frees the lock of a process that is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_results(name: str, folder: Path = RESULTS) -> Results | None:
    """Return a set of results, None where it is not stored; a `DataError` where its file holds no results."""
    return read_store(results_path(name, folder)).sets.get(name)


def read_results(name: str, folder: Path = RESULTS) -> Results:
    """Return a set of results; a `DataError` where it is not stored, or its file holds something else."""
    found = find_results(name, folder)
    if found is None:
        raise DataError(f"{results_path(name, folder)} has no results of {name!r}: run the study.")
    return found


def stored_names(folder: Path = RESULTS) -> list[str]:
    """Return the names of all sets of results in a folder."""
    return [name for path in sorted(folder.glob(f"*{SUFFIX}")) for name in read_store(path).sets]


def results_option(parser: ArgumentParser, folder: Path = OUT) -> None:
    """Add --out: the folder of results, records and rows, by default not that of the committed ones."""
    parser.add_argument("--out", metavar="DIR", type=Path, default=folder,
        help="folder of the results; what it holds stays and is added to (the committed ones: "
        "experiments/results); default: %(default)s")  # fmt: skip


# Studies of arms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """A study of arms as it was written down; an arm is a row of its table: a method, or a variant of one.

    Attributes:
        arms: arm -> task -> seed -> record, in the order in which they were written.
        comparisons: what `experiments.engine.differences` found.
    """

    name: str
    arms: Arms
    comparisons: list[dict[str, Any]]

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order in which they were written."""
        return list(dict.fromkeys(task for tasks in self.arms.values() for task in tasks))

    @property
    def records(self) -> list[Record]:
        """The records of all runs."""
        return [
            record for tasks in self.arms.values() for seeds in tasks.values() for record in seeds.values()
        ]

    @property
    def finished(self) -> list[Record]:
        """The records of the runs that did not fail."""
        return [record for record in self.records if "failed" not in record]


def write_study(
    name: str,
    runs: Sequence[Mapping[str, Any]],
    records: Iterable[Record],
    settings: Mapping[str, Any],
    comparisons: Sequence[Mapping[str, Any]] = (),
    folder: Path = RESULTS,
) -> Path:
    """Write down a study of arms and return the path; records that are stored and not given stay.

    A run has `hash`, `arm`, `task` and `seed`; two arms may share one. A `DataError` where an arm has two
    runs of one task and seed.
    """
    entries = {f"{run['arm']} {run['task']} {run['seed']}": {key: run[key] for key in RUN} for run in runs}
    if len(entries) < len(runs):
        raise DataError(f"An arm of {name} has two runs of one task and seed: give each arm its own name.")
    path = results_path(name, folder)
    with changing(path) as store:
        store.sets[name] = Results(name, folder, dict(settings), entries, [dict(one) for one in comparisons])
        known = store.records | {record["config_hash"]: committed(record) for record in records}
        wanted = {run.get("hash") for found in store.sets.values() for run in found.entries.values()}
        store.records = {key: record for key, record in known.items() if key in wanted}
    return path


def load_study(name: str, folder: Path = RESULTS) -> Study:
    """Read a study of arms and the records of its runs; a `DataError` where one is missing."""
    found, records = read_results(name, folder), read_store(results_path(name, folder)).records
    arms: Arms = {}
    for run in found.entries.values():
        if run["hash"] not in records:
            raise DataError(
                f"The record {run['hash']} of {name} ({run['arm']} on {run['task']}, seed {run['seed']}) is "
                "not stored: repeat the study."
            )
        record = checked(records[run["hash"]], f"the results of {name}")
        arms.setdefault(run["arm"], {}).setdefault(run["task"], {})[run["seed"]] = record
    return Study(name, arms, found.comparisons)
