"""The same methods on more than one backbone: does the order of the methods depend on it?

    bara microworld build --out runs/backbones/small --hidden-size 96 --layers 3 --seed 1
    python -m experiments backbones --backbones microworld runs/backbones/small

Any folder or hub name will do. Settings are those chosen on the first backbone: nothing is tuned again.
"""

from pathlib import Path

from experiments.engine.arguments import option
from experiments.engine.methods import tagged
from experiments.engine.search import crossed
from experiments.page.parts import by_variant
from experiments.page.spec import arm_study

STUDY = arm_study(
    "backbones",
    __doc__,
    "Does the ranking of methods depend on the language model?",
    "The settings chosen on the first language model, on both; nothing was tuned again.",
    by_variant,
    lambda args: crossed(args.methods, {Path(name).name: {"backbone.name": name} for name in args.backbones}),
    methods=tagged("main"),
    options={
        "--backbones": option(
            ("microworld", "runs/backbones/small"),
            "language models: hub names or local folders",
            metavar="NAME",
        )
    },
)
