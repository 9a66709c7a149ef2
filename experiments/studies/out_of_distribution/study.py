"""Methods trained on the large four-way task and tested under a near and a far shift.

    python -m experiments out_of_distribution

Besides the scores: how well the predictive entropy, and the mutual information of answer and latents, tell
shifted rows from the task's own. Shares its runs with `experiments.studies.in_distribution.study`.
"""

from experiments.engine.arguments import option
from experiments.engine.differences import Comparisons
from experiments.page.parts import shifts
from experiments.page.spec import arm_study

SHIFTED = ("micro-near", "micro-far")
STUDY = arm_study(
    "out_of_distribution",
    __doc__,
    "Is BaRA better than LoRA on shifted data?",
    "Every method trained on one task with its chosen settings, and tested there and on shifted tasks.",
    shifts,
    tasks=("micro-obqa",),
    options={"--shifted": option(SHIFTED, "tasks to test on, with the same kind of answers", metavar="NAME")},
    comparisons=Comparisons(tested_on=SHIFTED),
)
