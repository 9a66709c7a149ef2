"""What every study of arms does: arms on tasks with seeds, recorded, compared, written down."""

import platform
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bara_pyro.cli.terminal import progress, say
from bara_pyro.errors import ConfigError, TrainingError
from bara_pyro.runs.assignments import assigned
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System
from experiments.engine.arguments import run_settings, sweep_options
from experiments.engine.differences import Comparisons, write_comparisons
from experiments.engine.methods import tagged
from experiments.engine.record import Record, recorded
from experiments.engine.results import find_results, resumed, stored_records, write_study
from experiments.engine.rows import collect, whole_records
from experiments.engine.sweep import Job, finished_runs, found, plan, sweep


def about_runs(args: Namespace, *names: str, **more: Any) -> dict[str, Any]:
    """Return what results depend on: the model, the steps, what was --set, and named arguments."""
    model = Path(args.model or "microworld").name
    about = {"model": model, "steps": args.steps, "set": recorded(assigned(args.assignments))}
    return {**about, **{name: getattr(args, name) for name in names}, **more}


def read_off(
    name: str,
    jobs: Mapping[tuple[Any, ...], Job],
    fields: Sequence[str],
    look: Callable[[System, Namespace], dict[str, Any]],
    about: Mapping[str, Any],
    args: Namespace,
    *,
    by_hash: bool = False,
) -> None:
    """Do the runs that are missing, look at those that have not been looked at, write after each.

    Args:
        name: of the results.
        jobs: place -> run.
        fields: what the parts of a place are called in an entry.
        look: a fitted system and the arguments -> what is kept of it.
        about: what the results depend on.
        args: of `experiment_parser`.
        by_hash: entries are kept by the hash of their run, by their place otherwise.

    Raises:
        ConfigError: the file holds results of other settings.
        TrainingError: every run failed.
    """
    done, results = finished_runs(jobs, args), resumed(name, args.out, about)
    with progress("look at the runs", len(done)) as advance:
        for place, record in done.items():
            run = record["config_hash"]
            key = run if by_hash else " ".join(map(str, place))
            # A new default or a new search makes another run of a place.
            if results.entries.get(key, {}).get("hash") != run:
                found = look(load_system(args.runs / run), args)
                results.add(key, {**dict(zip(fields, place, strict=True)), "hash": run, **found})
            advance(1)
    say(
        f"{len(done)} of {len(jobs)} runs are in {results.path}: "
        f"python -m experiments report --out {args.out}"
    )


Arm = Mapping[str, Any] | Callable[[str], Mapping[str, Any]]
"""Its dotted settings, or those of a task."""
Arms = Mapping[str, Arm]
SEED = object()
"""Stands for the seed of the run where a setting of an arm is to change with it."""
Place = tuple[str, str, int]
"""Arm, task and seed of a run."""


def run_study(
    name: str,
    arms: Arms,
    args: Namespace,
    *,
    shifted: Mapping[str, Sequence[str]] = MappingProxyType({}),
    comparisons: Comparisons | None = None,
) -> None:
    """Run a study of arms and write its results to `args.out`; what is stored there and not asked for stays.

    An arm is its dotted settings, of every task or of each, among them `method`; a value `SEED` is the seed
    of the run, for others see `experiments.engine.arguments.run_settings`. Runs trained on a task are tested
    on those that it is `shifted` to, too. Arms are compared with LoRA, the best baseline and the declared
    reference where `comparisons` says how.

    Raises:
        ConfigError: what is stored has another number of steps or other settings, or one was typed that an
            arm sets.
        TrainingError: every run failed.
    """
    results = args.out
    stored = _stored(name, args, results)
    # By seeds: what is done of an interrupted experiment is a whole table of fewer seeds.
    places = [(arm, task, seed) for seed in range(args.seeds) for task in args.tasks for arm in arms]
    jobs = [
        Job(
            run_settings(args, {"task.name": task, "seed": seed, **_settings(arms[arm], task, seed)}),
            tuple(shifted.get(task, ())),
        )
        for arm, task, seed in places
    ]
    # What was committed is done, also where the folder of its runs is gone.
    known = whole_records(name, results)
    if args.finished:
        places, jobs = _finished(places, jobs, args, known)
    others = partial(stored_records, results)
    records = sweep(jobs, args.runs, **sweep_options(args), known=known, stored=others)
    runs = [
        {"hash": record["config_hash"], "arm": arm, "task": record["task"], "seed": seed}
        for (arm, _, seed), record in zip(places, records, strict=True)
    ]
    done = [run for run, record in zip(runs, records, strict=True) if "failed" not in record]
    if not done:
        raise TrainingError(f"Every run of {name} failed: see the list of failures above.")
    asked = {(run["arm"], run["task"], run["seed"]) for run in runs}
    kept = [run for run in stored if (run["arm"], run["task"], run["seed"]) not in asked]
    # Also the failed ones: a table says how many there are.
    path = write_study(name, [*kept, *runs], records, _about(args, [*kept, *runs]), folder=results)
    collect(name, args.runs, results=results)
    arms_done = {run["arm"] for run in done}
    if comparisons and arms_done.intersection((*tagged("reference"), comparisons.primary.reference)):
        write_comparisons(name, comparisons, results)
    say(f"{len(done)} of {len(places)} runs are in {path}: python -m experiments report --out {results}")


def _settings(arm: Arm, task: str, seed: int) -> dict[str, Any]:
    own = arm(task) if callable(arm) else arm
    return {key: seed if value is SEED else value for key, value in own.items()}


def _finished(
    places: Sequence[Place], jobs: Sequence[Job], args: Namespace, known: Mapping[str, Record]
) -> tuple[list[Place], list[Job]]:
    """Return what is done of a study, shifted tasks included."""
    hashes, runs = plan(jobs, args.runs, args.retry_failed, args.reuse)
    there = found(runs, known)
    done = [runs[key].done(there[key]) for key in hashes]
    if not any(done):
        raise TrainingError(f"No run of this study is finished in {args.runs}: leave out --finished.")
    return list(compress(places, done)), list(compress(jobs, done))


def _stored(name: str, args: Namespace, results: Path) -> list[dict[str, Any]]:
    """Return the runs that are stored of a study; a `ConfigError` where they have other steps than asked."""
    found = find_results(name, results)
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
