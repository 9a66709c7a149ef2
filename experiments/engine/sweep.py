"""Many runs, each once: trained, evaluated and recorded, several at a time, whatever happens on the way.

A run is its configuration: jobs that ask for the same one, in this sweep or in another of the same folder,
share it. What is finished is never redone, what was interrupted goes on from its checkpoint to the same bits,
and a run that fails is recorded with its message and does not stop the others.

    folder/<hash>/               the run: weights, log, predictions row by row, predictions on shifted tasks
    folder/<hash>/failure.txt    where it failed: the whole traceback
    folder/records/<hash>.json   its record (`experiments.engine.record`), written as soon as there is any
"""

import gc
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bara_pyro.atomic import write_json, write_text
from bara_pyro.cli.terminal import say
from bara_pyro.errors import BaraError, ConfigError, TrainingError, unknown
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import DTYPES, load_backbone
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.fingerprint import fingerprint
from bara_pyro.runs.ownership import clear, foreign
from bara_pyro.runs.system import System, build_system, find_device
from bara_pyro.runs.train import train
from experiments.engine.launchers import LAUNCHERS, Lost, say_done
from experiments.engine.provenance import code_state, in_words, same_code
from experiments.engine.record import (
    Record,
    identity,
    make_record,
    portable,
    read_record,
    record_path,
    shifted_scores,
)
from experiments.engine.results import LOCK, locked

FAILURE = "failure.txt"
NO_PART = (LOCK, FAILURE)
"""Names of files that are the sweep's own in the folder of a run."""
NOTHING: Mapping[str, Record] = MappingProxyType({})


@dataclass(frozen=True)
class Job:
    """What an experiment asks for.

    Attributes:
        settings: dotted settings, as `bara_pyro.runs.config.load_config(overrides=...)` takes them.
        shifted: names of further tasks whose test rows the fitted run is evaluated on.
    """

    settings: Mapping[str, Any]
    shifted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A configuration to complete, for all the jobs that share it.

    Attributes:
        settings: those of the first job that asks for it.
        folder: of the sweep.
        shifted: the further tasks of all these jobs.
        retry_failed, reuse: see `sweep`.
    """

    config: RunConfig
    settings: dict[str, Any]
    folder: Path
    shifted: tuple[str, ...] = ()
    retry_failed: bool = False
    reuse: str | None = "any"

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.folder / self.config.hash

    @property
    def path(self) -> Path:
        """The file of its record."""
        return record_path(self.folder / "records", self.config.hash)

    @property
    def label(self) -> str:
        """What it is called while the sweep is watched."""
        c = self.config
        return f"{c.method.name} on {Path(c.task.name).name}, lr {c.train.lr:g}, seed {c.seed} [{c.hash}]"

    @property
    def gpus(self) -> int:
        """GPUs that it needs for itself, where a cluster hands them out."""
        return int(self.config.backbone.device.startswith("cuda"))

    def record(self) -> Record | None:
        """Return the record that there is."""
        return read_record(self.path) if self.path.exists() else None

    def outdated(self, record: Record | None) -> bool:
        """Return whether it was made by other code, and is to be made again for that."""
        return record is not None and self.reuse == "same" and not same_code(record.get("code"), code_state())

    def lacks_itself(self, record: Record | None) -> bool:
        """Return whether it is still to be trained or evaluated on its own task."""
        return record is None or ("failed" in record and self.retry_failed) or self.outdated(record)

    def lacks(self, record: Record | None) -> list[str]:
        """Return the shifted tasks that it is still to be evaluated on."""
        if record is None or "failed" in record:
            return []
        done = {name: record["shifted"].get(portable(name)) for name in self.shifted}
        return [name for name, it in done.items() if not it or ("failed" in it and self.retry_failed)]

    def done(self, record: Record | None) -> bool:
        """Return whether there is nothing left to do."""
        return not self.lacks_itself(record) and not self.lacks(record)

    def failures(self, record: Record) -> list[str]:
        """Return a line for each part of the job that failed."""
        if "failed" in record:
            return [f"{self.label}: {record['failed']}"]
        done = {name: record["shifted"].get(name, {}) for name in map(portable, self.shifted)}
        return [f"{self.label}, on {name}: {it['failed']}" for name, it in done.items() if "failed" in it]


def plan(
    jobs: Sequence[Job], folder: Path, retry_failed: bool = False, reuse: str | None = "any"
) -> tuple[list[str], dict[str, Run]]:
    """Return the hash of each job's configuration, and the runs by hash; see `sweep` for what it raises."""
    hashes: list[str] = []
    runs: dict[str, Run] = {}
    for job in jobs:
        config = load_config(overrides=dict(job.settings))
        earlier = runs.get(config.hash)
        shifted = tuple(dict.fromkeys((*(earlier.shifted if earlier else ()), *job.shifted)))
        settings = earlier.settings if earlier else dict(job.settings)
        runs[config.hash] = Run(config, settings, folder, shifted, retry_failed, reuse)
        hashes.append(config.hash)
    return hashes, runs


