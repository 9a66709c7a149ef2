"""The loop of a study: arms on tasks with seeds."""

import platform
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bara_pyro.atomic import write_text
from bara_pyro.cli.terminal import say, show
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.report.table import markdown
from bara_pyro.runs.assignments import assigned
from experiments.engine.arguments import run_settings
from experiments.engine.differences import COMPARISONS, Comparisons, write_comparisons
from experiments.engine.figures import difference_figure, save
from experiments.engine.record import recorded
from experiments.engine.results import Study, find_results, load_study, write_study
from experiments.engine.rows import collect
from experiments.engine.sweep import Run, sweep
from experiments.engine.tables import arms_table, reference_of, score_columns, task_table
from experiments.engine.values import display, gaps

Arms = Mapping[str, Mapping[str, Any]]
"""Name -> dotted settings."""
SEED = object()
"""Stands for the seed of the run where a setting of an arm is to change with it."""


def run_study(name: str, arms: Arms, args: Namespace, comparisons: Comparisons = COMPARISONS) -> None:
    """Run a study of arms and write its results to `args.out`; other stored results stay.

    An arm is its dotted settings, among them `method`; a value `SEED` is the seed of the run, for others see
    `experiments.engine.arguments.run_settings`. Arms are compared if a reference is among them.

    Raises:
        ConfigError: what is stored has another number of steps or other settings, or one was typed that an
            arm sets.
        TrainingError: every run failed.
    """
    results, about = args.out, {"steps": args.steps, "set": recorded(assigned(args.assignments))}
    stored = _stored_runs(name, results, about)
    # By seeds: what is done of an interrupted experiment is a whole table of fewer seeds.
    places = [(arm, task, seed) for seed in range(args.seeds) for task in args.tasks for arm in arms]
    jobs = [
        Run(run_settings(args, {"task.name": task, "seed": seed, **_settings(arms[arm], seed)}), args.runs)
        for arm, task, seed in places
    ]
    records = sweep(jobs, launcher=args.launcher, workers=args.workers, retry_failed=args.retry_failed)
    made = [(arm, records[job.name], seed) for job, (arm, _, seed) in zip(jobs, places, strict=True)]
    runs = [
        {"hash": record["config_hash"], "arm": arm, "task": record["task"], "seed": seed}
        for arm, record, seed in made
    ]
    arms_done = [arm for arm, record, _ in made if "failed" not in record]
    if not arms_done:
        raise TrainingError(f"Every run of {name} failed: see the list of failures above.")
    asked = {(run["arm"], run["task"], run["seed"]) for run in runs}
    runs = [*(run for run in stored if (run["arm"], run["task"], run["seed"]) not in asked), *runs]
    about |= {
        "seeds": 1 + max(run["seed"] for run in runs),
        "tasks": list(dict.fromkeys(run["task"] for run in runs)),
        "machine": platform.machine(),
        "device": args.device or "cpu",
    }
    # Also the failed ones: a table says how many there are.
    path = write_study(name, runs, records.values(), about, folder=results)
    collect(name, args.runs, results)
    if {*arms_done} & {*comparisons.references, comparisons.primary.reference}:
        write_comparisons(name, comparisons, results)
    say(f"{len(arms_done)} of {len(made)} runs are in {path}.")
    show_study(load_study(name, results), results)


def show_study(study: Study, folder: Path) -> None:
    """Print the tables of a study, and write them and the figure of its differences into a folder."""
    tables = [arms_table(study)]
    if len(study.tasks) > 1:
        tables += [task_table(study, metric) for metric in score_columns(study)]
    parts = [*(f"Incomplete: {gap}." for gap in gaps(study)), *map(markdown, tables)]
    if study.comparisons:
        reference = reference_of(study.comparisons)
        caption = (
            f"NLL of each method minus that of {display(reference)}, with its 95 % interval; left is better."
        )
        figure = folder / f"{study.name}-nll-differences.svg"
        try:
            save(difference_figure(study.comparisons, reference), figure, caption)
            parts.append(f"![{caption}]({figure.name})\n")
        except DataError as error:  # all differences are infinite
            parts.append(f"{error}\n")
    for table in tables:
        show(table)
    path = folder / f"{study.name}.md"
    write_text(path, "\n".join(parts))
    say(f"Written: {path}")


def _settings(arm: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {key: seed if value is SEED else value for key, value in arm.items()}


def _stored_runs(name: str, results: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that are stored of a study; a `ConfigError` where they have other settings."""
    found = find_results(name, results)
    if found is None:
        return []
    for key, now in about.items():
        before = found.about.get(key)
        if before != now and (key == "steps" or before is not None):
            raise ConfigError(
                f"{found.path} has runs with --{key} {before or 'default'}, not {now or 'default'}: give "
                "another folder with --out, or the options as they were."
            )
    return list(found.entries.values())
