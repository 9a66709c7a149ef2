"""Settings for every method, chosen on validation rows with the same number of trials each.

    python -m experiments search --methods lora bara --tasks micro-wgs micro-arce --steps 1000 --seeds 1

The spaces are in `methods.py`. The lowest NLL wins: the mean over tasks and seeds, predictions
averaged over 10 draws. No test row is looked at. With --lengths the best trial is tried again after
other numbers of steps, as validation rows also allow early stopping. The choices, with every trial's
score, are kept in experiments/hyperparameters.json, from which `chosen(method)` takes the settings of
the experiments; methods that are searched again replace their entry, the others stay.
"""

import math
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from bara_pyro.atomic import write_json
from bara_pyro.cli.terminal import say, show
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.report import Column, Table
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import (
    experiment_parser,
    positive,
    preset,
    run_settings,
    start,
    sweep_options,
)
from experiments.engine.methods import check_spaces, first_trials, further_trials, space
from experiments.engine.record import Record, number
from experiments.engine.sweep import Job, sweep

CHOICES = Path(__file__).parents[1] / "hyperparameters.json"
KIND = "bara_pyro hyperparameters"
# One number of draws; a method without draws gives its one prediction whatever S is.
SAMPLES = 10


NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Trial:
    """One setting of a method to score."""

    method: str
    settings: dict[str, Any]


Score = Callable[[Sequence[Trial]], Sequence[float]]
Scored = list[tuple[Trial, float]]


def search(methods: Sequence[str], score: Score, lengths: Sequence[int] = ()) -> dict[str, Scored]:
    """Score every trial of every method's space; return its trials and scores, in the order they were tried.

    Scores are the lower the better, infinite for a trial that failed. The best trial of the space is scored
    with each of `lengths` steps besides.

    Raises:
        ConfigError: a method or a setting of its space is wrong; nothing has been scored then.
    """
    check_spaces(methods)
    first = _scored([Trial(m, settings) for m in methods for settings in first_trials(m)], score)
    rates = {m: best(of_method(first, m)).settings["train.lr"] for m in methods}
    further = [Trial(m, settings) for m in methods for settings in further_trials(m, rates[m])]
    everything = first + _scored(further, score)
    leaders = [best(of_method(everything, m)) for m in methods]
    everything += _scored([at_length(trial, steps) for trial in leaders for steps in lengths], score)
    return {m: of_method(everything, m) for m in methods}


def at_length(trial: Trial, steps: int) -> Trial:
    """Return the trial with so many steps in place of those that all trials have."""
    return Trial(trial.method, {**trial.settings, "train.steps": steps})


def _scored(trials: list[Trial], score: Score) -> Scored:
    return list(zip(trials, score(trials), strict=True))


def of_method(scored: Scored, method: str) -> Scored:
    """Return the trials of one method."""
    return [(trial, value) for trial, value in scored if trial.method == method]


def best(scored: Scored) -> Trial:
    """Return the trial of the lowest score; of equal ones the first."""
    return min(scored, key=lambda pair: pair[1])[0]


def validation_score(args: Namespace) -> Score:
    """Return the score of trials that are run: the mean validation NLL (nats) over tasks and seeds."""

    def score(trials: Sequence[Trial]) -> list[float]:
        groups = [trial_jobs(trial, args) for trial in trials]
        records = iter(sweep([job for jobs in groups for job in jobs], args.runs, **sweep_options(args)))
        return [mean(record_nll(next(records)) for _ in jobs) for jobs in groups]

    return score


def trial_jobs(trial: Trial, args: Namespace) -> list[Job]:
    """Return the runs of a trial: one a task and seed, evaluated on validation rows."""
    shared = {
        "task.evaluate_on": "validation",
        "task.validation_rows": args.validation_rows,
        "predict.samples": [SAMPLES],
        "method": trial.method,
    }
    return [
        Job(run_settings(args, {**shared, "task.name": task, "seed": seed, **trial.settings}))
        for task in args.tasks
        for seed in range(args.seeds)
    ]


