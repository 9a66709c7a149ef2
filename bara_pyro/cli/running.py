"""Train and evaluate with a progress bar, and show the scores, for the commands that do."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from bara_pyro.atomic import claimed
from bara_pyro.cli import terminal
from bara_pyro.cli.checks import note_of_draws
from bara_pyro.cli.learning import warn_unlearnt
from bara_pyro.cli.terminal import Advance, progress, result, say, say_next, say_notes
from bara_pyro.errors import MissingKLError, Stopped
from bara_pyro.lm.loading import resolve
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.config import RunConfig
from bara_pyro.runs.evaluate import evaluate_system
from bara_pyro.runs.launched import processes, rank
from bara_pyro.runs.manifest import check_kept, check_run, how_to_resume, is_run
from bara_pyro.runs.ownership import clear, discard
from bara_pyro.runs.split_half import (
    best_rate,
    check_split_half,
    halves_of,
    rate_of,
    rates_tried,
    run_rate,
    split_half_steps,
    steps_wanted,
    tries_quarter,
    turns,
)
from bara_pyro.runs.steps import check_shares, train_seconds
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train as fit
from bara_pyro.types import Json

ABOUT = (Column("method", "method"), Column("S", "S", format="d"))
# Only replies have one.
PERPLEXITY = Column("perplexity", "perplexity", format=".2f", best="min")
SIZES = (
    Column("trainable", "params", format=",d"),
    Column("phi", "Φ", format=".1f"),
    Column("theta", "θ", format=".1f"),
    Column("psi", "Φθ", format=".1f"),
)


def score_columns() -> list[Column]:
    """Return the columns of the table of scores.

    Short headings and the units in the caption: with all its columns the table fits 80 characters.
    """
    # Imported here: metrics need torch, which takes seconds.
    from bara_pyro.metrics.base import METRICS

    metrics = [
        Column(metric.name, metric.heading, format=f".{metric.digits}f", best=metric.best)
        for metric in METRICS.values()
        if metric.heading
    ]
    return [*ABOUT, *metrics, PERPLEXITY, *SIZES]


def score_rows(report: Json, name: str | None = None) -> list[Json]:
    """Return the rows of the score table from a metrics.json, one for each number of draws."""
    common = {
        "method": name or report["method"],
        "trainable": report["parameters"]["trainable"],
        **report["sparsity"],
    }
    return [{**common, "S": int(s), **scores} for s, scores in report["metrics"].items()]


def show_scores(report: Json) -> None:
    """Print the table of scores, of classes with the majority class as a baseline.

    With `--verbose` it has columns for the parameter count and the gates.
    """
    rows = score_rows(report)
    if "majority_class" in report:
        # As text, so that the table marks the best of the methods and not the baseline.
        rows.append({"method": "majority class", "acc": f"{report['majority_class']['acc']:.1f}"})
    terminal.show(score_table(rows, sizes=terminal.mode.verbose))


def score_table(rows: Sequence[Json], *, sizes: bool = True) -> Table:
    """Return the table of scores without empty columns, and without `SIZES` unless `sizes`."""
    left_out = () if sizes else [column.key for column in SIZES]
    filled = [
        column
        for column in score_columns()
        if column.key not in left_out and any(row.get(column.key) is not None for row in rows)
    ]
    keys = {column.key for column in filled}
    if "perplexity" in keys:
        return Table(filled, rows, "NLL in nats per token, each reply scored under one draw")
    percent = "acc, ECE, gates below 0.1 (Φ, θ, Φθ)" if "psi" in keys else "acc, ECE"
    nats = "NLL, KL from the truth" if "kl_truth" in keys else "NLL"
    return Table(filled, rows, f"{percent} in %; {nats} in nats")


def train_and_show(out: Path, config: RunConfig, *, started: RunConfig | None = None) -> None:
    """Train, evaluate and print the scores; remove what `out` held, unless the run is resumed.

    A resumed run keeps the settings that it was `started` with.
    """
    check_shares(config.train, processes())
    resume = started is not None
    name = config.backbone.name
    # Without a network this takes a minute.
    away = None if Path(resolve(name)).is_dir() else f"look for {name} on the hub"
    with progress(away, None) if away else nullcontext():
        system = build_system(config, started=started)
    if system.config.adapter.calibrated and not resume:
        check_split_half(system)  # before the progress bar announces it
    say_notes(system.task.notes)
    if not resume and not rank():
        with claimed(out):
            clear(out)  # only now that the settings, the data and the model are known to be good
    try:
        report = run(system.config, out, resume=resume, system=system)
    except MissingKLError:  # raised by the first step, so there is nothing to keep
        if not resume and not rank():
            discard(out)
        raise
    except KeyboardInterrupt as stop:
        raise _stopped(stop, out) from stop
    if rank():
        return
    draws = config.predict
    note_of_draws(system, samples=max(draws.samples), predict_seed=draws.seed)
    show_scores(report)
    warn_unlearnt(system, out, report)
    say(f"Written to {out}")
    _say_next(system, out)
    result(report)


def _say_next(system: System, out: Path) -> None:
    """Print what to type after training."""
    if system.config.task.likelihood == "completion":
        say_next("bara", "generate", out, "--prompt", '"..."')
        return
    if not (system.config.task.validation_rows or system.task.validation):
        say("Note: bara abstain, conformal and detect need --validation-rows in training, 50 or more.")
    # Without classes of the whole task each row has choices, which a text on the command line lacks.
    say_next("bara", "predict", out, *(['"..."'] if system.task.names else ["--input", "FILE"]))


def _stopped(stop: KeyboardInterrupt, out: Path) -> Stopped:
    """Return what to print after a signal that stopped a run outside of its training loop."""
    if isinstance(stop, Stopped) and "--resume" in str(stop):
        return stop
    number = stop.code - 128 if isinstance(stop, Stopped) else 2
    if not is_run(out):
        return Stopped("Stopped before anything was written.", number)
    outcome = f"{out} keeps the training up to its last checkpoint"
    return Stopped(f"Stopped: {outcome}. Resume with {how_to_resume(out)}.", number)


class Stages:
    """Show on one bar how far training is: in the fits of split-half calibration, then the run itself.

    A fit of the calibration takes `before` steps, 0 without one, and `fits` are planned. The run's `steps`
    double with those of a fit, and `wanted` returns how many they are once the run begins.
    """

    def __init__(
        self, before: int, steps: int, advance: Advance, wanted: Callable[[], int], *, fits: int = 1
    ) -> None:
        self.steps, self._advance, self._wanted = steps, advance, wanted
        self._before, self._here, self._last, self._ran = 0, before, 0, 0
        self._fits = fits

    def split_half(self, step: int, parts: dict[str, float]) -> None:
        """Show a step of split-half calibration; after an underconfident fit there are more than planned."""
        if step <= self._last:
            self._before += self._last
            self._fits -= 1
        if step > self._here:
            self._here, self.steps, self._fits = 2 * self._here, 2 * self.steps, self._fits + 1
        self._last = step
        self._show(self._before + step, f"calibration, nll {parts['nll']:.3f}")

    def run(self, step: int, parts: dict[str, float]) -> None:
        """Show a step of the run, which is trained once more if it was unstable."""
        if not self._ran:
            self.steps, self._here = self._wanted(), self._last or self._here
        if step <= self._ran:
            self._before += self._ran
        self._ran, self._fits = step, 1
        self._show(self._before + self._here + step, f"nll {parts['nll']:.3f}")

    def _show(self, done: int, note: str) -> None:
        total = self._before + self._fits * self._here + self.steps
        self._advance(completed=done, total=total, note=note)


def run(
    config: RunConfig, out: Path, *, resume: bool = False, system: System | None = None, name: str = ""
) -> Json:
    """Train and evaluate one configuration with a progress bar; return what metrics.json holds.

    If several processes train together, the first one evaluates and the others return nothing.
    """
    system = system or build_system(config)
    label = name or f"{config.method.name} on {system.task.name}"
    steps = steps_wanted(system, out)
    before, fits = 0, 1
    if config.adapter.calibrated:
        learnt, scored = map(len, halves_of(system))
        before = split_half_steps(steps, learnt, learnt + scored)
        fits = 1 + turns(system) + (1 + tries_quarter(system) if config.train.find_lr else 0)
    with progress(f"train {label}", fits * before + steps) as advance:
        stages = Stages(before, steps, advance, partial(steps_wanted, system, out), fits=fits)
        fit(system, out, resume=resume, on_split_half=stages.split_half, on_step=stages.run)
    if rank():
        return {}  # the first process evaluates
    planned = config.train.total_steps
    if stages.steps != planned:
        how = "twice as many as planned, because split-half calibration found the run underconfident"
        option = "--no-may-double"
        if stages.steps < planned:
            how = f"not {planned}, because a quarter of the steps predicted held-out rows better"
            option = "--no-may-shorten"
        say(f"Note: trained for {stages.steps} steps, {how}. {option} prevents this.")
    if config.train.find_lr:
        best, rate = best_rate(system, out), run_rate(system, out)
        chosen = ", ".join(f"{tried:.2g}" for tried in rates_tried(system, out))
        why = "chosen from " + chosen if rate == best else f"as {rate_of(system, best):.2g} was unstable"
        say(f"Note: trained at a learning rate of {rate_of(system, rate):.2g}, {why} (--lr sets one).")
    report = evaluate_with_progress(system, out, label, wall_clock_train_s=train_seconds(out))
    check_kept(out)
    check_run(out)
    return report


def evaluate_with_progress(system: System, out: Path, label: str, **extra: object) -> Json:
    """Evaluate a fitted system with a progress bar; return what metrics.json holds."""
    rows = len(system.encoded(system.config.task.evaluate_on))
    draws = sum(max(samples, 1) for samples in system.config.predict.samples)
    with progress(f"evaluate {label}", rows * draws) as advance:
        return evaluate_system(system, out, on_rows=advance, **extra)
