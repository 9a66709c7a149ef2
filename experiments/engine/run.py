"""The loop of a study: arms on tasks with seeds."""

import platform
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from types import MappingProxyType
from typing import Any

from bara_pyro.cli.terminal import say
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.runs.assignments import assigned
from experiments.engine.arguments import run_settings, sweep_options
from experiments.engine.differences import Comparisons, write_comparisons
from experiments.engine.record import recorded
from experiments.engine.results import find_results, stored_records, write_study
from experiments.engine.rows import collect, whole_records
from experiments.engine.sweep import Job, only_finished, sweep

Arms = Mapping[str, Mapping[str, Any]]
"""Name -> dotted settings."""
SEED = object()
"""Stands for the seed of the run where a setting of an arm is to change with it."""


def run_study(
    name: str,
    arms: Arms,
    args: Namespace,
    *,
    shifted: Mapping[str, Sequence[str]] = MappingProxyType({}),
    comparisons: Comparisons | None = None,
) -> None:
    """Run a study of arms and write its results to `args.out`; other stored results stay.

    An arm is its dotted settings, among them `method`; a value `SEED` is the seed of the run, for others see
    `experiments.engine.arguments.run_settings`. Runs trained on a task are also tested on those that it is
    `shifted` to. Arms are compared where `comparisons` says how.

    Raises:
        ConfigError: what is stored has another number of steps or other settings, or one was typed that an
            arm sets.
        TrainingError: every run failed.
    """
    results = args.out
    stored = _stored_runs(name, args)
    # By seeds: what is done of an interrupted experiment is a whole table of fewer seeds.
    places = [(arm, task, seed) for seed in range(args.seeds) for task in args.tasks for arm in arms]
    jobs = [
        Job(
            run_settings(args, {"task.name": task, "seed": seed, **_settings(arms[arm], seed)}),
            tuple(shifted.get(task, ())),
        )
        for arm, task, seed in places
    ]
    # What was committed is done, also where the folder of its runs is gone.
    known = whole_records(name, results)
    if args.finished:
        done = only_finished(jobs, args, known)
        places, jobs = list(compress(places, done)), list(compress(jobs, done))
    records = sweep(
        jobs, args.runs, **sweep_options(args), known=known, stored=partial(stored_records, results)
    )
    runs = [
        {"hash": record["config_hash"], "arm": arm, "task": record["task"], "seed": seed}
        for (arm, _, seed), record in zip(places, records, strict=True)
    ]
    arms_done = [place[0] for place, record in zip(places, records, strict=True) if "failed" not in record]
    if not arms_done:
        raise TrainingError(f"Every run of {name} failed: see the list of failures above.")
    asked = {(run["arm"], run["task"], run["seed"]) for run in runs}
    runs = [*(run for run in stored if (run["arm"], run["task"], run["seed"]) not in asked), *runs]
    # Also the failed ones: a table says how many there are.
    path = write_study(name, runs, records, _about(args, runs), folder=results)
    collect(name, args.runs, results=results)
    if comparisons and {*arms_done} & {*comparisons.references, comparisons.primary.reference}:
        write_comparisons(name, comparisons, results)
    say(f"{len(arms_done)} of {len(places)} runs are in {path}: python -m experiments report --out {results}")


def _settings(arm: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {key: seed if value is SEED else value for key, value in arm.items()}


def _stored_runs(name: str, args: Namespace) -> list[dict[str, Any]]:
    """Return the runs that are stored of a study; a `ConfigError` where they have other steps than asked."""
    found = find_results(name, args.out)
    if found is None:
        return []
    if found.about.get("steps") != args.steps:
        raise ConfigError(
            f"{found.path} has runs of {found.about.get('steps') or 'default'} steps, asked for are "
            f"{args.steps or 'default'}: give another folder with --out, or --steps as it was."
        )
    before, now = found.about.get("set"), recorded(assigned(args.assignments))
    if before is not None and before != now:
        raise ConfigError(
            f"{found.path} has runs with --set {before or 'left out'}, not {now or 'left out'}: give another "
            "folder with --out, or the settings as they were."
        )
    return list(found.entries.values())


def _about(args: Namespace, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "steps": args.steps,
        "set": recorded(assigned(args.assignments)),
        "seeds": 1 + max(run["seed"] for run in runs),
        "tasks": list(dict.fromkeys(run["task"] for run in runs)),
        "machine": platform.machine(),
        "device": args.device or "cpu",
    }