def record_nll(record: Record) -> float:
    """Return a run's NLL in nats; infinite where the run failed or a right answer had probability 0."""
    return math.inf if "failed" in record else number(record["metrics"][str(SAMPLES)]["nll"])


def entry(method: str, scored: Scored, about: dict[str, Any]) -> dict[str, Any]:
    """Return what hyperparameters.json holds of a method; `chosen` is null where every trial failed.

    Where lengths were tried, `chosen` says its own: a study may have another by default.
    """
    s, winner = space(method), best(scored).settings
    failed = all(math.isinf(value) for _, value in scored)
    if about.get("lengths") and about["steps"] is not None:
        winner = {"train.steps": about["steps"], **winner}
    return {
        **about,
        "space": {"train.lr": s.lr} | ({s.regulariser: s.values} if s.regulariser else {}),
        "trials": [{"settings": trial.settings, "nll": value} for trial, value in scored],
        "chosen": None if failed else winner,
    }


def load_choices(path: Path = CHOICES) -> dict[str, Any]:
    """Return what is known of each method; nothing without a file, a `DataError` for one that is not ours."""
    if not path.exists():
        return {}
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("kind") != KIND:
        raise DataError(f"{path} was not written by experiments.search: delete it and search again.")
    return stored["methods"]


def chosen(method: str, path: Path = CHOICES) -> dict[str, Any]:
    """Return the dotted settings that the search chose for a method; a `ConfigError` if it chose none."""
    settings = load_choices(path).get(method, {}).get("chosen")
    if settings is None:
        raise ConfigError(
            f"No settings have been chosen for {method!r} in {path}: run "
            f"python -m experiments search --methods {method}."
        )
    return dict(settings)


def tuned(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return arms: each method with its chosen settings."""
    return {method: {"method": method, **preset(chosen(method))} for method in methods}


def table(results: dict[str, Scored]) -> Table:
    """Return a row a trial, that of the lowest NLL of each method marked."""
    rows = [
        {
            "method": method,
            "settings": ", ".join(f"{key} {value:g}" for key, value in trial.settings.items()),
            "nll": value,
            "chosen": "chosen" if trial == best(scored) and not math.isinf(value) else "",
        }
        for method, scored in results.items()
        for trial, value in scored
    ]
    columns = (
        Column("method", "method"),
        Column("settings", "settings"),
        Column("nll", "NLL", format=".4f"),
        Column("chosen", ""),
    )
    return Table(columns, rows, "validation NLL in nats, mean over tasks and seeds; ∞: a run failed")


def main(arguments: Sequence[str] | None = None) -> None:
    """Search and write the choices."""
    parser = experiment_parser(__doc__, runs="runs/search", seeds=1, study=False)
    parser.add_argument("--validation-rows", metavar="N", type=int, default=0,
        help="rows set aside from train; 0: those that the tasks of the microworld have")  # fmt: skip
    parser.add_argument("--lengths", metavar="N", type=positive, nargs="+", default=[],
        help="numbers of steps that the best trial is tried with besides; default: none")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", type=Path, default=CHOICES, help="default: %(default)s")
    args = parser.parse_args(arguments)
    for task in args.tasks:
        if not task.startswith("micro-") and not args.validation_rows:
            raise ConfigError(f"The task {task!r} has no validation rows of its own: give --validation-rows.")
    known = load_choices(args.out)
    results = search(args.methods, validation_score(args), args.lengths)
    settings = {"model": Path(args.model or "microworld").name, "validation_rows": args.validation_rows}
    about = {**settings, "tasks": args.tasks, "steps": args.steps, "seeds": args.seeds}
    if args.lengths:
        about["lengths"] = args.lengths
    found = {method: entry(method, scored, about) for method, scored in results.items()}
    write_json(args.out, {"kind": KIND, "methods": dict(sorted({**known, **found}.items()))})
    show(table(results))
    say(f"Written to {args.out}")
    if lost := [method for method, value in found.items() if value["chosen"] is None]:
        raise TrainingError(f"Every trial failed of {', '.join(lost)}: see the list of failures above.")


if __name__ == "__main__":
    start(main)
