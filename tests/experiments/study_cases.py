"""Experiments that nobody ran: records and run folders shaped like real ones, with invented predictions."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from bara_pyro.atomic import write_jsonl
from bara_pyro.metrics import evaluate
from experiments.engine.record import KIND, Record, read_record
from experiments.engine.results import results_path, write_study
from experiments.engine.rows import RunRows

SAMPLES = (0, 10)
# How an invented method answers: how sure it is, how far a run strays, whether draws change its answers.
METHODS: dict[str, tuple[float, float, bool]] = {
    "lora": (2.6, 0.7, False),
    "blob": (1.4, 0.6, True),
    "bara": (1.0, 0.4, True),
}


def labels_of(task: str, rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return the true logits of a task's rows and the labels drawn from them."""
    generator = torch.Generator().manual_seed(crc32(task.encode()))
    logits = 1.5 * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    gumbel = -torch.empty(rows, classes, dtype=torch.float64).exponential_(generator=generator).log()
    return logits, (logits + gumbel).argmax(-1)


def predictions(
    arm: str, task: str, seed: int, rows: int, classes: int = 2
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return labels and log-probabilities by S."""
    sure, stray, draws = METHODS[arm.split(", ", maxsplit=1)[0]]
    logits, labels = labels_of(task, rows, classes)
    generator = torch.Generator().manual_seed(crc32(f"{arm} {task} {seed}".encode()))
    noise = torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    point = sure * (logits + 1.5 * stray * noise)
    return labels, {s: (point * (0.9 if draws and s else 1.0)).log_softmax(-1) for s in SAMPLES}


def run_rows(
    arm: str, task: str, seed: int, labels: Tensor, log_probs: dict[int, Tensor], per: int = 1
) -> RunRows:
    """Return the rows of an invented run; `per` rows are of one cluster, which no other task knows."""
    ids = tuple(f"{task}-{i}" for i in range(len(labels)))
    clusters = tuple(f"{task}-{i // per}" for i in range(len(labels)))
    made = hash_of(arm, task, seed)
    return RunRows(arm, made, "", task, seed, task, ids, clusters, labels, log_probs)


def hash_of(arm: str, task: str, seed: int) -> str:
    """Return the hash of an invented run."""
    return f"{crc32(f'{arm} {task} {seed}'.encode()):08x}"


def rows_of(
    tasks: Mapping[str, tuple[int, int]], arms: Sequence[str] = tuple(METHODS), seeds: int = 2, per: int = 1
) -> list[RunRows]:
    """Return the rows of all arms on tasks of so many rows and classes."""
    return [
        run_rows(arm, task, seed, *predictions(arm, task, seed, *size), per)
        for task, size in tasks.items()
        for arm in arms
        for seed in range(seeds)
    ]


def finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {key: None if value == float("inf") else value for key, value in scores.items()}


def make_record(
    arm: str, task: str, seed: int, labels: Tensor, predicted: dict[int, Tensor], **more: Any
) -> Record:
    """Return a record as `experiments.engine.record.make_record` makes it, without a run."""
    method = arm.split(", ", maxsplit=1)[0]
    settings = {"method": method, "task.name": task, "seed": seed}
    return {
        "schema": 1,
        "kind": KIND,
        "config_hash": hash_of(arm, task, seed),
        "settings": settings,
        "config": {"backbone": {"name": "microworld"}, "method": {"name": method}, "train": {"steps": 1000}},
        "method": method,
        "task": task,
        "split": "test",
        "seed": seed,
        "steps": 1000,
        "metrics": {str(s): finite(evaluate(p, labels)) for s, p in predicted.items()},
        "shifted": {},
        "parameters": {"model": 1000, "guide": 23, "trainable": 23576 + 10 * len(method), "frozen": 10**6},
        "sparsity": {"phi": 5.0 + seed, "theta": 20.0, "psi": 30.5} if method == "bara" else {},
        "environment": {"versions": {"torch": "2.9.1"}, "machine": "x86_64", "threads": 1, "gpu": None},
        "notes": [],
        "wall_clock_train_s": 30.0,
        "wall_clock_evaluate_s": 3.0,
        **more,
    }


def write_run(folder: Path, labels: Tensor, predicted: dict[int, Tensor]) -> None:
    rows = [
        {
            "id": str(i),
            "label": int(label),
            "probs": {str(s): p[i].exp().tolist() for s, p in predicted.items()},
        }
        for i, label in enumerate(labels)
    ]
    write_jsonl(folder / "predictions.jsonl", rows)


def invent(
    name: str,
    results: Path,
    runs: Path | None = None,
    *,
    arms: Sequence[str] = tuple(METHODS),
    tasks: Mapping[str, int] | None = None,
    seeds: int = 3,
    comparisons: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Write an experiment with its records into `results`, run folders into `runs`; return its runs.

    Args:
        name: of the experiment.
        results: folder of the results.
        runs: folder of the run folders; none are written if None.
        arms: names that begin with one of `METHODS`.
        tasks: name -> rows.
        seeds: number of them.
        comparisons: to be kept in the file.
    """
    kept, records = [], []
    for task, rows in (tasks or {"micro-wgs": 200, "micro-arce": 150}).items():
        for seed in range(seeds):
            for arm in arms:
                labels, predicted = predictions(arm, task, seed, rows)
                record = make_record(arm, task, seed, labels, predicted)
                records.append(record)
                kept.append({"hash": record["config_hash"], "arm": arm, "task": task, "seed": seed})
                if runs is not None:
                    write_run(runs / record["config_hash"], labels, predicted)
    write_study(name, kept, records, {"steps": 1000, "seeds": seeds}, comparisons, results)
    return kept


def load_records(folder: Path) -> list[Record]:
    """Return all records of a sweep's folder of records, in the order of their hashes."""
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def lines_of(name: str, results: Path) -> list[dict[str, Any]]:
    """Return the lines of the file that holds a set of results, as they are there."""
    with gzip.open(results_path(name, results), "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def records_of(name: str, results: Path) -> dict[str, Record]:
    """Return the records in the file that holds a set of results, by hash."""
    return {
        line["record"]["config_hash"]: line["record"] for line in lines_of(name, results) if "record" in line
    }