def found(runs: Mapping[str, Run], known: Mapping[str, Record]) -> dict[str, Record | None]:
    """Return the record of each run, from the folder of the sweep or else from `known`."""
    return {key: run.record() or known.get(key) for key, run in runs.items()}


def only_finished(jobs: Sequence[Job], args: Namespace, known: Mapping[str, Record] = NOTHING) -> list[bool]:
    """Return which jobs are done, shifted tasks included; a `TrainingError` where none is."""
    hashes, runs = plan(jobs, args.runs, args.retry_failed, args.reuse)
    there = found(runs, known)
    done = [runs[key].done(there[key]) for key in hashes]
    if not any(done):
        raise TrainingError(f"No run of this study is finished in {args.runs}: leave out --finished.")
    return done


def sweep(
    jobs: Sequence[Job],
    folder: Path,
    *,
    launcher: str = "processes",
    workers: int = 2,
    retry_failed: bool = False,
    strict: bool = False,
    reuse: str | None = "any",
    known: Mapping[str, Record] = NOTHING,
    stored: Callable[[], Mapping[str, Record]] = dict,
) -> list[Record]:
    """Bring every job's run to its end and return their records, in the order of the jobs.

    Args:
        jobs: what to run.
        folder: of the runs and their records; several sweeps may share it, also at the same time.
        launcher: "processes", "serial" (in this process, for debugging) or "ray": see `launchers`.
        workers: how many runs are worked on at a time.
        retry_failed: try again what failed before; it is left as it is otherwise.
        strict: raise at the end if anything failed. Otherwise failures are listed, and the caller finds them
            in the records: `failed` in a record, or in what it holds of a shifted task.
        reuse: what to do with runs that other code made: "any" takes them, "same" makes them again, None
            refuses to begin.
        known: hash -> record of runs that are done although the folder does not hold them (another
            machine's, whose folder is gone).
        stored: returns, where runs are left to do, hash -> record of runs that are not taken, but have to be
            of the same language models.

    Raises:
        ConfigError: a setting of a job is wrong, there is no such launcher, runs are there that other code
            made and `reuse` does not say what to do with them, or records of the same configuration are of
            another language model; nothing has been run then.
        DataError: a file in the folder of records is not a record; nothing has been run then.
        TrainingError: a run failed and `strict` is set; all others are done.
    """
    if launcher not in LAUNCHERS:
        raise ConfigError(unknown("launcher", launcher, LAUNCHERS))
    if workers < 1:
        raise ConfigError(f"workers is {workers}: give at least 1.")
    hashes, runs = plan(jobs, folder, retry_failed, reuse)
    there = found(runs, known)
    records = {key: record for key, record in there.items() if record is not None}
    if reuse is None:
        check_code([*records.values()], folder)
    left = [run for key, run in runs.items() if not run.done(there[key])]
    if left:
        others = {key: record for key, record in stored().items() if key in runs}
        check_language_models(runs, {**others, **records})
    begun = time.perf_counter()
    for number, (run, result) in enumerate(LAUNCHERS[launcher](work, left, workers), 1):
        record = record_loss(run, result.reason) if isinstance(result, Lost) else result
        records[run.config.hash] = record
        say_done(number, len(left), outcome(run, record), begun)
    failures = [lines for key, run in runs.items() if (lines := run.failures(records[key]))]
    lines = [line for one in failures for line in one]
    say(f"{len(runs) - len(failures)} done, {len(failures)} failed")
    if lines:
        say(f"Failed{'' if retry_failed else ' (--retry-failed tries them again)'}:")
    for line in lines:
        say(f"- {line}")
    if strict and lines:
        raise TrainingError(
            f"{len(lines)} of {len(runs)} runs or their evaluations failed: see the list above."
        )
    return [records[key] for key in hashes]


