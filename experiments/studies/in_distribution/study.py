"""Every method on the six tasks of the paper's main table: accuracy, ECE, NLL and Brier score.

    python -m experiments search            # once: learning rate and regularisation, on validation rows
    python -m experiments in_distribution

Runs trained on the large four-way task are tested under the shifts, too, which is all that
`experiments.studies.out_of_distribution.study` needs.
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.compare import Comparisons
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import main_table
from experiments.page.spec import arm_study

TASKS = ("micro-wgs", "micro-arcc", "micro-arce", "micro-wgm", "micro-obqa", "micro-boolq")
COMPARISONS = Comparisons()
SHIFTED = {"micro-obqa": ("micro-near", "micro-far")}


def main() -> None:
    """Run the experiment."""
    parser = experiment_parser(__doc__, runs="runs/study", tasks=TASKS)
    args = parser.parse_args()
    arms = {method: {"method": method, **chosen(method)} for method in args.methods}
    run_study("in_distribution", arms, args, shifted=SHIFTED, comparisons=COMPARISONS)


STUDY = arm_study(
    "Main table: methods by tasks",
    "Every method with the settings that validation rows chose for it (the same number of trials "
    "each, `experiments/engine/search.py`), on test rows.",
    main,
    main_table,
    order=10,
    comparisons=COMPARISONS,
)
