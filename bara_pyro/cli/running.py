"""Training and evaluating with a progress bar, for the commands that do."""

from pathlib import Path

from bara_pyro.cli.scores import show_scores
from bara_pyro.cli.terminal import progress, result, say, say_notes
from bara_pyro.errors import ConfigError, MissingKLError, Stopped
from bara_pyro.runs.config import RunConfig, differences, load_config
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.folder import stored_config
from bara_pyro.runs.launched import rank
from bara_pyro.runs.manifest import clear, discard, is_run
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.runs.train import train_seconds
from bara_pyro.types import Json


def resumed(out: Path, file: Path | None, overrides: Json, assignments: list[str]) -> RunConfig:
    """Return the settings that a run was started with; those given again must be the same.

    Raises:
        ConfigError: they are not.
    """
    started = stored_config(out)[0]
    config = load_config(file, overrides, assignments, base=started)
    if others := differences(started, config):
        raise ConfigError(
            f"{out} was started with another {', '.join(others)}: leave the settings out to resume it as "
            "it was, or choose another --out."
        )
    return config


def train_and_show(out: Path, config: RunConfig, *, resume: bool) -> None:
    """Train, evaluate, print the scores; what `out` held is removed unless it is gone on with."""
    system = build_system(config)
    say_notes(system.task.notes)
    if not resume and not rank():
        clear(out)  # only now that the settings, the data and the model are found to be good
    try:
        report = run(config, out, resume=resume, system=system)
    except MissingKLError:  # said by the first step: there is nothing to keep
        if not resume and not rank():
            discard(out)
        raise
    except KeyboardInterrupt as stop:
        raise _stopped(stop, out) from stop
    if rank():
        return
    show_scores(report)
    say(f"Written to {out}")
    result(report)


def _stopped(stop: KeyboardInterrupt, out: Path) -> Stopped:
    """Return what to say when a run was stopped, by a signal that training did not see itself."""
    if isinstance(stop, Stopped) and "--resume" in str(stop):
        return stop
    number = stop.code - 128 if isinstance(stop, Stopped) else 2
    if not is_run(out):
        return Stopped("Stopped before anything was written.", number)
    way = f"go on with `bara train --resume --out {out}`."
    return Stopped(f"Stopped: {out} keeps what was written up to its last checkpoint, {way}", number)


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> Json:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds.

    Of several processes that train together the first evaluates, and the others return nothing.
    """
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    with progress(f"train {label}", config.train.steps) as advance:
        fit(
            system,
            out,
            resume=resume,
            on_step=lambda step, parts: advance(completed=step, note=f"nll {parts['nll']:.3f}"),
        )
    if rank():
        return {}  # the first process evaluates
    return evaluate_with_progress(system, out, label, wall_clock_train_s=train_seconds(out))


def evaluate_with_progress(system: System, out: Path, label: str, **extra: object) -> Json:
    """Evaluate a fitted system with a progress bar."""
    rows = len(system.split(system.config.task.evaluate_on))
    with progress(f"evaluate {label}", rows * len(system.config.predict.samples)) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)
