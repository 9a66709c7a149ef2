"""Methods trained on the large four-way task and tested under a near and a far shift.

    python -m experiments out_of_distribution

Besides the scores: how well the predictive entropy, and the mutual information of answer and latents, tell
shifted rows from the task's own. Shares its runs with `experiments.studies.in_distribution.study`.
"""

from experiments.engine.arguments import experiment_parser, start
from experiments.engine.conduct import conduct
from experiments.engine.search import chosen


def main() -> None:
    """Run the experiment."""
    parser = experiment_parser(__doc__, runs="runs/study", tasks=("micro-obqa",))
    parser.add_argument("--shifted", metavar="NAME", nargs="+", default=["micro-near", "micro-far"],
        help="tasks to test on, with the same kind of answers; default: %(default)s")  # fmt: skip
    args = parser.parse_args()
    arms = {method: {"method": method, **chosen(method)} for method in args.methods}
    shifted = {task: args.shifted for task in args.tasks}
    conduct("out_of_distribution", arms, args, shifted=shifted, comparisons=True, compared_on=args.shifted)


if __name__ == "__main__":
    start(main)
