"""The optimiser steps of a training, which can be resumed bit for bit after it is killed at any moment."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import Any, TextIO

import torch
from torch import Tensor

from bara_pyro.atomic import check_there, write_jsonl, writing
from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedRows, training_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import TERMINATION, ConfigError, ProcessLostError, Stopped, TrainingError
from bara_pyro.fast.capture import records, widened
from bara_pyro.fast.replay import replaying
from bara_pyro.lm.verifying import fingerprint
from bara_pyro.methods import METHODS
from bara_pyro.processes import ALONE, Ranks
from bara_pyro.runs.manifest import LOG, MANIFEST, SPLIT_HALF_FILE, SPLIT_HALF_FOLDER, how_to_resume
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.store import load_checkpoint, save_checkpoint
from bara_pyro.runs.system import System
from bara_pyro.runs.writing import begin, save_system
from bara_pyro.untrusted.files import read_json, read_jsonl
from bara_pyro.untrusted.schemas import LogLine, SplitHalfFile

LOG_EVERY = 10  # steps between lines of the log; runs with fewer than 10 such lines log every step


class Log:
    """Writes `train_log.jsonl`: one object per line, with the seconds of training so far.

    Lines after step `start`, from which training continues, are dropped.
    """

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        records = [record for record in read_jsonl(path, LogLine) if record["step"] <= start] if start else []
        write_jsonl(path, records)
        self._since = time.perf_counter() - (records[-1]["seconds"] if records else 0.0)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def add(self, record: dict[str, float]) -> None:
        """Append a record; a `CheckpointError` if the folder was removed meanwhile."""
        seconds = round(time.perf_counter() - self._since, 3)
        with writing(self.path):
            self._file.write(json.dumps({**record, "seconds": seconds}) + "\n")
            self._file.flush()
        check_there(self._file, self.path)

    def sync(self) -> None:
        """Write the records to disk, so that no checkpoint is there without the lines before it."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        check_there(self._file, self.path)

    def close(self) -> None:
        """Close the file; all records have been flushed."""
        with writing(self.path):
            self._file.close()


def train_seconds(out: Path) -> float | None:
    """Return the seconds of a run's training and split-half calibration, without pauses; None: unknown."""
    records = read_jsonl(out / LOG, LogLine)
    seconds = records[-1].get("seconds") if records else None
    if seconds is None or not (out / SPLIT_HALF_FILE).exists():
        return seconds
    return round(seconds + read_json(out / SPLIT_HALF_FILE, SplitHalfFile)["seconds"], 3)


