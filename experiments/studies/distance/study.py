"""Distance awareness: what it does at home, under a near, a far and a hidden shift, for each method alike.

    python -m experiments distance

Default settings at one rate and three times the steps of the other experiments, as when nobody tunes. Each
method as ever and with `adapter.distance_aware`, whose noise is fitted to training rows without their labels.
The hidden shift asks in the same words as the training rows, of customs that have changed since: it is there
to show what no look at a question can tell.
"""

from argparse import Namespace

from experiments.engine.differences import Comparisons, Contrast
from experiments.engine.run import Arms
from experiments.page.parts import shifts
from experiments.page.spec import arm_study

TASK, SHIFTED = "micro-obqa", ("micro-near", "micro-far", "micro-changed")
METHODS = ("lora", "temperature", "ensemble", "blob", "bara-gate")
AWARE = ", distance-aware"


def arms(args: Namespace) -> Arms:
    """Return each method as ever and distance-aware."""
    found = {}
    for method in args.methods:
        found[method] = {"method": method}
        found[method + AWARE] = {"method": method, "adapter.distance_aware": True}
    return found


STUDY = arm_study(
    "distance",
    __doc__,
    "Does distance awareness detect out-of-distribution rows?",
    "Every method with its default settings at one rate, without the option and with it: noise that grows "
    "with a row's distance from the training rows. Trained on one task and tested there, on rows that look "
    "different (near, far) and on rows that only look the same (changed).",
    shifts,
    arms,
    methods=METHODS,
    tasks=(TASK,),
    steps=3000,
    shifted={TASK: SHIFTED},
    comparisons=Comparisons(Contrast("bara-gate" + AWARE, "lora", "nll"), tested_on=SHIFTED),
)
