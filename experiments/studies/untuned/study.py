"""Long training at one rate for all: what each method does when nobody chose its settings on validation rows.

    python -m experiments untuned

The published protocol trains every method for a fixed number of steps at one learning rate, some thirty
passes over the smallest data set. Default settings, three times the steps of the other experiments.
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.compare import Comparisons
from experiments.engine.run import run_study
from experiments.engine.spaces import tagged
from experiments.page.parts import main_table
from experiments.page.spec import arm_study

COMPARISONS = Comparisons()


def main() -> None:
    """Run the experiment."""
    tasks, methods = ("micro-wgs", "micro-arcc"), tagged("main", "recalibrated")
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=tasks, steps=3000)
    parser.add_argument("--lr", type=float, default=1e-3, help="of all methods; default: %(default)s")
    args = parser.parse_args()
    arms = {method: {"method": method, "train.lr": args.lr} for method in args.methods}
    run_study("untuned", arms, args, comparisons=COMPARISONS)


STUDY = arm_study(
    "Long training at one rate",
    "Every method with default settings and the same learning rate: no validation rows were looked at.",
    main,
    main_table,
    order=12,
    comparisons=COMPARISONS,
)
