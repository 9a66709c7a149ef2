"""Train a system: split-half calibration, optimiser steps, fits after training, and the run's folder."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from bara_pyro.atomic import claimed, write_json
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import seeded
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import batches
from bara_pyro.data.clusters import groups_of
from bara_pyro.data.labels import offered_of
from bara_pyro.errors import CheckpointError, Stopped, TrainingError
from bara_pyro.methods import METHODS, Fit, MethodConfig
from bara_pyro.moved import warn_renamed
from bara_pyro.processes import Ranks, joined, number_of_processes
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import check_backbone, check_own_rows, load_weights, saved_step
from bara_pyro.runs.manifest import (
    CHECKPOINT,
    CONFIG,
    FITTED,
    GUIDE,
    MANIFEST,
    SPLIT_HALF_FILE,
    SPLIT_HALF_FOLDER,
    START,
    TRAINED,
    check_free,
    check_kept,
    how_to_resume,
    is_run,
    record_files,
    verify_files,
)
from bara_pyro.runs.ownership import discard
from bara_pyro.runs.sections import TrainConfig
from bara_pyro.runs.split_half import (
    HalfFit,
    check_split_half,
    fit_split_half,
    lower_rate,
    next_fit,
    rate_of,
    run_rate,
    shortened,
    split_half_system,
    steps_wanted,
    with_fit,
)
from bara_pyro.runs.steps import OnStep, check_shares, fit_steps, last_nll, train_seconds
from bara_pyro.runs.stored import check_same_settings, stored_config
from bara_pyro.runs.system import System
from bara_pyro.runs.writing import begin, save_system
from bara_pyro.untrusted.files import read_json
from bara_pyro.untrusted.schemas import RunFile

PROCESS_TIMEOUT = 600.0  # seconds that a process waits for another before it stops


def train(
    system: System,
    out: str | Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
    on_split_half: OnStep | None = None,
    on_rehearsal: OnStep | None = None,
) -> None:
    """Train a system and write its folder.

    If `torchrun` or `accelerate launch` started several processes, each trains on its share of the rows of
    every step, and only the first writes; `out` must be a folder that all of them can read.

    Args:
        system: a system from `build_system`, trained in place.
        out: folder of the run.
        resume: continue from the last checkpoint in `out`, or start if there is none; a finished run is only
            loaded.
        on_step: called after each step with the number of steps done and the parts of the loss.
        on_split_half: the same for the steps of split-half calibration (`adapter.calibrated`).
        on_rehearsal: old name of `on_split_half`.

    Raises:
        ConfigError: `out` holds a run and `resume` is False, or a run with other settings; another process
            trains there; the method's final fit is impossible; or processes cannot share the batch evenly.
        CheckpointError: the checkpoint is unusable, or a file cannot be written.
        TrainingError: the loss is not finite; the last good parameters are in `out`.
        ProcessLostError: another process does not answer.

    Examples:
        >>> from pathlib import Path
        >>> from bara_pyro.runs.config import load_config
        >>> from bara_pyro.runs.system import build_system
        >>> from bara_pyro.runs.train import train
        >>> config = load_config(overrides={"method": "lora", "task.limit": 8, "train.steps": 3})
        >>> system = build_system(config)
        >>> steps = []
        >>> train(system, "runs/lora", on_step=lambda step, parts: steps.append(step))
        >>> steps, sorted(path.name for path in Path("runs/lora").glob("*.safetensors"))
        ([1, 2, 3], ['adapter_model.safetensors', 'guide.safetensors'])
    """
    if on_rehearsal is not None:
        warn_renamed("on_rehearsal", "on_split_half")
        on_split_half = on_rehearsal
    out = Path(out)
    # Before the processes join: one that raises here would be missing for the others.
    check_shares(system.config.train, number_of_processes())
    with joined(system.backbone.device, PROCESS_TIMEOUT) as ranks:
        if ranks.first:
            check_free(out, resume)
            if is_run(out):
                check_same_settings(out, system.config)
        ranks.take_over([])  # wait until the first process has checked the folder
        with claimed(out) if ranks.first else nullcontext():
            _train(system, out, ranks, on_step, on_split_half)


def _train(
    system: System, out: Path, ranks: Ranks, on_step: OnStep | None, on_split_half: OnStep | None = None
) -> None:
    verify_files(out, TRAINED)
    if is_run(out):
        stored = read_json(out / CONFIG, RunFile)
        check_backbone(system.backbone, out, stored)
    if ranks.largest(int(ranks.first and _is_trained(system, out))):
        check_own_rows(system, out)
        load_weights(system, out)
        if ranks.first and not (out / MANIFEST).exists():
            record_files(out, *TRAINED)  # killed before the manifest was written, or it was removed
    else:
        method = METHODS[system.config.method.name]
        if method.check is not None:
            method.check(what_is_fitted(system))
        system.corrections.check(system.model, system.guide, f"the method {method.name!r}")
        try_guide(system)
        if system.config.adapter.calibrated:
            check_split_half(system)
        section = _fit_run(system, out, ranks, on_step, on_split_half)
        if not ranks.first:
            return
        fitted = method.finish(what_is_fitted(system)) if method.finish is not None else {}
        fitted |= _fit_corrections(system, out)
        check_kept(out)  # writing would create the folder again
        if fitted:
            write_json(out / FITTED, fitted)
        save_system(system, out, section.total_steps)
    if ranks.first:
        for name in (CHECKPOINT, START):
            (out / name).unlink(missing_ok=True)


def _fit_run(
    system: System, out: Path, ranks: Ranks, on_step: OnStep | None, on_split_half: OnStep | None
) -> TrainConfig:
    """Calibrate and train, with `find_lr` again at a lower rate if need be; return the section trained with.

    Raises:
        TrainingError: the loss is not finite, at the lower rate too if there is one.
    """
    section, failed = system.config.train, None
    modules = (system.model, system.guide) if section.find_lr else ()  # only then is a run trained again
    start = [{name: value.clone() for name, value in one.state_dict().items()} for one in modules]
    while True:
        if system.config.adapter.calibrated:
            section = section.model_copy(update=_make_half_fits(system, out, ranks, on_split_half))
        try:
            fit_steps(system, out, ranks, on_step, section)
        except TrainingError as error:
            failed = error
        if not section.find_lr:
            break
        if not ranks.largest(int(ranks.first and lower_rate(system, out, diverged=failed is not None))):
            break
        failed = None
        for module, values in zip(modules, start, strict=True):
            module.load_state_dict(values)
    if failed is not None:
        raise failed
    return section


def try_guide(system: System) -> None:
    """Try a user's guide on one row, so that errors are raised before it is trained.

    The bound needs draws with a gradient; prediction needs a quantile function and, for S = 0, a mean.

    Raises:
        ConfigError: the guide lacks one of these.
        MissingKLError: a KL has no closed form, and `sampled_kl` is off.
    """
    model, guide, device = system.model, system.guide, system.backbone.device
    if type(guide).__module__.split(".")[0] == "bara_pyro" or not guide.stochastic:
        return
    row = system.encoded("train").batch([0], system.answer_ids).to(device)
    with torch.no_grad(), seeded(device, 0):
        MeanFieldELBO(sampled_kl=system.config.train.sampled_kl).terms(model, guide, row)
    for samples in sorted({min(samples, 1) for samples in system.config.predict.samples}):
        predict(model, guide, row, samples=samples)


def _is_trained(system: System, out: Path) -> bool:
    """Whether a folder holds parameters after all steps; `check_own_rows` checks the rows."""
    if not (out / GUIDE).exists():
        return False
    saved, c = saved_step(system, out), system.config.train
    # Without its calibration a run may also be of these lengths.
    others = {2 * c.total_steps: c.may_double, shortened(c.total_steps): c.may_shorten}
    return saved == steps_wanted(system, out) or bool(others.get(saved))


def _make_half_fits(system: System, out: Path, ranks: Ranks, on_step: OnStep | None) -> dict[str, float]:
    """Make the fits of split-half calibration that are missing; return the run's `steps` and `lr`."""
    while True:
        due = next_fit(system, out) if ranks.first else None
        fit = HalfFit(*(ranks.largest(number) for number in due or HalfFit(0)))
        if not fit.steps:
            return {
                "steps": ranks.largest(steps_wanted(system, out) if ranks.first else 0),
                "lr": rate_of(system, ranks.largest(run_rate(system, out) if ranks.first else 0)),
            }
        _make_half_fit(system, out, ranks, on_step, fit)


