"""Many runs, each once: trained, evaluated and recorded, several at a time, whatever happens on the way.

The studies and the paper's tables go through this loop. What is finished is never redone, what was
interrupted goes on from its checkpoint to the same bits, and a run that fails is recorded with its message
and does not stop the others. Runs of one name are one run, in this sweep or in another of the same folder.

    folder/<name>/               the run: weights, log, predictions row by row, predictions on shifted tasks
    folder/<name>/failure.txt    where it failed: the whole traceback
    folder/records/<name>.json   its record (`experiments.engine.record`), written as soon as there is any
"""

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from bara_pyro.atomic import write_json, write_text
from bara_pyro.cli.terminal import say
from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics.base import compared
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.launchers import LAUNCHERS, Lost, say_done
from experiments.engine.provenance import code_state, in_words, same_code
from experiments.engine.record import (
    Record,
    identity,
    make_record,
    on_task,
    portable,
    read_record,
    record_path,
)
from experiments.engine.results import locked

FAILURE = "failure.txt"


@dataclass(frozen=True)
class Run:
    """A training to complete, known by its configuration.

    Attributes:
        settings: dotted settings, as `bara_pyro.runs.config.load_config(overrides=...)` takes them.
        folder: of the sweep.
        shifted: names of further tasks whose test rows the fitted run is evaluated on.
    """

    settings: Mapping[str, Any]
    folder: Path
    shifted: tuple[str, ...] = ()

    @cached_property
    def config(self) -> RunConfig:
        """The whole configuration; a `ConfigError` where a setting is wrong."""
        return load_config(overrides=dict(self.settings))

    @property
    def name(self) -> str:
        """The name of its folder and of its record."""
        return self.config.hash

    @property
    def label(self) -> str:
        """What it is called while the sweep is watched."""
        c = self.config
        return (
            f"{c.method.name} on {Path(c.task.name).name}, lr {c.train.peak_lr:g}, seed {c.seed} [{c.hash}]"
        )

    @property
    def gpus(self) -> int:
        """GPUs that it needs for itself, where a cluster hands them out."""
        return int(self.config.backbone.device.startswith("cuda"))

    @property
    def out(self) -> Path:
        """The folder of the run."""
        return self.folder / self.name

    @property
    def path(self) -> Path:
        """The file of its record."""
        return record_path(self.folder / "records", self.name)

    def identity(self) -> Record:
        """Return the part of its record that says which run it is."""
        return identity(self.config, self.settings)

    def system(self) -> System:
        """Return what is to be trained, with its rows."""
        return build_system(self.config, shared_backbone(self.config))

    def on(self, system: System, name: str) -> System:
        """Return the fitted system with the rows of a shifted task."""
        return on_task(system, name)

    def measured(self, system: System) -> Record:
        """Return the scores of the fitted system."""
        return make_record(system, self.out, self.settings)

    def record(self) -> Record | None:
        """Return the record that there is."""
        return read_record(self.path) if self.path.exists() else None

    def lacks(self, record: Record) -> list[str]:
        """Return the shifted tasks that it is still to be evaluated on."""
        return [name for name in self.shifted if "failed" not in record and not self._on(record, name)]

    def failures(self, record: Record) -> list[str]:
        """Return a line for each part of the run that failed."""
        if "failed" in record:
            return [f"{self.label}: {record['failed']}"]
        done = {portable(name): self._on(record, name) for name in self.shifted}
        return [f"{self.label}, on {name}: {it['failed']}" for name, it in done.items() if "failed" in it]

    def forget_failures(self) -> None:
        """Take out of the record what failed, and remove the traceback."""
        (self.out / FAILURE).unlink(missing_ok=True)
        record = self.record()
        if record is not None and "failed" in record:
            self.path.unlink()
        elif record is not None:
            kept = {name: it for name, it in record["shifted"].items() if "failed" not in it}
            write_json(self.path, {**record, "shifted": kept})

    def _on(self, record: Record, name: str) -> dict[str, Any]:
        found: dict[str, Any] = record["shifted"].get(portable(name), {})
        return found


