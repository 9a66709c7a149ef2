"""Every method on the six tasks of the paper's main table: accuracy, ECE, NLL and Brier score.

python -m experiments in_distribution
"""

from experiments.page.parts import main_table
from experiments.page.spec import arm_study

STUDY = arm_study(
    "in_distribution",
    __doc__,
    "Is BaRA better than other methods when all are tuned?",
    "Every method with the settings chosen for it on validation rows of micro-wgs and micro-arce, with the "
    "same number of trials (`experiments/hyperparameters.json`), scored on test rows.",
    main_table,
    tasks=("micro-wgs", "micro-arcc", "micro-arce", "micro-wgm", "micro-obqa", "micro-boolq"),
)
