"""Predictions row by row of a study's runs: one Parquet file a study, small enough to be committed.

`run_study` adds what the folder of its runs holds. A line of the file is one prediction, for
`pandas.read_parquet` as for `read_rows`:

    results              the set of results (`experiments.engine.results`)
    arm, hash, commit    the arm of the study, its run, the code of that (+: with changes; empty: not known)
    task, seed           what the run was trained on
    tested_on, S         whose test rows these are, and the number of draws
    id, cluster, label   of the row; rows of one cluster (a resident) err together, across tasks too
    log_odds_1, ..       of each class to class 0, nats, float32; null beyond the classes of the task

Log-odds say what log-probabilities say with a column less: `log_softmax([0, log_odds_1, ..])`. Scores come
out of them as they went in, up to the seventh digit. Half precision would save a tenth of the file and
move an ECE by up to 0.2 points, because rows at the edge of a bin change sides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bara_pyro.atomic import atomic_write
from bara_pyro.errors import DataError
from bara_pyro.metrics import evaluate
from bara_pyro.metrics.base import compared
from bara_pyro.microworld import TASKS, micro_task
from bara_pyro.microworld.world import WORLD_SEED
from bara_pyro.runs.manifest import PREDICTIONS
from bara_pyro.untrusted.files import read_jsonl
from experiments.engine.record import Record, load_predictions, read_record, record_path
from experiments.engine.results import RESULTS, find_results, load_study, locked, study_of

SET = "results"
KEYS = ("arm", "hash", "commit", "task", "seed", "tested_on")
CLASS = "log_odds_"
# The least log-probability that a probability in float64 can have: no difference of two is undefined.
LEAST = -745.0
# How far a score of the predictions may be from the record's: they were written as probabilities.
ROUNDING = 1e-9


@dataclass(frozen=True)
class RunRows:
    """The predictions of one run on one task's test rows.

    Attributes:
        arm, hash, commit, task, seed, tested_on: as in a line of the file.
        ids: of the n rows.
        clusters: of the n rows; a row that stands for itself has its own id.
        labels: long, `n`.
        log_probs: number of draws S -> log-probabilities (nats, float64, `n x C`).
    """

    arm: str
    hash: str
    commit: str
    task: str
    seed: int
    tested_on: str
    ids: tuple[str, ...]
    clusters: tuple[str, ...]
    labels: Tensor
    log_probs: Mapping[int, Tensor]

    @property
    def place(self) -> tuple[str, str, int, str]:
        """What tells it from the others of its study."""
        return self.tested_on, self.arm, self.seed, self.task


def rows_path(name: str, results: Path = RESULTS) -> Path:
    """Return where the rows of a set of results are kept: one file a study."""
    return results / f"{study_of(name)}.parquet"


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise a `DataError` where what is read within this is no file of rows."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} does not hold the rows of a study ({error}): collect them again.") from error


def write_rows(name: str, runs: Iterable[RunRows], results: Path = RESULTS) -> None:
    """Write the rows of all runs of a study, in the order of their places: same rows, same bytes."""
    own = sorted(runs, key=lambda run: run.place)
    tables = [_table(name, run, samples) for run in own for samples in run.log_probs]
    with locked(results):
        _write(pa.concat_tables(tables, promote_options="default"), rows_path(name, results))


def _write(table: pa.Table, path: Path) -> None:
    texts = [name for name in table.column_names if not name.startswith(CLASS)]
    table = table.select([*texts, *_classes(table)]).unify_dictionaries()
    options: dict[str, Any] = {
        "use_dictionary": texts,
        # The bytes of a number apart: those of sign and exponent hardly change.
        "column_encoding": dict.fromkeys(_classes(table), "BYTE_STREAM_SPLIT"),
        "compression": "zstd",
        "compression_level": 19,
    }
    atomic_write(path, lambda file: pq.write_table(table, file, **options))


def _table(name: str, run: RunRows, samples: int) -> pa.Table:
    count, log_probs = len(run.ids), run.log_probs[samples]
    texts = {key: [getattr(run, key)] * count for key in ("arm", "hash", "commit", "task", "tested_on")}
    texts |= {SET: [name] * count, "id": list(run.ids), "cluster": list(run.clusters)}
    columns = {key: pa.array(values).dictionary_encode() for key, values in texts.items()}
    columns["seed"] = pa.array(np.full(count, run.seed, np.int32))
    columns["S"] = pa.array(np.full(count, samples, np.int16))
    columns["label"] = pa.array(run.labels.numpy().astype(np.int16))
    values = log_probs.clamp(min=LEAST).numpy()
    odds = (values - values[:, :1]).astype(np.float32)
    return pa.table(columns | {f"{CLASS}{c}": pa.array(odds[:, c]) for c in range(1, odds.shape[1])})


def _classes(table: pa.Table) -> list[str]:
    found = [name for name in table.column_names if name.startswith(CLASS)]
    return sorted(found, key=lambda name: int(name.removeprefix(CLASS)))


def read_rows(name: str, results: Path = RESULTS) -> list[RunRows]:
    """Read the rows of a set of results, none where they are not stored; a `DataError` for another file."""
    path = rows_path(name, results)
    if not path.exists():
        return []
    with _reading(path):
        frame = pq.read_table(path, filters=[(SET, "==", name)]).to_pandas()
        groups = frame.groupby(list(KEYS), sort=False, observed=True)
        return [_run(dict(zip(KEYS, about, strict=True)), part) for about, part in groups]


def _run(about: Mapping[str, Any], lines: pd.DataFrame) -> RunRows:
    names = [name for name in lines.columns if name.startswith(CLASS)]
    log_probs = {}
    for samples, part in lines.groupby("S", sort=False):
        odds = torch.tensor(part[names].to_numpy(np.float64))
        known = odds[:, ~odds[0].isnan()]
        log_probs[int(samples)] = torch.nn.functional.pad(known, (1, 0)).log_softmax(dim=1)
    labels = torch.tensor(part["label"].to_numpy(np.int64))
    named = {**about, "seed": int(about["seed"])}
    return RunRows(
        **named, ids=tuple(part["id"]), clusters=tuple(part["cluster"]), labels=labels, log_probs=log_probs
    )


def collect(study: str, folder: Path, results: Path = RESULTS) -> None:
    """Add to the stored rows of a study those that the folder of a sweep holds; what is there stays.

    Raises:
        DataError: a run of the folder has other scores than its record in the results.
    """
    stored = {run.place: run for run in _of_finished(read_rows(study, results), study, results)}
    for arm, record in _finished(study, results):
        if (run := _found(arm, record, folder)) is not None:
            stored[run.place] = run
    if stored:
        write_rows(study, stored.values(), results)


def lacking(study: str, results: Path = RESULTS) -> list[str]:
    """Return the finished runs of a study whose rows are not stored, all of them where there is no file."""
    stored = {run.place for run in _of_finished(read_rows(study, results), study, results)}
    return [
        f"{arm} on {record['task']}, seed {record['seed']}"
        for arm, record in _finished(study, results)
        if (record["task"], arm, record["seed"], record["task"]) not in stored
    ]


def rows_of_study(study: str, results: Path = RESULTS) -> list[RunRows]:
    """Return the stored rows of a study's finished runs; a `DataError` if no rows are stored.

    Those of a run that failed since, of an arm that is no longer there or of other settings are left out;
    where the study's results are not there, nothing is known of that.
    """
    found = read_rows(study, results)
    if not found:
        raise DataError(
            f"{rows_path(study, results)} has no rows of {study!r}: they are not stored until its next run."
        )
    return _of_finished(found, study, results)


def _of_finished(found: list[RunRows], study: str, results: Path) -> list[RunRows]:
    if not found or find_results(study, results) is None:
        return found
    known = {(arm, r["task"], r["seed"], r["config_hash"]) for arm, r in _finished(study, results)}
    return [run for run in found if (run.arm, run.task, run.seed, run.hash) in known]


def _finished(study: str, results: Path) -> Iterator[tuple[str, Record]]:
    """Yield arm and record of each run that did not fail."""
    for arm, tasks in load_study(study, results).arms.items():
        for seeds in tasks.values():
            yield from ((arm, record) for record in seeds.values() if "failed" not in record)


def _found(arm: str, record: Record, folder: Path) -> RunRows | None:
    """Return the rows that a sweep's folder holds of a run; None unless it has the whole run."""
    out, made = folder / record["config_hash"], record_path(folder / "records", record["config_hash"])
    if not made.exists() or not (out / PREDICTIONS).exists():
        return None
    code = read_record(made).get("code")
    commit = f"{code['commit']}{'+' if code['dirty'] else ''}" if code and code["commit"] else ""
    labels, log_probs = load_predictions(out)
    task, seed = record["task"], record["seed"]
    _check(log_probs, labels, record["metrics"], f"{arm} on {task}, seed {seed} ({out.name})")
    ids = tuple(row["id"] for row in read_jsonl(out / PREDICTIONS))
    about = (arm, record["config_hash"], commit, task, seed, task)
    return RunRows(*about, ids, _clusters(record, task, ids), labels, log_probs)


def _check(log_probs: Mapping[int, Tensor], labels: Tensor, scores: Mapping[str, Any], name: str) -> None:
    for samples, stored in scores.items():
        found = evaluate(log_probs[int(samples)], labels)
        for metric in compared():
            if stored.get(metric) is not None and abs(found[metric] - stored[metric]) > ROUNDING:
                raise DataError(
                    f"{name} has {metric} {found[metric]!r} by its rows and {stored[metric]!r} by the stored "
                    "record: the folder is of another run, repeat the study."
                )


def _clusters(record: Record, tested_on: str, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the cluster of each row: what the task says, or the row itself."""
    if tested_on not in TASKS:  # only the microworld says whom a row is about
        return tuple(ids)
    task = record["config"]["task"]
    # Records from before there were other worlds are of the shipped one.
    known = _microworld_clusters(tested_on, task["seed"], task.get("world", WORLD_SEED))
    return tuple(known[row_id] or row_id for row_id in ids)


@cache
def _microworld_clusters(name: str, seed: int, world: int) -> dict[str, str]:
    task = micro_task(name, seed, world)
    return {row.id: row.cluster for row in (*task.test, *task.validation)}