def _make_half_fit(system: System, out: Path, ranks: Ranks, on_step: OnStep | None, fit: HalfFit) -> None:
    if ranks.first:
        begin(system, out)  # from here on the run can be resumed
    half, held_out = split_half_system(system, fit)
    folder = out / SPLIT_HALF_FOLDER
    if ranks.first and folder.exists() and not _is_begun(half, folder):
        discard(folder)
    diverged = False
    try:
        _train(half, folder, ranks, on_step)
    except TrainingError:
        if not system.config.train.find_lr:
            raise
        diverged = True  # at this rate; its parameters are the last with a finite loss
    except Stopped as stop:
        raise Stopped(
            f"Stopped during split-half calibration with all progress saved in {out}: continue with "
            f"{how_to_resume(out)}.",
            stop.code - 128,
        ) from stop
    if ranks.first:
        seconds = train_seconds(folder) or 0.0
        stored = with_fit(system, half, held_out, out, fit, seconds, last_nll(folder), diverged=diverged)
        discard(folder)  # before: killed here, the next fit must not find the files of this one
        write_json(out / SPLIT_HALF_FILE, stored)


def _is_begun(half: System, folder: Path) -> bool:
    """Whether a folder holds a whole or interrupted fit with these settings; not if it was half removed."""
    try:
        verify_files(folder, TRAINED)
        return is_run(folder) and stored_config(folder)[0].hash == half.config.hash
    except CheckpointError:
        return False


def what_is_fitted(system: System) -> Fit[AdaptedLM, SiteGuide, MethodConfig]:
    """Return the argument of a method's `check` and `finish`."""
    return Fit(
        system.model,
        system.guide,
        system.config.method,
        system.corrections,
        system.answer_ids,
        system.split,
        partial(draw, system),
        system.config.predict.seed,
        system.config.predict.batch_size,
    )


def _fit_corrections(system: System, out: Path) -> dict[str, float]:
    """Fit the corrections that are switched on, after training."""
    numbers: dict[str, float] = {}
    if system.config.adapter.calibrated:
        numbers |= {f"calibrated_{key}": value for key, value in fit_split_half(system, out).items()}
    if not any(part.fewest for part in system.corrections.parts):
        return numbers
    split, device = system.split("train"), system.backbone.device
    rows = (b.to(device) for b in batches(split, system.answer_ids, system.config.predict.batch_size))
    offered = offered_of(split.offered, len(system.task.labels)) if split.offered else None
    groups = groups_of(system.task, split)
    return numbers | system.corrections.fit(system.model, system.guide, rows, groups=groups, offered=offered)
