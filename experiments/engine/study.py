"""Results whose entries are runs: an arm, task and seed each, with the hash of the record of the run.

    results/<name>.json              the runs by arm, task and seed (`experiments.engine.results`)
    results/records/<hash>.json      the record of each run (`experiments.engine.record`)

An arm is a row of the study's table: a method, or a variant of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bara_pyro.errors import CheckpointError, DataError
from experiments.engine.record import Record, read_record, record_path
from experiments.engine.results import RESULTS, Results, read_results

OTHER_SPLIT = "other_split.json"
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
    settings: Mapping[str, Any],
    comparisons: Sequence[Mapping[str, Any]] = (),
    folder: Path = RESULTS,
) -> Path:
    """Write down a study of arms and return the path; the records of its runs are written by `write_records`.

    A run has `hash`, `arm`, `task` and `seed`; two arms may share one.

    Raises:
        DataError: a run lacks one of these, or an arm has two runs of one task and seed.
    """
    check_runs(name, runs)
    entries = {f"{run['arm']} {run['task']} {run['seed']}": {key: run[key] for key in RUN} for run in runs}
    path = folder / f"{name}.json"
    Results(path, name, dict(settings), entries, [dict(entry) for entry in comparisons]).write()
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
    found = read_results(folder / f"{name}.json")
    runs = list(found.entries.values())
    check_runs(name, runs)
    arms: Arms = {}
    others = load_other_split(folder)
    for run in runs:
        seeds = arms.setdefault(run["arm"], {}).setdefault(run["task"], {})
        record = _record(name, run, folder / "records")
        # Known where `experiments.engine.other_split` has asked for it.
        known = {"other_split": others[run["hash"]]} if run["hash"] in others else {}
        seeds[run["seed"]] = record | known
    return Study(name, arms, found.about, found.comparisons, folder)


def load_other_split(folder: Path) -> dict[str, dict[str, Any]]:
    """Return scores on the other split by hash (`experiments.engine.other_split`); none without a file."""
    path = folder / OTHER_SPLIT
    return read_results(path).entries if path.exists() else {}


def _record(name: str, run: Mapping[str, Any], folder: Path) -> Record:
    path = record_path(folder, run["hash"])
    try:
        record = read_record(path)
    except CheckpointError as error:
        raise DataError(
            f"The record {path} of {name} ({run['arm']} on {run['task']}, seed {run['seed']}) cannot be "
            "read: repeat the study."
        ) from error
    if record["seed"] != run["seed"]:
        raise DataError(
            f"{name} has the record {path} as one of seed {run['seed']}, but it is of seed {record['seed']}: "
            "repeat the study."
        )
    return record
