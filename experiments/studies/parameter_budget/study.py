"""Baselines of twice the rank against BaRA of rank 8: is it the parameters, or the gates?

python -m experiments parameter_budget
"""

from experiments.engine.arguments import experiment_parser
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import variants
from experiments.page.spec import arm_study

BASELINES = ("lora", "mc_dropout", "blob", "scalabl")
OURS = ("bara", "bara-gate")


def main() -> None:
    """Run the experiment."""
    methods = [*BASELINES, *OURS]
    tasks = ("micro-wgs", "micro-arcc", "micro-arce")
    parser = experiment_parser(__doc__, runs="runs/study", methods=methods, tasks=tasks)
    parser.add_argument("--rank", type=int, default=16, help="of the baselines; default: %(default)s")
    args = parser.parse_args()
    arms = {}
    for method in args.methods:
        settings = {"method": method, **chosen(method)}
        arms[f"{method}, r = 8"] = {**settings, "adapter.r": 8}
        if method not in OURS:
            # The scaling alpha / r stays at 2, as in the published budget table.
            larger = {"adapter.r": args.rank, "adapter.lora_alpha": 2.0 * args.rank}
            arms[f"{method}, r = {args.rank}"] = {**settings, **larger}
    run_study("parameter_budget", arms, args)


STUDY = arm_study(
    "Parameter budget",
    "Baselines of twice the rank against BaRA of rank 8.",
    main,
    variants,
    order=13,
)
