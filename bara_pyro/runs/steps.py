"""The optimiser steps of a training, which can be resumed bit for bit after it is killed at any moment."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from bara_pyro.core.noise import noise_seed, seeded
from bara_pyro.core.svi import SVI
from bara_pyro.data import EncodedRows, training_batches
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, ProcessLostError, Stopped, TrainingError
from bara_pyro.fast.capture import replaying, widened
from bara_pyro.methods import METHODS
from bara_pyro.processes import ALONE, Ranks
from bara_pyro.runs.checkpoint import load_checkpoint, save_checkpoint
from bara_pyro.runs.fingerprint import fingerprint
from bara_pyro.runs.folder import begin, save_system
from bara_pyro.runs.manifest import LOG, MANIFEST, REHEARSAL, how_to_resume
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.stopped import LastFinite, SignalHandler
from bara_pyro.runs.system import System
from bara_pyro.runs.train_log import Log

OnStep = Callable[[int, dict[str, float]], None]


def make_svi(system: System, train: TrainConfig | None = None) -> SVI:
    """Return the inference object for a system's configuration, or for another section `train`."""
    c = system.config
    return METHODS[c.method.name].svi(system.model, system.guide, train or c.train, c.method)


def noise_of(seed: int, rank: int) -> int:
    """Return the seed of a process's noise in training, which differs from the seed of initial values."""
    return noise_seed(seed, f"training/{rank}")


def fit_steps(system: System, out: Path, ranks: Ranks, on_step: OnStep | None, steps: int) -> None:
    """Train for this many steps, continuing from a checkpoint in the folder if there is one.

    There are none if an adapter is given to which the method only adds something afterwards.
    """
    if not steps:
        if ranks.first:
            (out / MANIFEST).unlink(missing_ok=True)
            begin(system, out)
        return
    c = system.config.train.model_copy(update={"steps": steps})
    svi = make_svi(system, c)
    svi.ranks = ranks if ranks.size > 1 else None
    # The noise of training depends on the seed, not on random numbers drawn since the model was built.
    noise = noise_of(system.config.seed, 0 if svi.common_noise else ranks.rank)
    with seeded(system.backbone.device, noise), replaying(svi, c.capture == "auto"):
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
    done = start
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
                if log and (done % c.log_every == 0 or done == c.total_steps):
                    log.add({"step": done, **svi.last})
                stopped = ranks.largest(brake.signal)  # read once per step: a signal may arrive at any moment
                # Also after the last step, because fitting afterwards may run out of memory.
                due = more_to_fit(system) if done == c.total_steps else done % c.checkpoint_every == 0
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


def more_to_fit(system: System) -> bool:
    """Return whether the method, or a setting of the adapters, fits something after the last step."""
    return METHODS[system.config.method.name].finish is not None or any(system.corrections.children())


def check_shares(c: TrainConfig, processes: int) -> None:
    """Refuse a batch that cannot be divided evenly among processes and micro-batches.

    Call it before anything is written: a folder keeps the batch size that it was started with.

    Raises:
        ConfigError: the batch cannot be divided evenly.
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
    if c.capture == "auto":
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
    reason, what = str(error).rstrip("."), "Split-half calibration" if out.name == REHEARSAL else "Training"
    return TrainingError(f"{what} stopped at step {step + 1}, {outcome}: {reason[0].lower()}{reason[1:]}.")
