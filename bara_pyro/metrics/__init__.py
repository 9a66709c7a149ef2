"""Score predictive distributions: accuracy, calibration, uncertainty, sparsity.

The package also makes decisions from predictions: prediction sets, abstention and out-of-distribution
detection with statistical guarantees.

Units: rates are in percent (accuracy, calibration errors, risk, AUROC, sparsity). Likelihoods, divergences
and entropies are in nats. The Brier score lies in 0..2.
"""

from bara_pyro.metrics.abstention import Abstention, abstention, aurc, risk_coverage
from bara_pyro.metrics.bootstrap import paired_bootstrap
from bara_pyro.metrics.conformal import (
    Detector,
    PredictionSets,
    coverage,
    detector,
    expected_coverage,
    prediction_sets,
)
from bara_pyro.metrics.intervals import Interval, TaskDifference, crossed_interval, holm
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
    "Detector",
    "Interval",
    "NestedUncertainty",
    "PredictionSets",
    "ReliabilityBins",
    "TaskDifference",
    "Uncertainty",
    "abstention",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier",
    "calibration_against_truth",
    "coverage",
    "crossed_interval",
    "decompose",
    "decompose_nested",
    "detector",
    "ece",
    "evaluate",
    "expected_coverage",
    "holm",
    "kl_from_truth",
    "nll",
    "ood_auroc",
    "paired_bootstrap",
    "posterior_predictive",
    "prediction_sets",
    "regret",
    "reliability_bins",
    "risk_coverage",
    "sparsity",
    "sparsity_by_module",
    "stack_truth",
]
