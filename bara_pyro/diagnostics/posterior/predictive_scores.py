"""How far the probabilities of a run are right, on all rows of its evaluation and on those looked at."""

import math
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.result import Number, Result
from bara_pyro.metrics import ece, evaluate, posterior_predictive, reliability_bins
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.evaluation_files import read_predictions, read_scores
from bara_pyro.runs.manifest import METRICS

REPLICATES = 200
HIGH = 0.95


class Bins(Result):
    """Rows grouped by confidence: see `bara_pyro.metrics.ReliabilityBins`, whose fields these are."""

    edges: list[float]
    counts: list[int]
    accuracy: list[Number]
    confidence: list[Number]


class DistributionScores(Result):
    """Scores of one predictive distribution, rates in percent."""

    rows: int  # n
    draws: int  # S that were averaged over; 0 is the posterior mean
    acc: float
    ece: float
    nll: Number  # nats
    brier: float  # 0..2
    confidence: float  # mean probability of the most likely answer
    # Standard error of the accuracy where these probabilities are right, percent; of older files not known.
    confidence_error: float | None = None
    # Accuracy of always giving the most frequent answer, percent; of older files not known.
    majority: float | None = None
    # The ECE that a perfectly calibrated model with the same probabilities would show on n rows, on average:
    # what is left of the ECE when n grows is calibration.
    chance_ece: float
    # What such a model's ECE exceeds on one set of n rows in 20; of older files not known.
    chance_ece_high: float | None = None
    bins: Bins  # of the reliability diagram

    @property
    def standard_error(self) -> float:
        """Of the accuracy, percent."""
        return 100 * math.sqrt(self.acc / 100 * (1 - self.acc / 100) / self.rows)

    @property
    def told(self) -> float:
        """The least difference of confidence and accuracy, in points, that is told from chance.

        Two standard errors that the accuracy has where the probabilities are right: where all answers are,
        its own are 0.
        """
        return 2 * (self.standard_error if self.confidence_error is None else self.confidence_error)

    @property
    def gap(self) -> float:
        """Mean confidence less accuracy, in points: above 0 where the model is surer than it is right."""
        return self.confidence - self.acc

    @property
    def gap_interval(self) -> tuple[float, float]:
        """A 95 % interval of the gap: that of the accuracy around it, where the probabilities are right."""
        return self.gap - self.told, self.gap + self.told

    @property
    def sureness(self) -> int:
        """1: over-confident on the whole, -1: under-confident, 0: the interval of the gap holds 0."""
        low, high = self.gap_interval
        return 1 if low > 0 else -1 if high < 0 else 0

    @property
    def uneven(self) -> bool:
        """Whether groups of rows are further from their confidence than chance takes them."""
        return self.chance_ece_high is not None and self.ece > self.chance_ece_high


class PredictiveScores(Result):
    """Scores of a run, S rising."""

    evaluated: list[
        DistributionScores
    ]  # of the stored evaluation, all rows of the split; empty without one of these settings
    looked_at: list[DistributionScores]  # of the rows and draws of this inspection

    @property
    def main(self) -> list[DistributionScores]:
        """Those of more rows."""
        return self.evaluated or self.looked_at


def predictive_scores(c: Context) -> PredictiveScores:
    """Return the scores of the stored evaluation, and of the rows looked at at the mean and under draws."""
    samples = len(c.log_probs)
    shown = {0: draw(c.system, c.rows, 0)[0]}
    if samples > 1:  # one draw is the point
        shown[samples] = posterior_predictive(c.log_probs)
    return PredictiveScores(
        evaluated=stored_scores(c.folder, c.system.config.hash),
        looked_at=[scores_of(log_probs, c.labels, s) for s, log_probs in shown.items()],
    )


def stored_scores(folder: Path, config_hash: str) -> list[DistributionScores]:
    """Return the scores of a run's own predictions; none where there are none, or of other settings."""
    if not (folder / METRICS).exists() or read_scores(folder).get("config_hash") != config_hash:
        return []
    records = read_predictions(folder)
    if not records:
        return []
    labels = torch.tensor([record["label"] for record in records])
    return [
        scores_of(torch.tensor([r["probs"][s] for r in records], dtype=torch.float64).log(), labels, int(s))
        for s in sorted(records[0]["probs"], key=int)
    ]


def scores_of(log_probs: Tensor, labels: Tensor, draws: int) -> DistributionScores:
    """Return the scores of predictions, `n x C`, averaged over some draws already."""
    found = evaluate(log_probs, labels)
    by_chance = chance_eces(log_probs)
    bins, sure = reliability_bins(log_probs, labels), log_probs.exp().amax(-1)
    return DistributionScores(
        rows=len(labels),
        draws=draws,
        **{key: found[key] for key in ("acc", "ece", "nll", "brier")},
        confidence=100 * float(sure.mean()),
        confidence_error=100 * float((sure * (1 - sure)).clamp_min(0).sum().sqrt()) / len(sure),
        majority=100 * float(labels.bincount().max()) / len(labels),
        chance_ece=float(by_chance.mean()),
        chance_ece_high=float(by_chance.quantile(HIGH)),
        bins=Bins(**{key: value.tolist() for key, value in vars(bins).items()}),
    )


def chance_ece(log_probs: Tensor) -> float:
    """Return the mean ECE (percent) of these predictions where they are right: labels are drawn from them."""
    return float(chance_eces(log_probs).mean())


def chance_eces(log_probs: Tensor) -> Tensor:
    """Return ECEs (percent) of these predictions where they are right, of labels drawn from them, float64."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(log_probs.exp(), REPLICATES, replacement=True, generator=generator)
    return torch.tensor([ece(log_probs, labels) for labels in drawn.T], dtype=torch.float64)
