"""Training and evaluating with a progress bar, for the commands that do."""

import shlex
from contextlib import nullcontext
from pathlib import Path

from bara_pyro.cli.scores import show_scores
from bara_pyro.cli.terminal import Advance, progress, result, say, say_notes
from bara_pyro.errors import MissingKLError, Stopped
from bara_pyro.lm.loading import resolve
from bara_pyro.runs.claim import claimed
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.launched import processes, rank
from bara_pyro.runs.manifest import check_kept, check_run, how_to_resume, is_run
from bara_pyro.runs.ownership import clear, discard
from bara_pyro.runs.rehearsal import check_rehearsal, halves_of, rehearsal_steps, steps_wanted
from bara_pyro.runs.resumed import build_run
from bara_pyro.runs.steps import check_shares
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.runs.train_log import train_seconds
from bara_pyro.types import Json


def train_and_show(out: Path, config: RunConfig, *, started: RunConfig | None = None) -> None:
    """Train, evaluate, print the scores; what `out` held is removed unless it is gone on with.

    Args:
        out: folder of the run.
        config: its settings.
        started: those that a run which is gone on with was started with, and keeps.
    """
    check_shares(config.train, processes())
    resume = started is not None
    streaming, name = config.task.streaming, config.backbone.name
    # Without a network, a minute.
    away = None if Path(resolve(name)).is_dir() else f"look for {name} on the hub"
    doing = "read rows" if streaming else away
    with progress(doing, None) if doing else nullcontext() as advance:
        system = build_run(started, config, on_rows=advance if streaming else None)
    if system.config.adapter.calibrated and not resume:
        check_rehearsal(system)  # before it is announced
    say_notes(system.task.notes)
    if not resume and not rank():
        with claimed(out):
            clear(out)  # only now that the settings, the data and the model are found to be good
    try:
        report = run(system.config, out, resume=resume, system=system)
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
    say(f"Next: {_next(system, out)}")
    result(report)


def _next(system: System, out: Path) -> str:
    """Return what to type next: a question for the run, and what its rows are not enough for."""
    run = shlex.quote(str(out))
    if system.config.task.likelihood == "completion":
        return f'bara generate {run} --prompt "..."'
    said = f'bara predict {run} "..."'
    if system.config.task.validation_rows or system.task.validation:
        return said
    return f"{said} (conformal, abstain and detect: train with --validation-rows, 50 or more)"


def _stopped(stop: KeyboardInterrupt, out: Path) -> Stopped:
    """Return what to say when a run was stopped, by a signal that training did not see itself."""
    if isinstance(stop, Stopped) and "--resume" in str(stop):
        return stop
    number = stop.code - 128 if isinstance(stop, Stopped) else 2
    if not is_run(out):
        return Stopped("Stopped before anything was written.", number)
    kept = f"{out} keeps what was written up to its last checkpoint"
    return Stopped(f"Stopped: {kept}, go on with {how_to_resume(out)}.", number)


class Stages:
    """Where a training is on one bar: in a rehearsal, in a longer one, in the run itself.

    Args:
        before: steps of the rehearsal, 0 without one.
        steps: of the run, as far as is known.
        advance: of the bar.
    """

    def __init__(self, before: int, steps: int, advance: Advance) -> None:
        self.steps, self._advance = steps, advance
        self._before, self._here, self._last = 0, before, 0

    def rehearsal(self, step: int, parts: dict[str, float]) -> None:
        """Show a step of a rehearsal; a second one follows where the first was too unsure of itself."""
        if step <= self._last:
            self._before, self.steps = self._before + self._here, 2 * self.steps
            self._here *= 2
        self._last = step
        which = "longer rehearsal" if self._before else "rehearsal"
        self._show(self._before + step, f"{which}, nll {parts['nll']:.3f}")

    def run(self, step: int, parts: dict[str, float]) -> None:
        """Show a step of the run."""
        self._show(self._before + self._here + step, f"nll {parts['nll']:.3f}")

    def _show(self, done: int, note: str) -> None:
        self._advance(completed=done, total=self._before + self._here + self.steps, note=note)


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> Json:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds.

    Of several processes that train together the first evaluates, and the others return nothing.
    """
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    steps = steps_wanted(system, out)
    before = 0
    if config.adapter.calibrated:
        learnt, asked = map(len, halves_of(system))
        before = rehearsal_steps(steps, learnt, learnt + asked)
    with progress(f"train {label}", before + steps) as advance:
        stages = Stages(before, steps, advance)
        fit(system, out, resume=resume, on_rehearsal=stages.rehearsal, on_step=stages.run)
    if rank():
        return {}  # the first process evaluates
    if stages.steps > config.train.total_steps:
        say(
            f"trained for {stages.steps} steps, twice as many as planned: the rehearsal was too unsure of "
            "itself after as many passes (--set train.may_double=false)"
        )
    report = evaluate_with_progress(system, out, label, wall_clock_train_s=train_seconds(out))
    check_kept(out)
    check_run(out)
    return report


def evaluate_with_progress(system: System, out: Path, label: str, **extra: object) -> Json:
    """Evaluate a fitted system with a progress bar."""
    rows = len(system.encoded(system.config.task.evaluate_on))
    with progress(f"evaluate {label}", rows * len(system.config.predict.samples)) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)
