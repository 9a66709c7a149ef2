"""Every method on the six tasks of the paper's main table: accuracy, ECE, NLL and Brier score.

    python -m experiments in_distribution

Each method has the settings that were chosen for it on validation rows of micro-wgs and micro-arce, with the
same number of trials (experiments/hyperparameters.json). It is scored on test rows.
"""

from experiments.engine.arguments import experiment_parser, preset
from experiments.engine.methods import chosen
from experiments.engine.run import run_study

TASKS = ("micro-wgs", "micro-arcc", "micro-arce", "micro-wgm", "micro-obqa", "micro-boolq")


def main() -> None:
    """Train and score every method, and show the tables."""
    args = experiment_parser(__doc__, tasks=TASKS).parse_args()
    arms = {method: {"method": method, **preset(chosen(method))} for method in args.methods}
    run_study("in_distribution", arms, args)
