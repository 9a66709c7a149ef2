"""The training loop: progress as it goes, resumable after a kill at any moment, to the same bits."""

import json
from collections.abc import Callable
from pathlib import Path

from bara_pyro.backbone import DTYPES
from bara_pyro.checkpoint import FILE, load_checkpoint, save_checkpoint
from bara_pyro.config import TrainConfig
from bara_pyro.data import EncodedSplit, training_batches
from bara_pyro.data.types import Batch
from bara_pyro.elbo import MeanFieldELBO
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.store import write_text
from bara_pyro.svi import SVI, adamw, linear_schedule
from bara_pyro.system import System, save_system, write_config

LOG = "train_log.jsonl"
OnStep = Callable[[int, dict[str, float]], None]


def make_svi(system: System) -> SVI:
    """Return the inference object that a configuration describes."""
    c = system.config.train
    optim = adamw(system.model, system.guide, c.lr, weight_decay=c.weight_decay)
    return SVI(
        system.model,
        system.guide,
        optim,
        MeanFieldELBO(sampled_kl=c.sampled_kl),
        scheduler=linear_schedule(optim, c.steps, c.warmup),
        clip_norm=c.clip_norm,
        autocast=None if c.autocast is None else DTYPES[c.autocast],
    )


def train(system: System, out: Path, *, resume: bool = False, on_step: OnStep | None = None) -> SVI:
    """Fit a system and write its folder.

    Args:
        system: from `build_system`; fitted in place.
        out: folder of the run.
        resume: go on from the last checkpoint in `out` (from the start where there is none).
        on_step: called after each step with the number of steps done and the parts of the loss.

    Raises:
        ConfigError: `out` holds a run already and `resume` is False.
        CheckpointError: the checkpoint is unusable or a file cannot be written.
        TrainingError: the loss is not finite; the last good state stays in `out`.
    """
    if (out / "config.json").exists() and not resume:
        raise ConfigError(f"{out} already holds a run: give --resume to go on, or another --out.")
    split = system.split("train")
    svi = make_svi(system)
    start = load_checkpoint(out, svi, system.config.hash)
    write_config(system, out)
    _run(system, svi, split, out, start, on_step)
    save_system(system, out)
    (out / FILE).unlink(missing_ok=True)
    return svi


def _run(
    system: System, svi: SVI, split: EncodedSplit, out: Path, start: int, on_step: OnStep | None
) -> None:
    c = system.config.train
    log = _kept_log(out / LOG, start)
    write_text(out / LOG, "".join(log))
    with (out / LOG).open("a") as file:
        for step in range(start, c.steps):
            try:
                svi.step(*micro_batches(system, split, c, step))
            except TrainingError as error:
                save_checkpoint(out, svi, step, system.config.hash)
                raise TrainingError(f"Step {step + 1}: {error} The state before it is in {out}.") from error
            done = step + 1
            if done % c.log_every == 0 or done == c.steps:
                file.write(json.dumps({"step": done, **svi.last}) + "\n")
                file.flush()
            if done % c.checkpoint_every == 0 and done < c.steps:
                save_checkpoint(out, svi, done, system.config.hash)
            if on_step is not None:
                on_step(done, svi.last)


def micro_batches(system: System, split: EncodedSplit, c: TrainConfig, step: int) -> list[Batch]:
    """Return the rows of a step, cut into `accumulate` pieces."""
    rows = training_batches(len(split), c.batch_size, system.config.seed, step)
    size = c.batch_size // c.accumulate
    pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [split.batch(piece, system.answer_ids).to(system.backbone.device) for piece in pieces]


def _kept_log(path: Path, start: int) -> list[str]:
    """Return the lines of an interrupted log up to the checkpoint; later ones will be written again."""
    if not path.exists():
        return []
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        # A kill may leave half a line at the end; it is after the checkpoint, or it would be whole.
        if line.endswith("\n") and json.loads(line)["step"] <= start:
            kept.append(line)
    return kept
