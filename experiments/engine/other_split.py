"""Scores on the other split: is the best variant on validation rows the best on test rows, too?

    python -m experiments other_split --studies hierarchy prior_sensitivity guides_and_gates remedies

Nothing is trained: the runs of the studies are read from their folders and asked the validation rows of their
task, or the test rows where they were chosen on validation rows, under the same number of draws. Runs that
have been asked are not asked again.
"""

from pathlib import Path
from typing import Any

import torch

from bara_pyro.cli.terminal import progress, say
from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from experiments.engine.arguments import command_line, start
from experiments.engine.record import Record
from experiments.engine.results import OTHER_SPLIT, Results, load_other_split, load_study, results_option

STUDIES = ("hierarchy", "prior_sensitivity", "guides_and_gates", "remedies")
KEPT = ("acc", "ece", "nll", "n")


def scores(folder: Path, samples: int) -> dict[str, Any]:
    """Return a run's scores under `samples` draws on the split that it was not evaluated on, and its name.

    Raises:
        DataError: the task has no such rows.
        CheckpointError: the run cannot be read.
    """
    system = load_system(folder)
    name = "test" if system.config.task.evaluate_on == "validation" else "validation"
    split = system.split(name)
    found = evaluate(posterior_predictive(draw(system, split, samples)), torch.tensor(split.labels))
    return {"split": name, **{key: found[key] for key in KEPT}}


def runs_of(studies: list[str], results: Path) -> dict[str, Record]:
    """Return the finished runs of studies: hash -> record."""
    found = {}
    for name in studies:
        for record in load_study(name, results).finished:
            found[record["config_hash"]] = record
    return found


def main() -> None:
    """Ask what has not been asked, and write."""
    parser = command_line(__doc__)
    add = parser.add_argument
    add("--studies", metavar="NAME", nargs="+", default=list(STUDIES), help="default: %(default)s")
    add("--runs", metavar="DIR", type=Path, default=Path("runs/study"),
        help="folder of the runs; default: %(default)s")  # fmt: skip
    results_option(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(OTHER_SPLIT, args.out, {}, load_other_split(args.out))
    known = results.entries
    wanted = {h: r for h, r in runs_of(args.studies, args.out).items() if h not in known}
    lost = [h for h in wanted if not (args.runs / h).is_dir()]
    if lost:
        raise ConfigError(
            f"{len(lost)} runs are not in {args.runs}, {lost[0]} for example: repeat the studies there."
        )
    with progress("the other split", max(1, len(wanted))) as advance:
        for config_hash, record in wanted.items():
            try:
                known[config_hash] = scores(args.runs / config_hash, max(map(int, record["metrics"])))
            except BaraError as error:
                say(f"{config_hash}: {error}")
            results.write()
            advance(1)
    say(f"{len(known)} runs are in {results.path}: python -m experiments report --out {args.out}")


if __name__ == "__main__":
    start(main)
