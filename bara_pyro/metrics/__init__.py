"""Score predictive distributions (accuracy, calibration, uncertainty, sparsity) and sampled replies.

The package also makes decisions from predictions: prediction sets, abstention and out-of-distribution
detection with statistical guarantees, and the choice of rows to label next.

Units: rates are in percent (accuracy, calibration errors, risk, AUROC, sparsity, win rates, pass@k,
Self-BLEU, distinct-n). Likelihoods, divergences and entropies are in nats. The Brier score and cosine
distances lie in 0..2.
"""

from bara_pyro.metrics.abstention import Abstention, abstention, aurc, risk_coverage
from bara_pyro.metrics.acquisition import AcquiredBatch, batch_bald, choose, joint_information
from bara_pyro.metrics.best_of_n import (
    best_of_n,
    best_of_n_per_prompt,
    best_of_n_win_rate,
    win_rate_per_prompt,
)
from bara_pyro.metrics.bootstrap import paired_bootstrap
from bara_pyro.metrics.conformal import (
    Detector,
    PredictionSets,
    coverage,
    detector,
    expected_coverage,
    prediction_sets,
)
from bara_pyro.metrics.diversity import (
    SelfBleuDiversity,
    distinct_n,
    mean_cosine_distance,
    self_bleu_diversity,
)
from bara_pyro.metrics.intervals import Interval, TaskDifference, crossed_interval, holm
from bara_pyro.metrics.over_prompts import SamplingCurve, prompt_weights
from bara_pyro.metrics.pass_at_k import pass_at_k, pass_at_k_per_problem
from bara_pyro.metrics.reliability import ReliabilityBins, reliability_bins
from bara_pyro.metrics.scores import accuracy, adaptive_ece, brier, ece, evaluate, nll
from bara_pyro.metrics.sparsity import sparsity, sparsity_by_module
from bara_pyro.metrics.truth import calibration_against_truth, kl_from_truth, regret, stack_truth
from bara_pyro.metrics.uncertainty import (
    NestedUncertainty,
    Uncertainty,
    decompose,
    decompose_nested,
    ood_auroc,
    posterior_predictive,
)

__all__ = [
    "Abstention",
    "AcquiredBatch",
    "Detector",
    "Interval",
    "NestedUncertainty",
    "PredictionSets",
    "ReliabilityBins",
    "SamplingCurve",
    "SelfBleuDiversity",
    "TaskDifference",
    "Uncertainty",
    "abstention",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "batch_bald",
    "best_of_n",
    "best_of_n_per_prompt",
    "best_of_n_win_rate",
    "brier",
    "calibration_against_truth",
    "choose",
    "coverage",
    "crossed_interval",
    "decompose",
    "decompose_nested",
    "detector",
    "distinct_n",
    "ece",
    "evaluate",
    "expected_coverage",
    "holm",
    "joint_information",
    "kl_from_truth",
    "mean_cosine_distance",
    "nll",
    "ood_auroc",
    "paired_bootstrap",
    "pass_at_k",
    "pass_at_k_per_problem",
    "posterior_predictive",
    "prediction_sets",
    "prompt_weights",
    "regret",
    "reliability_bins",
    "risk_coverage",
    "self_bleu_diversity",
    "sparsity",
    "sparsity_by_module",
    "stack_truth",
    "win_rate_per_prompt",
]
