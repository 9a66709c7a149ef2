"""Long training at one rate for all: what each method does when nobody chose its settings on validation rows.

    python -m experiments untuned

The published protocol trains every method for a fixed number of steps at one learning rate, some thirty
passes over the smallest data set. Default settings, three times the steps of the other experiments.
"""

from experiments.engine.arguments import preset
from experiments.page.parts import main_table
from experiments.page.spec import arm_study

METHODS = ("lora", "mc_dropout", "ensemble", "laplace", "blob", "scalabl", "temperature", "bara", "bara-gate")
STUDY = arm_study(
    "untuned",
    __doc__,
    "Does BaRA stay calibrated after long training without tuning?",
    "Every method with its default settings and one learning rate. BaRA's defaults had been found on "
    "validation rows of the microworld at this rate and length. Laplace ran with its former default (the "
    "evidence).",
    main_table,
    lambda args: {method: {"method": method, **preset({"train.lr": 1e-3})} for method in args.methods},
    methods=METHODS,
    steps=3000,
)