def last_nll(out: Path) -> float | None:
    """Return a run's mean NLL (nats a row) on its own rows in the last quarter of training; None: no log."""
    logged = [line["nll"] for line in read_jsonl(out / LOG, LogLine) if "nll" in line]
    return mean(logged[-(len(logged) // 4 or 1) :]) if logged else None


class SignalHandler:
    """Defers Ctrl-C and other handled signals to the end of a step; a second signal takes effect at once.

    Attributes:
        signal: the number of the signal received; 0 if none.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "SignalHandler":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *TERMINATION):
                if callable(before := signal.getsignal(number)):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            self._before[number](number, frame)
        self.signal = number


class LastFinite:
    """The parameters with which the last finite loss was computed.

    Parameters that gave a non-finite loss are not worth keeping.
    """

    def __init__(self, svi: SVI) -> None:
        self.parameters = [p.detach() for p in svi.parameters]
        self._before = [p.clone() for p in self.parameters]
        self._good: list[Tensor] | None = None

    def before(self) -> None:
        """Remember the parameters at the start of a step."""
        torch._foreach_copy_(self._before, self.parameters)

    def after(self) -> None:
        """Mark the remembered parameters as good, because the step's loss was finite."""
        spare = [p.clone() for p in self.parameters] if self._good is None else self._good
        self._good, self._before = self._before, spare

    def restore(self) -> bool:
        """Restore the last good parameters; return whether there are any."""
        if self._good is not None:
            torch._foreach_copy_(self.parameters, self._good)
        return self._good is not None


OnStep = Callable[[int, dict[str, float]], None]


def make_svi(system: System, train: TrainConfig | None = None) -> SVI:
    """Return the inference object for a system's configuration, or for another section `train`."""
    c = system.config
    return METHODS[c.method.name].svi(system.model, system.guide, train or c.train, c.method)


def noise_of(seed: int, rank: int) -> int:
    """Return the seed of a process's noise in training, which differs from the seed of initial values."""
    return noise_seed(seed, f"training/{rank}")


def fit_steps(system: System, out: Path, ranks: Ranks, on_step: OnStep | None, c: TrainConfig) -> None:
    """Train as the section `train` says, continuing from a checkpoint in the folder if there is one.

    There are no steps if an adapter is given to which the method only adds something afterwards.
    """
    if not c.total_steps:
        if ranks.first:
            (out / MANIFEST).unlink(missing_ok=True)
            begin(system, out)
        return
    svi = make_svi(system, c)
    svi.ranks = ranks if ranks.size > 1 else None
    # The noise of training depends on the seed, not on random numbers drawn since the model was built.
    noise = noise_of(system.config.seed, 0 if svi.common_noise else ranks.rank)
    capture = replaying(svi) if records(c.capture, system.backbone.device) else nullcontext()
    with seeded(system.backbone.device, noise), capture:
        _fit(system, svi, c, out, ranks, on_step)


def _fit(system: System, svi: SVI, c: TrainConfig, out: Path, ranks: Ranks, on_step: OnStep | None) -> None:
    split = system.encoded("train")
    identity = {
        "configuration": system.config.hash,
        "backbone": fingerprint(system.backbone),
        "training data": split.fingerprint,
    }
    start = load_checkpoint(out, svi, identity, ranks)
    ranks.take_over([p.detach() for p in svi.parameters])
    good = LastFinite(svi)
    log_every = LOG_EVERY if c.total_steps >= 10 * LOG_EVERY else 1
    done = start
    method = METHODS[system.config.method.name]
    fits_more = method.finish is not None or any(system.corrections.children())
    with SignalHandler() as brake, ExitStack() as stack:
        log = None
        if ranks.first:
            (out / MANIFEST).unlink(missing_ok=True)  # the run is incomplete until training ends
            begin(system, out)
            log = stack.enter_context(closing(Log(out / LOG, start)))
        try:
            for step in range(start, c.total_steps):
                good.before()
                svi.step(*micro_batches(system, split, c, step, ranks))
                good.after()
                done = step + 1
                if log and (done % log_every == 0 or done == c.total_steps):
                    log.add({"step": done, **svi.last})
                stopped = ranks.largest(brake.signal)  # read once per step: a signal may arrive at any moment
                # Also after the last step, because fitting afterwards may run out of memory.
                due = fits_more if done == c.total_steps else done % c.checkpoint_every == 0
                if stopped or due:
                    if log:
                        log.sync()
                    save_checkpoint(out, svi, done, identity, ranks)
                if on_step is not None:
                    on_step(done, svi.last)
                if stopped:
                    raise Stopped(
                        f"Stopped after step {done} of {c.total_steps} with all progress saved in {out}: "
                        f"continue with {how_to_resume(out)}.",
                        stopped,
                    )
        except TrainingError as error:
            raise _stopped(error, system, out, done, good, ranks) from error
        except ProcessLostError as error:
            raise ProcessLostError(
                f"Stopped after step {done} of {c.total_steps}, because another process does not answer. "
                f"{out} keeps the last checkpoint; start all processes with resume=True (--resume)."
            ) from error


def check_shares(c: TrainConfig, processes: int) -> None:
    """Raise a `ConfigError` for a batch that processes and micro-batches cannot share evenly.

    Call it before anything is written: a folder keeps the batch size that it was started with.
    """
    share, left = divmod(c.batch_size, processes)
    if left:
        raise ConfigError(
            f"train.batch_size={c.batch_size} cannot be divided evenly among {processes} processes: choose a "
            f"multiple of {processes}."
        )
    if share % c.accumulate:
        raise ConfigError(
            f"train.accumulate={c.accumulate} must divide the {share} rows per step of each of {processes} "
            "processes: choose another value, or another batch size."
        )


def micro_batches(
    system: System, split: EncodedRows, c: TrainConfig, step: int, ranks: Ranks = ALONE
) -> list[Batch]:
    """Return this process's share of the rows of a step in `accumulate` micro-batches; see `check_shares`."""
    rows = ranks.share(training_batches(len(split), c.batch_size, system.config.seed, step))
    size = len(rows) // c.accumulate
    pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
    batches = [split.batch(piece, system.answer_ids) for piece in pieces]
    if c.capture == "on":
        batches = [widened(batch) for batch in batches]
    return [batch.to(system.backbone.device) for batch in batches]


def _stopped(
    error: TrainingError, system: System, out: Path, step: int, good: LastFinite, ranks: Ranks
) -> TrainingError:
    """Save the last parameters with a finite loss, and return the error that says so."""
    outcome = "there are no good parameters to keep"
    if good.restore():
        if ranks.first:
            save_system(system, out, step - 1)
        outcome = f"the parameters after step {step - 1} are kept in {out}"
    reason = str(error).rstrip(".")
    what = "Split-half calibration" if out.name == SPLIT_HALF_FOLDER else "Training"
    return TrainingError(f"{what} stopped at step {step + 1}, {outcome}: {reason[0].lower()}{reason[1:]}.")
