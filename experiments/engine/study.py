"""Results whose entries are runs: an arm, task and seed each, with the hash of the record of the run.

The records (`experiments.engine.record`) are in the file of the results. An arm is a row of the study's
table: a method, or a variant of one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bara_pyro.errors import DataError
from experiments.engine.record import Record, checked, committed
from experiments.engine.results import RESULTS, Results, changing, find_results, read_store, results_path

OTHER_SPLIT = "other_split"
RUN = ("hash", "arm", "task", "seed")

Seeds = dict[int, Record]
Arms = dict[str, dict[str, Seeds]]


@dataclass(frozen=True)
class Study:
    """A study of arms as it was written down.

    Attributes:
        arms: arm -> task -> seed -> record, in the order in which they were written.
        settings: what all its runs share.
        comparisons: what `experiments.engine.compare` found.
        folder: of the results, in which its rows are.
    """

    name: str
    arms: Arms
    settings: dict[str, Any]
    comparisons: list[dict[str, Any]]
    folder: Path = RESULTS

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

    A run has `hash`, `arm`, `task` and `seed`; two arms may share one.

    Raises:
        DataError: a run lacks one of these, or an arm has two runs of one task and seed.
    """
    check_runs(name, runs)
    entries = {f"{run['arm']} {run['task']} {run['seed']}": {key: run[key] for key in RUN} for run in runs}
    path = results_path(name, folder)
    with changing(path) as store:
        compared = [dict(entry) for entry in comparisons]
        store.sets[name] = Results(name, folder, dict(settings), entries, compared)
        known = store.records | {record["config_hash"]: committed(record) for record in records}
        wanted = {
            run["hash"] for found in store.sets.values() for run in found.entries.values() if "hash" in run
        }
        store.records = {key: record for key, record in known.items() if key in wanted}
    return path


def check_runs(name: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise a `DataError` where a run lacks a key of `RUN` or cannot be told from another."""
    seen = set()
    for run in runs:
        if missing := [key for key in RUN if key not in run]:
            raise DataError(f"A run of {name} has no {missing[0]!r}: give each its {', '.join(RUN)}.")
        place = (run["arm"], run["task"], run["seed"])
        if place in seen:
            raise DataError(
                f"The arm {place[0]!r} of {name} has two runs on {place[1]} with seed {place[2]}: "
                "give each arm a name of its own."
            )
        seen.add(place)


def load_study(name: str, folder: Path = RESULTS) -> Study:
    """Read a study of arms and the records of its runs; a `DataError` where one is missing or another's."""
    path = results_path(name, folder)
    store = read_store(path)
    if name not in store.sets:
        raise DataError(f"{path} has no results of {name!r}: run the study.")
    found = store.sets[name]
    runs = list(found.entries.values())
    check_runs(name, runs)
    arms: Arms = {}
    others = load_other_split(folder)
    for run in runs:
        seeds = arms.setdefault(run["arm"], {}).setdefault(run["task"], {})
        record = _record(name, run, store.records)
        # Known where `experiments.engine.other_split` has asked for it.
        known = {"other_split": others[run["hash"]]} if run["hash"] in others else {}
        seeds[run["seed"]] = record | known
    return Study(name, arms, found.about, found.comparisons, folder)


def load_other_split(folder: Path) -> dict[str, dict[str, Any]]:
    """Return scores on the other split by hash (`experiments.engine.other_split`); none without a file."""
    found = find_results(OTHER_SPLIT, folder)
    return found.entries if found else {}


def _record(name: str, run: Mapping[str, Any], records: Mapping[str, Record]) -> Record:
    key = run["hash"]
    if key not in records:
        raise DataError(
            f"The record {key} of {name} ({run['arm']} on {run['task']}, seed {run['seed']}) is not stored: "
            "repeat the study."
        )
    record = checked(records[key], f"the results of {name}")
    if record["seed"] != run["seed"]:
        raise DataError(
            f"{name} has the record {key} as one of seed {run['seed']}, but it is of seed {record['seed']}: "
            "repeat the study."
        )
    return record


def stored_records(folder: Path = RESULTS) -> dict[str, Record]:
    """Return the records of all results of a folder, by hash."""
    stores = [read_store(path) for path in sorted(folder.glob("*.jsonl.gz"))]
    return {key: record for store in stores for key, record in store.records.items()}
