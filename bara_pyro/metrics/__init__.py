"""Scores of predictive distributions: accuracy, calibration, likelihood, uncertainty, sparsity.

Rates (accuracy, calibration errors, risk, AUROC, sparsity) are in percent, likelihoods, divergences and
entropies in nats, the Brier score in 0..2.
"""

from bara_pyro.metrics.bootstrap import paired_bootstrap
from bara_pyro.metrics.intervals import Drawn, Interval, crossed_interval, holm
from bara_pyro.metrics.reliability import ReliabilityBins, reliability_bins
from bara_pyro.metrics.scores import accuracy, adaptive_ece, brier, ece, evaluate, nll
from bara_pyro.metrics.selective import aurc, error_auroc, risk_coverage
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
    "Drawn",
    "Interval",
    "NestedUncertainty",
    "ReliabilityBins",
    "Uncertainty",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "brier",
    "calibration_against_truth",
    "crossed_interval",
    "decompose",
    "decompose_nested",
    "ece",
    "error_auroc",
    "evaluate",
    "holm",
    "kl_from_truth",
    "nll",
    "ood_auroc",
    "paired_bootstrap",
    "posterior_predictive",
    "regret",
    "reliability_bins",
    "risk_coverage",
    "sparsity",
    "sparsity_by_module",
    "stack_truth",
]
