"""Read the predictions of runs, as training or `bara evaluate` stored them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.errors import CheckpointError, DataError
from bara_pyro.runs.evaluation_files import read_predictions, read_scores
from bara_pyro.runs.manifest import CONFIG, METRICS, PREDICTIONS, check_run, is_run, verify_files
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RunFile

NEEDED = {"method", "task", "split", "seed", "rows"}


@dataclass(frozen=True)
class Evaluated:
    """The predictions of one run on n rows with C classes."""

    folder: Path  # folder of the run or of one of its evaluations
    method: str
    task: str
    split: str
    seed: int  # training seed
    fingerprint: str  # hash of the tokens of the rows, which depends on tokenizer and prompt
    ids: tuple[str, ...]  # identifiers of the rows
    labels: Tensor  # long, `n`
    classes: tuple[str, ...]  # names of the classes, or letters if each row has its own options
    clusters: tuple[str, ...]  # clusters of the rows; an empty text for an independent row
    log_probs: dict[int, Tensor]  # number of draws S -> log-probabilities, nats, float64, `n x C`
    settings: Json  # settings of the run by section; empty if unknown


def read_group(folder: Path, on: str | None = None) -> list[Evaluated]:
    """Read the predictions of a run, of one of its evaluations, or of all runs directly in a folder.

    `on` names an evaluation, a folder in RUN/evaluation; by default it is the one after training. Several
    runs differ in their seeds.

    Raises:
        CheckpointError: there are no predictions, or a file is missing or damaged.
        DataError: the runs differ in more than their seed, or were trained on replies.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file, not the folder of a run: give the folder of a run.")
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}: give the folder of a run, or of several runs.")
    if _holds_predictions(folder):
        folders = [folder]
    else:
        folders = sorted(child for child in folder.iterdir() if child.is_dir() and _holds_predictions(child))
    if not folders:
        raise CheckpointError(
            f"There is no evaluated run in {folder}: give the folder of a run, of one of its evaluations, or "
            "of several runs."
        )
    group = [read_evaluated(_evaluation(child, on)) for child in folders]
    _check_group(group, folder)
    return group


def _holds_predictions(folder: Path) -> bool:
    return is_run(folder) or ((folder / METRICS).exists() and (folder / PREDICTIONS).exists())


def _evaluation(folder: Path, on: str | None) -> Path:
    """Return the folder of a run's evaluation of that name."""
    if on is None:
        return folder
    place = folder / "evaluation"
    names = sorted(child.name for child in place.iterdir()) if place.is_dir() else []
    if on not in names:
        there = f"it has {', '.join(names)}" if names else "it has none"
        raise CheckpointError(f"{folder} has no evaluation {on!r} ({there}): run `bara evaluate` first.")
    return place / on


def read_evaluated(folder: Path) -> Evaluated:
    """Read the predictions in a folder of a run or an evaluation; errors as for `read_group`."""
    if is_run(folder):
        check_run(folder)
    else:
        verify_files(folder)
    report, lines = read_scores(folder), read_predictions(folder)
    if NEEDED - report.keys() or not lines:
        raise CheckpointError(
            f"{folder} has no complete evaluation of this version: run `bara evaluate` again."
        )
    if "probs" not in lines[0] or "classes" not in report:
        raise DataError(
            f"{folder} was evaluated on replies, which have no classes: give runs of a classification task."
        )
    run = folder if is_run(folder) else folder.parent.parent
    draws = {s: [line["probs"][s] for line in lines] for s in lines[0]["probs"]}
    return Evaluated(
        folder=folder,
        method=report["method"],
        task=report["task"],
        split=report["split"],
        seed=report["seed"],
        fingerprint=report["rows"],
        ids=tuple(line["id"] for line in lines),
        labels=torch.tensor([line["label"] for line in lines]),
        classes=tuple(report["classes"]),
        clusters=tuple(line.get("cluster", "") for line in lines),
        log_probs={int(s): torch.tensor(p, dtype=torch.float64).log() for s, p in draws.items()},
        settings=read_json(run / CONFIG, RunFile)["config"] if is_run(run) else {},
    )


def _check_group(group: list[Evaluated], folder: Path) -> None:
    """Raise `DataError` unless the runs of a folder differ only in their seed."""
    first = group[0]
    for other in group[1:]:
        differing = [
            key
            for key in sorted(first.settings.keys() | other.settings.keys())
            if key != "seed" and first.settings.get(key) != other.settings.get(key)
        ]
        if other.method != first.method or (first.settings and other.settings and differing):
            raise DataError(
                f"{first.folder} and {other.folder} differ in more than their seed "
                f"({', '.join(differing) or 'method'}): give a folder of runs with equal settings."
            )
    seed, times = Counter(run.seed for run in group).most_common(1)[0]
    if times > 1:
        raise DataError(f"{folder} has {times} runs with seed {seed}: keep one run for each seed.")
