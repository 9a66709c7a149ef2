"""How much of the rank can go? LoRA and both forms of BaRA, units dropped by what they add to their layer.

    python -m experiments pruning
    python -m experiments pruning --model FOLDER --tasks arc_challenge --data-dir FOLDER --seeds 1

Uses the runs of the main table where they are there. Importance is measured on training rows, scores on test
rows, along a curve of kept rank (`bara prune` does the same for one run), and the number of units that are
left where no probability of the posterior mean may change by more than a tolerance. A run that has been
pruned is not pruned again.
"""

from argparse import Namespace
from typing import Any

from bara_pyro.data import first_rows
from bara_pyro.diagnostics.gates.prune import prune
from bara_pyro.diagnostics.gates.prune_curve import prune_curve
from bara_pyro.runs.system import System
from experiments.engine.arguments import experiment_parser, positive
from experiments.engine.methods import tagged
from experiments.engine.read_off import about_runs, read_off
from experiments.engine.search import chosen_job
from experiments.page.spec import entry_study
from experiments.studies.pruning.section import QUESTION, parts

TASKS = ("micro-wgs", "micro-arcc")
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


def main() -> None:
    """Train what is missing, prune what has not been, write after each."""
    parser = experiment_parser(__doc__, runs="runs/study", methods=tagged("reference", "ours"), tasks=TASKS)
    add = parser.add_argument
    add("--rows", type=positive, default=400, help="test rows to score; default: %(default)s")
    add("--calibration", type=positive, default=256,
        help="training rows for importance; default: %(default)s")  # fmt: skip
    args = parser.parse_args()
    jobs = {
        (method, task, seed): chosen_job(args, method, task, seed)
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
    }
    about = about_runs(args, "rows", "calibration", samples=SAMPLES)
    read_off("pruning", jobs, ("method", "task", "seed"), look, about, args, by_hash=True)


STUDY = entry_study("Pruning", QUESTION, main, parts, order=21)
