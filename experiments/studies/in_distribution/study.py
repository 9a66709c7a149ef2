"""Every method on the six tasks of the paper's main table: accuracy, ECE, NLL and Brier score.

    python -m experiments search            # once: learning rate and regularisation, on validation rows
    python -m experiments in_distribution

Runs trained on the large four-way task are tested under the shifts, too, which is all that
`experiments.studies.out_of_distribution.study` needs.
"""

from experiments.engine.differences import Comparisons
from experiments.page.parts import main_table
from experiments.page.spec import arm_study

STUDY = arm_study(
    "in_distribution",
    __doc__,
    "Main table: methods by tasks",
    "Every method with the settings that validation rows chose for it (the same number of trials "
    "each, `experiments/engine/search.py`), on test rows.",
    main_table,
    tasks=("micro-wgs", "micro-arcc", "micro-arce", "micro-wgm", "micro-obqa", "micro-boolq"),
    shifted={"micro-obqa": ("micro-near", "micro-far")},
    comparisons=Comparisons(),
    order=10,
)
