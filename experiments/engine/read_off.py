"""Studies that read something off finished runs: each is trained once, looked at once, and kept."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import progress, say
from bara_pyro.runs.assignments import assigned
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System
from experiments.engine.job import Job
from experiments.engine.record import recorded
from experiments.engine.results import resumed
from experiments.engine.sweep import finished_runs


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