def outcome(run: Run, record: Record) -> str:
    """Return what is said of a run when it is done: its scores under the most draws, or why it failed."""
    if failures := run.failures(record):
        return f"failed: {' '.join(failures)}"
    scores = record["metrics"][max(record["metrics"], key=int)]
    shown = (("acc", "acc", ".1f"), ("ece", "ECE", ".1f"), ("nll", "NLL", ".3f"))
    known = (f"{said} {scores[key]:{form}}" for key, said, form in shown if scores.get(key) is not None)
    return f"{run.label}: {', '.join(known)}"


def check_code(records: Sequence[Record], folder: Path) -> None:
    """Raise a `ConfigError` where finished runs were made by other code than what is to be added."""
    others = [record.get("code") for record in records if not same_code(record.get("code"), code_state())]
    if others:
        raise ConfigError(
            f"{len(others)} of {len(records)} finished runs in {folder} were made by other code "
            f"({in_words(others[0])}): --reuse any takes them as they are, --reuse same makes them again."
        )


def check_language_models(runs: Mapping[str, Run], records: Mapping[str, Record]) -> None:
    """Raise a `ConfigError` where a record of one of these runs is of other weights than lie there now.

    A configuration names its language model, and a folder may hold another one tomorrow: two runs of the same
    hash would not be the same. Records from before they said so are taken on trust.
    """
    # Wherever the runs are made: this process must not keep memory of an accelerator. Eight bits are of it.
    weights = cache(lambda name, dtype: fingerprint(load_backbone(name, dtype=dtype)))
    for key, record in records.items():
        own, stored = runs[key].config.backbone, record.get("backbone_fingerprint")
        if stored and own.dtype in DTYPES and (now := weights(own.name, own.dtype)) != stored:
            raise ConfigError(
                f"The language model {own.name!r} has the fingerprint {now}, the record {key} of a run on it "
                f"has {stored}: give the folder another name, so that their runs are told apart."
            )


def work(run: Run) -> Record:
    """Do what a run lacks and return its record; never raises. What a launcher maps over the runs."""
    return {**identity(run.config, run.settings), **attempt(run, _complete, run)}


def _complete(run: Run) -> Record:
    with locked(run.out):
        # Read here: another sweep may have completed it while this one waited.
        record = run.record()
        if run.outdated(record):
            if stranger := foreign(run.out, NO_PART):
                raise ConfigError(
                    f"{stranger} was not written by this run, or was changed since: move it, or give another "
                    "--runs."
                )
            clear(run.out, NO_PART)
        fit = cache(partial(_fitted, run))
        if record is None or run.lacks_itself(record):
            done = attempt(run, lambda: make_record(fit(), run.out, run.settings))
            # Known by what was asked for, also where rows said how long: that is the name of its folder.
            record = {**identity(run.config, run.settings), **done, "config_hash": run.config.hash}
            write_json(run.path, record)
        for name in run.lacks(record):
            scores = attempt(run, lambda name: shifted_scores(fit(), run.out, name), name)
            record["shifted"][portable(name)] = scores
            write_json(run.path, record)
        return read_record(run.path)  # as it will be read: an infinite score is null


def _fitted(run: Run) -> System:
    """Return the trained system: read back, from its checkpoint on, or from the start."""
    c = run.config.backbone
    find_device(c.device)
    system = build_system(run.config, shared_backbone(c.name, c.dtype, c.device))
    train(system, run.out, resume=True)
    return system


_loaded: dict[tuple[str, str, str], Backbone] = {}


def shared_backbone(name: str, dtype: str, device: str) -> Backbone:
    """Return the frozen language model, which runs of one process share; one at a time: two may not fit."""
    if (name, dtype, device) not in _loaded:
        _loaded.clear()
        gc.collect()  # programs and their language model know each other
        _loaded[name, dtype, device] = load_backbone(name, dtype=dtype, device=device)
    return _loaded[name, dtype, device]


def attempt(run: Run, action: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """Return what an action returns, or `{"failed": message}`."""
    try:
        return action(*given)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in one run must not stop the others
        message = str(error) if isinstance(error, BaraError) else f"{type(error).__name__}: {error}"
        try:
            write_text(run.out / FAILURE, traceback.format_exc())
        except BaraError as full:
            message = f"{message} ({full})"
        # Records are shared: what they say must not hold where this machine keeps its runs.
        return {"failed": message.replace(f"{run.folder}/", "")}


def record_loss(run: Run, reason: str) -> Record:
    """Record that the process of a run was lost, as a failure of what the run still lacked."""
    record = run.record()
    if record is None or "failed" in record:
        record = {**identity(run.config, run.settings), "failed": reason}
    for name in run.lacks(record):
        record["shifted"][portable(name)] = {"failed": reason}
    write_json(run.path, record)
    return record
