"""Methods trained on the large four-way task and tested under a near and a far shift.

    python -m experiments out_of_distribution

Besides the scores: how well the predictive entropy, and the mutual information of answer and latents, tell
shifted rows from the task's own. Shares its runs with `experiments.studies.in_distribution.study`.
"""

from dataclasses import replace

from experiments.engine.arguments import experiment_parser
from experiments.engine.compare import Comparisons
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import shifts
from experiments.page.spec import arm_study

SHIFTED = ("micro-near", "micro-far")
COMPARISONS = Comparisons(tested_on=SHIFTED)


def main() -> None:
    """Run the experiment."""
    parser = experiment_parser(__doc__, runs="runs/study", tasks=("micro-obqa",))
    parser.add_argument("--shifted", metavar="NAME", nargs="+", default=list(SHIFTED),
        help="tasks to test on, with the same kind of answers; default: %(default)s")  # fmt: skip
    args = parser.parse_args()
    arms = {method: {"method": method, **chosen(method)} for method in args.methods}
    shifted = {task: args.shifted for task in args.tasks}
    comparisons = replace(COMPARISONS, tested_on=tuple(args.shifted))
    run_study("out_of_distribution", arms, args, shifted=shifted, comparisons=comparisons)


STUDY = arm_study(
    "Shifts",
    "Trained on one task, tested there and on shifted ones.",
    main,
    shifts,
    order=11,
    comparisons=COMPARISONS,
)
