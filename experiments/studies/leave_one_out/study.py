"""Methods ranked by PSIS-LOO on training rows, beside what unseen rows say of the same runs.

    python -m experiments leave_one_out

PSIS-LOO needs no held-out rows: does it tell which method predicts best? It re-weights draws, so it needs a
method with some spread, and it cannot take a row back out of weights that are points
(`bara_pyro.diagnostics.arviz.loo`). Uses the runs of the main table where they are there; a comparison that
is in the results is not made again.
"""

from argparse import Namespace
from typing import Any

from bara_pyro.cli.terminal import progress, say
from bara_pyro.diagnostics.arviz.compat import groups_of
from bara_pyro.diagnostics.arviz.inference_data import to_inference_data
from bara_pyro.diagnostics.arviz.loo import compare
from bara_pyro.errors import TrainingError
from bara_pyro.runs.folder import load_system
from experiments.engine.arguments import experiment_parser, positive
from experiments.engine.methods import tagged
from experiments.engine.read_off import about_runs
from experiments.engine.record import Record
from experiments.engine.results import resumed
from experiments.engine.search import chosen_job
from experiments.engine.sweep import finished_runs
from experiments.page.spec import entry_study
from experiments.studies.leave_one_out.section import QUESTION, parts


def ranked(records: dict[str, Record], args: Namespace) -> list[dict[str, Any]]:
    """Return the rows of the comparison of one task and seed, best first.

    They are those of `bara_pyro.diagnostics.arviz.loo.compare`, its nats as means over the training rows
    looked at, and `unseen`: the mean log probability of the test rows under S = 10 (nats).
    """
    data = {
        method: to_inference_data(
            load_system(args.runs / record["config_hash"]),
            split="train",
            rows=args.rows,
            samples=args.samples,
            prior=False,
        )
        for method, record in records.items()
    }
    n = groups_of(next(iter(data.values())))["log_likelihood"].sizes["obs"]
    means = ("elpd", "se", "difference", "difference_se")
    return [
        vars(row)
        | {key: getattr(row, key) / n for key in means}
        | {"rows": n, "unseen": -records[row.method]["metrics"]["10"]["nll"]}
        for row in compare(data)
    ]


def main() -> None:
    """Train what is missing, rank what has not been ranked, write after each task and seed."""
    tasks = ("micro-wgs", "micro-arcc")
    parser = experiment_parser(__doc__, runs="runs/study", methods=tagged("spread"), tasks=tasks)
    add = parser.add_argument
    add("--rows", type=positive, default=128, help="training rows to leave out; default: %(default)s")
    add("--samples", type=positive, default=100, help="posterior draws; default: %(default)s")
    args = parser.parse_args()
    jobs = {
        (task, seed, method): chosen_job(args, method, task, seed)
        for task in args.tasks
        for seed in range(args.seeds)
        for method in args.methods
    }
    records = finished_runs(jobs, args)
    results = resumed("leave_one_out", args.out, about_runs(args, "rows", "samples", "methods"))
    places = list(dict.fromkeys((task, seed) for task, seed, _ in jobs))
    with progress("leave one out", len(places)) as advance:
        for task, seed in places:
            own = {m: r for (t, s, m), r in records.items() if (t, s) == (task, seed)}
            if len(own) < 2:
                raise TrainingError(
                    f"Fewer than two runs on {task} with seed {seed}: see the failures above."
                )
            if f"{task} {seed}" not in results.entries:
                results.add(f"{task} {seed}", {"task": task, "seed": seed, "rows": ranked(own, args)})
            advance(1)
    say(f"{len(places)} comparisons are in {results.path}: python -m experiments report --out {args.out}")


STUDY = entry_study("Leave one out", QUESTION, main, parts, order=25)
