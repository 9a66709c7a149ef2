"""What is kept of one finished run: some kilobytes of JSON, small enough to be committed.

Scores per number of draws S, those on shifted tasks included; settings, versions and times. Predictions stay
in the folder of the run, row by row (`load_predictions`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bara_pyro.data import Task, answer_token_ids, encode_labels
from bara_pyro.errors import DataError
from bara_pyro.extras.hub.upload.scrub import scrubbed
from bara_pyro.lm.verifying import fingerprint
from bara_pyro.runs.config import RunConfig, parse_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.manifest import FITTED, PREDICTIONS
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.steps import train_seconds
from bara_pyro.runs.system import System
from bara_pyro.untrusted.files import read_json, read_jsonl
from experiments.engine.provenance import code_state

SCHEMA, KIND = 1, "bara_pyro record"
# What every record has; one of a run that failed has `failed` (the message) and none of the scores.
IDENTITY = ("config_hash", "settings", "config", "method", "task", "split", "seed", "steps")
SCORES = ("metrics", "parameters", "sparsity", "environment", "shifted")

Record = dict[str, Any]


def make_record(system: System, out: Path, settings: Mapping[str, Any]) -> Record:
    """Evaluate a fitted system on its own task, into the folder of its run, and return its record."""
    report = evaluate_system(system, out, wall_clock_train_s=train_seconds(out))
    return {
        **identity(system.config, settings),
        "backbone_fingerprint": fingerprint(system.backbone),
        "code": code_state(),
        "task": report["task"],
        "metrics": report["metrics"],
        "shifted": {},
        **{key: report[key] for key in ("parameters", "sparsity", "environment", "notes")},
        **{key: report[key] for key in ("wall_clock_train_s", "wall_clock_evaluate_s")},
        **({"fitted": _fitted(out)} if (out / FITTED).exists() else {}),
    }


def _fitted(out: Path) -> dict[str, float]:
    """Return what was fitted when training was over; how long that took is in the run's wall-clock time."""
    return {key: value for key, value in read_json(out / FITTED).items() if not key.endswith("seconds")}


def identity(config: RunConfig, settings: Mapping[str, Any]) -> Record:
    """Return the part of a record that says which run it is; paths of this machine by their last name."""
    full = config.dump()
    for section, key in (("backbone", "name"), ("task", "name"), ("task", "data_dir"), ("task", "test_file")):
        full[section][key] = portable(full[section][key])
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "config_hash": config.hash,
        "settings": recorded(settings),
        "config": full,
        "method": config.method.name,
        "task": Path(full["task"]["name"]).stem,  # of a file, what the loader calls the task
        "split": config.task.evaluate_on,
        "seed": config.seed,
        "steps": config.train.steps,  # null until the rows are known, where they say how many
    }


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted settings as they are written down: paths by their name."""
    return {key: portable(value) for key, value in settings.items()}


def portable(value: Any) -> Any:
    """Return a setting as it is, or the last name of a file or folder that lies on this machine."""
    value = str(value) if isinstance(value, Path) else value
    local = isinstance(value, str) and "/" in value and Path(value).exists()
    return Path(value).name if local else value


def on_task(system: System, name: str, rows: Task | None = None) -> System:
    """Return a fitted system with the rows of another task, by default read as its settings say."""
    data = system.config.dump()
    # What names the rows of the run's own task does not carry over.
    own = ("test_file", "classes", "revision", "train_rows", "train_rows_seed")
    data["task"] |= {"name": name, "validation_rows": 0, **dict.fromkeys(own)}
    config = parse_config(data)
    task = encode_labels(rows or load_data(config), system.backbone.tokenizer, config.task.labels)
    ids = answer_token_ids(system.backbone.tokenizer, task.labels)
    return replace(system, config=config, task=task, answer_ids=ids)


def number(value: float | None) -> float:
    """Return a stored score; infinity, which JSON cannot hold, is stored as null."""
    return math.inf if value is None else value


def load_predictions(folder: Path) -> tuple[Tensor, dict[int, Tensor]]:
    """Return labels (long, `n`) and per S log-probabilities (float64, `n x C`) of an evaluated run.

    The rows are in the order of their task, the same for every run on it: paired comparisons need no ids.

    Raises:
        DataError: the folder has no predictions.
    """
    rows = read_jsonl(folder / PREDICTIONS)
    if not rows:
        raise DataError(f"There are no predictions in {folder}: evaluate the run first.")
    labels = torch.tensor([row["label"] for row in rows])
    probs = {int(s): [row["probs"][s] for row in rows] for s in rows[0]["probs"]}
    return labels, {s: torch.tensor(p, dtype=torch.float64).log() for s, p in probs.items()}


def record_path(folder: Path, config_hash: str) -> Path:
    """Return where a folder of records keeps the one of a configuration."""
    return folder / f"{config_hash}.json"


def committed(record: Record) -> Record:
    """Return a record as it is committed: what it says in words names no folder of this machine.

    `identity` sees to the settings.
    """
    return record | {key: scrubbed(record[key]) for key in ("notes", "failed") if key in record}


def read_record(path: Path) -> Record:
    """Read one record; a `CheckpointError` if it is missing, a `DataError` if it is something else."""
    return checked(read_json(path), str(path))


def checked(record: Any, where: str) -> Record:
    """Return what was read as a record; a `DataError` where it is something else."""
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise DataError(f"{where}: this is not the record of a run. Remove it and repeat the sweep.")
    if record.get("schema") != SCHEMA:
        raise DataError(
            f"{where}: a record of schema {record.get('schema')}, this version reads {SCHEMA}. Remove it and "
            "repeat the sweep."
        )
    needed = IDENTITY if "failed" in record else IDENTITY + SCORES
    if missing := [key for key in needed if key not in record]:
        raise DataError(f"{where}: a record lacks {missing[0]!r}. Remove it and repeat the sweep.")
    return record
