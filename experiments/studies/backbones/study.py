"""The same methods on more than one backbone: does the order of the methods depend on it?

    bara microworld build --out runs/backbones/small --hidden-size 96 --layers 3 --seed 1
    python -m experiments backbones --backbones microworld runs/backbones/small

Any folder or hub name will do. Settings are those chosen on the first backbone: nothing is tuned again.
"""

from pathlib import Path

from experiments.engine.arguments import experiment_parser
from experiments.engine.run import run_study
from experiments.engine.search import chosen
from experiments.page.parts import by_variant
from experiments.page.spec import arm_study

METHODS = ("lora", "mc_dropout", "ensemble", "laplace", "blob", "scalabl", "bara", "bara-gate")


def main() -> None:
    """Run the experiment."""
    tasks = ("micro-wgs", "micro-arcc")
    parser = experiment_parser(__doc__, runs="runs/study", methods=list(METHODS), tasks=tasks)
    parser.add_argument(
        "--backbones",
        metavar="NAME",
        nargs="+",
        default=["microworld", "runs/backbones/small"],
        help="language models: hub names or local folders; default: %(default)s",
    )
    args = parser.parse_args()
    arms = {
        f"{method}, {Path(name).name}": {"method": method, **chosen(method), "backbone.name": name}
        for name in args.backbones
        for method in args.methods
    }
    run_study("backbones", arms, args)


STUDY = arm_study(
    "Backbones",
    "The same settings on other language models; nothing was tuned again.",
    main,
    by_variant,
    order=14,
)
