"""How much of the rank can go? LoRA and both forms of BaRA, units dropped by what they add to their layer.

    python -m experiments pruning
    python -m experiments pruning --model FOLDER --tasks arc_challenge --data-dir FOLDER --seeds 1

Uses the runs of the main table where they are there. Importance is measured on training rows, scores on test
rows, along a curve of kept rank (`bara prune` does the same for one run), and the number of units that are
left where no probability of the posterior mean may change by more than a tolerance. A run that has been
pruned is not pruned again.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

from bara_pyro.cli.terminal import progress, say
from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.diagnostics.gates.prune_curve import prune_curve
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import System
from experiments.engine.arguments import experiment_parser, positive, shared_settings
from experiments.engine.results import results_option, resumed
from experiments.engine.search import chosen
from experiments.engine.sweep import Job, finished_runs
from experiments.page.spec import entry_study
from experiments.studies.pruning.section import QUESTION, parts

TOLERANCES = (0.01, 0.05, 0.2)
SAMPLES = 10


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return what pruning does to a fitted system.

    Returns:
        `units`: how many there are; `kept`: tolerance -> how many are left; `curve`: the rows of
        `bara_pyro.diagnostics.gates.prune_curve.prune_curve`.
    """
    calibration = first_rows(system.split("train"), args.calibration)
    test = first_rows(system.split("test"), args.rows)
    pruned = {tolerance: prune(system, calibration, tolerance) for tolerance in TOLERANCES}
    return {
        "units": pruned[TOLERANCES[0]].units,
        "kept": {str(tolerance): found.kept for tolerance, found in pruned.items()},
        "curve": prune_curve(system, calibration, test, samples=SAMPLES),
    }


def jobs_of(args: Namespace) -> dict[tuple[str, str, int], Job]:
    """Return the runs: method, task and seed -> job."""
    return {
        (method, task, seed): Job(
            {**shared_settings(args), "method": method, **chosen(method), "task.name": task, "seed": seed}
        )
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
    }


def main() -> None:
    """Train what is missing, prune what has not been, write after each."""
    methods, tasks = ["lora", "bara", "bara-gate"], ("micro-wgs", "micro-arcc")
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=tasks)
    add = parser.add_argument
    add("--rows", type=positive, default=400, help="test rows to score; default: %(default)s")
    add(
        "--calibration", type=positive, default=256, help="training rows for importance; default: %(default)s"
    )
    results_option(parser, "pruning")
    args = parser.parse_args()
    jobs = jobs_of(args)
    done = finished_runs(jobs, args)
    about = {
        "model": Path(args.model or "microworld").name,
        "steps": args.steps,
        "rows": args.rows,
        "calibration": args.calibration,
        "samples": SAMPLES,
    }
    results = resumed(args.results, about)
    with progress("prune", len(done)) as advance:
        for (method, task, seed), record in done.items():
            if record["config_hash"] not in results.entries:
                system = load_system(Path(args.runs) / record["config_hash"])
                found = {"method": method, "task": task, "seed": seed, **look(system, args)}
                results.add(record["config_hash"], found)
            advance(1)
    say(f"{len(done)} of {len(jobs)} runs are in {args.results}: python -m experiments report")


STUDY = entry_study(
    "Pruning",
    QUESTION,
    main,
    parts,
    order=21,
)