def sweep(
    asked: Iterable[Run], *, launcher: str = "processes", workers: int = 2, retry_failed: bool = False
) -> dict[str, Record]:
    """Bring every run to its end and return their records by name.

    Args:
        asked: the runs; several sweeps may share a folder, also at the same time.
        launcher: "processes", "serial" (in this process, for debugging) or "ray": see `launchers`.
        workers: how many runs are worked on at a time.
        retry_failed: try again what failed before; it is left as it is otherwise. Failures are listed, and
            the caller finds them in the records: `failed` in a record, or in what it holds of a shifted task.

    Raises:
        ConfigError: a setting is wrong; nothing has been run then. Or runs that name the same language model
            had other weights.
        DataError: a file in the folder of records is not a record; nothing has been run then.
    """
    runs = {run.name: run for run in asked}
    for run in runs.values() if retry_failed else ():
        run.forget_failures()
    records = {name: record for name, run in runs.items() if (record := run.record()) is not None}
    check_language_models(records.values())
    others = [r.get("code") for r in records.values() if not same_code(r.get("code"), code_state())]
    if others:
        say(f"{len(others)} of {len(records)} finished runs are of other code ({in_words(others[0])}): kept.")
    left = [run for name, run in runs.items() if name not in records or run.lacks(records[name])]
    begun = time.perf_counter()
    for number, (run, result) in enumerate(LAUNCHERS[launcher](work, left, workers), 1):
        record = record_loss(run, result.reason) if isinstance(result, Lost) else result
        records[run.name] = record
        say_done(number, len(left), outcome(run, record), begun)
    failures = [lines for name, run in runs.items() if (lines := run.failures(records[name]))]
    say(f"{len(runs) - len(failures)} done, {len(failures)} failed")
    for line in (line for lines in failures for line in lines):
        say(f"- {line}")
    check_language_models(records.values())
    return {name: records[name] for name in runs}


def outcome(run: Run, record: Record) -> str:
    """Return what is said of a run when it is done: its scores under the most draws, or why it failed."""
    if failures := run.failures(record):
        return f"failed: {' '.join(failures)}"
    scores = record["metrics"][max(record["metrics"], key=int)]
    known = (
        f"{metric.heading} {scores[name]:.{metric.digits}f}"
        for name, metric in compared().items()
        if metric.heading and scores.get(name) is not None
    )
    return f"{run.label}: {', '.join(known)}"


def check_language_models(records: Iterable[Record]) -> None:
    """Raise a `ConfigError` where two runs name the same language model, and its weights were others.

    A folder may hold other weights tomorrow. Records from before they said which are taken on trust.
    """
    known: dict[tuple[str, str], str] = {}
    for record in (record for record in records if record.get("backbone_fingerprint")):
        c, made = record["config"]["backbone"], record["backbone_fingerprint"]
        if (first := known.setdefault((c["name"], c["dtype"]), made)) != made:
            raise ConfigError(
                f"Runs on the language model {c['name']!r} were made with the weights {first} and {made}: "
                "give the other model another name, and its runs another folder."
            )


def work(run: Run) -> Record:
    """Do what a run lacks and return its record; never raises. What a launcher maps over the runs."""
    return {**run.identity(), **attempt(run, lambda: _complete(run))}


def _complete(run: Run) -> Record:
    with locked(run.out):
        # Read here: another sweep may have completed it while this one waited.
        record = run.record()
        fit = cache(lambda: _fitted(run))
        if record is None:
            done = attempt(run, lambda: run.measured(fit()))
            # Rows may have said how long it is trained: it is known by what was asked for.
            record = {**run.identity(), **done, "config_hash": run.config.hash}
            write_json(run.path, record)
        for name in run.lacks(record):
            record["shifted"][portable(name)] = attempt(run, lambda name: _shifted(run, fit(), name), name)
            write_json(run.path, record)
        return read_record(run.path)  # as it will be read: an infinite score is null


def _shifted(run: Run, system: System, name: str) -> dict[str, Any]:
    """Return the scores of a fitted system on the test rows of another task."""
    other = run.on(system, name)
    report = evaluate_system(other, run.out / "evaluation" / other.task.name)
    return {key: report[key] for key in ("metrics", "wall_clock_evaluate_s")}


def _fitted(run: Run) -> System:
    """Return the trained system: read back, from its checkpoint on, or from the start."""
    system = run.system()
    system.encoded(run.config.task.evaluate_on)  # a row that cannot be read is an error before training
    train(system, run.out, resume=True)
    return system


_loaded: dict[tuple[str, str, str], Backbone] = {}


def shared_backbone(config: RunConfig) -> Backbone:
    """Return the frozen language model, which runs of one process share; one at a time: two may not fit."""
    c = config.backbone
    find_device(c.device)
    if (key := (c.name, c.dtype, c.device)) not in _loaded:
        _loaded.clear()
        gc.collect()  # programs and their language model know each other
        _loaded[key] = load_backbone(c.name, dtype=c.dtype, device=c.device)
    return _loaded[key]


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
        return {"failed": " ".join(message.split()).replace(f"{run.folder}/", "")}


def record_loss(run: Run, reason: str) -> Record:
    """Record that the process of a run was lost, as a failure of what the run still lacked."""
    record = run.record() or {**run.identity(), "failed": reason}
    for name in run.lacks(record):
        record["shifted"][portable(name)] = {"failed": reason}
    write_json(run.path, record)
    return record
