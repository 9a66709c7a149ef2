"""Accuracy and calibration of a run, on all rows of its evaluation and on the inspected rows."""

import math
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.metrics import ece, evaluate, posterior_predictive, reliability_bins
from bara_pyro.metrics.base import METRICS, Metric
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.evaluation_files import is_evaluated, log_probs_and_labels, read_predictions

KEYS = ("acc", "ece", "nll", "brier")  # metrics with a field in `DistributionScores`
REPLICATES = 200
HIGH = 0.95


class Bins(Result):
    """Rows grouped by confidence; the fields are those of `bara_pyro.metrics.ReliabilityBins`."""

    edges: list[float]
    counts: list[int]
    accuracy: list[Number]
    confidence: list[Number]


class DistributionScores(Result):
    """Scores of one predictive distribution, rates in percent."""

    rows: int  # number n of rows
    draws: int  # number S of averaged draws; 0 is the posterior mean
    acc: float
    ece: float
    nll: Number  # nats
    brier: float  # 0..2
    confidence: float  # mean probability of the most likely answer
    confidence_error: float  # standard error of the accuracy if these probabilities are right, percent
    majority: float  # accuracy of always giving the most frequent answer, percent
    # Mean ECE of a perfectly calibrated model with the same probabilities on n rows: the bias of the ECE.
    chance_ece: float
    chance_ece_high: float  # 95 % quantile of the ECE of such a model on n rows
    bins: Bins  # bins of the reliability diagram
    added: dict[str, Number] = Field(default_factory=dict)  # other registered metrics with a heading

    @property
    def standard_error(self) -> float:
        """The standard error of the accuracy in percent."""
        return 100 * math.sqrt(self.acc / 100 * (1 - self.acc / 100) / self.rows)

    @property
    def told(self) -> float:
        """The smallest significant difference of confidence and accuracy, in points.

        This is two standard errors of the accuracy under the model's probabilities. The standard error of the
        observed accuracy would be 0 if all answers are right.
        """
        return 2 * self.confidence_error

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy, in points: positive for an overconfident model."""
        return self.confidence - self.acc

    @property
    def gap_interval(self) -> tuple[float, float]:
        """A 95 % interval of the gap, from the standard error under the model's probabilities."""
        return self.gap - self.told, self.gap + self.told

    @property
    def sureness(self) -> int:
        """1 for an overconfident model, -1 for an underconfident one, 0 without a significant gap."""
        low, high = self.gap_interval
        return 1 if low > 0 else -1 if high < 0 else 0

    @property
    def uneven(self) -> bool:
        """Whether the ECE is higher than chance explains (at 5 %)."""
        return self.ece > self.chance_ece_high


class PredictiveScores(Result):
    """Scores of a run, in increasing order of S."""

    # Scores of the stored evaluation on all rows of the split; empty if there is none with these settings.
    evaluated: list[DistributionScores]
    looked_at: list[DistributionScores]  # scores of the inspected rows; empty without draws

    @property
    def main(self) -> list[DistributionScores]:
        """The scores on all rows if there are any, otherwise those of this inspection."""
        return self.evaluated or self.looked_at


def predictive_scores(c: Context) -> PredictiveScores:
    """Return the scores of the stored evaluation and of the inspected rows (posterior mean and draws)."""
    samples = len(c.log_probs)
    shown = {0: draw(c.system, c.rows, 0)[0]} if samples else {}
    if samples > 1:  # a single draw is the point estimate
        shown[samples] = posterior_predictive(c.log_probs)
    return PredictiveScores(
        evaluated=stored_scores(c.folder, c.system.config.hash),
        looked_at=[scores_of(log_probs, c.labels, s) for s, log_probs in shown.items()],
    )


def stored_scores(folder: Path, config_hash: str) -> list[DistributionScores]:
    """Return the scores of a run's stored predictions; empty if there are none with these settings."""
    if not is_evaluated(folder, config_hash):
        return []
    records = read_predictions(folder)
    draws = sorted(records[0]["probs"], key=int)
    return [scores_of(*log_probs_and_labels(records, samples), int(samples)) for samples in draws]


def scores_of(log_probs: Tensor, labels: Tensor, draws: int) -> DistributionScores:
    """Return the scores of log-probabilities (`n x C`) that were averaged over `draws` draws."""
    scores = evaluate(log_probs, labels)
    by_chance = chance_eces(log_probs)
    bins, sure = reliability_bins(log_probs, labels), log_probs.exp().amax(-1)
    return DistributionScores(
        rows=len(labels),
        draws=draws,
        **{key: scores[key] for key in KEYS},
        confidence=100 * float(sure.mean()),
        confidence_error=100 * float((sure * (1 - sure)).clamp_min(0).sum().sqrt()) / len(sure),
        majority=100 * float(labels.bincount().max()) / len(labels),
        chance_ece=float(by_chance.mean()),
        chance_ece_high=float(by_chance.quantile(HIGH)),
        bins=Bins(**{key: value.tolist() for key, value in vars(bins).items()}),
        added={metric.name: scores[metric.name] for metric in shown_metrics() if metric.name not in KEYS},
    )


def shown_metrics() -> list[Metric]:
    """Return the metrics with a heading that need no true probabilities."""
    return [metric for metric in METRICS.values() if metric.heading and not metric.of_truth]


def chance_eces(log_probs: Tensor) -> Tensor:
    """Return ECEs (percent, float64) of these predictions for several sets of labels drawn from them."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_probs.exp(), REPLICATES, replacement=True, generator=generator)
    return torch.tensor([ece(log_probs, labels) for labels in drawn.T], dtype=torch.float64)
