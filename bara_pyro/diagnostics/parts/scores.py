"""Accuracy and calibration of a run, on all rows of its evaluation and on the inspected rows."""

import math
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.context import Context, RunFacts
from bara_pyro.diagnostics.parts import pairs
from bara_pyro.metrics import ReliabilityBins, ece, evaluate, posterior_predictive, reliability_bins
from bara_pyro.metrics.base import METRICS, Metric
from bara_pyro.report.figures import reliability_diagram
from bara_pyro.report.html import Picture, Section
from bara_pyro.report.table import Column, Table
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


BESIDE = {
    "acc": Column("confidence", "confidence", "%", ".1f"),
    "ece": Column("chance_ece", "ECE by chance", "%", ".1f"),
}
"""Columns that follow a metric's own."""
PLAIN = {
    1: "It is overconfident: it is right less often than its probabilities say.",
    0: "The two agree within sampling error, so overall its probabilities can be trusted.",
    -1: "It is underconfident: it is right more often than its probabilities say.",
}
FINE = 5.0  # points: without a significant gap, probabilities are trusted if the rows could detect this much
TECHNICAL = {1: "overconfident", 0: "no significant gap", -1: "underconfident"}


def render_scores(run: RunFacts, found: PredictiveScores) -> Section:
    """Return the section with the scores, the reliability diagrams and the facts of the run."""
    main = found.main[-1]
    plain = (
        f"The model answers {main.acc:.0f} % of {main.rows:,} {run.split} questions correctly, with an "
        f"average confidence of {main.confidence:.0f} %. {_plain(main)}"
    )
    technical = [
        f"{run.method} on {run.task}, {main.rows:,} rows, S = {main.draws}: accuracy {main.acc:.1f} % "
        f"(standard error {main.standard_error:.1f}), ECE {main.ece:.1f} % (up to "
        f"{main.chance_ece_high:.1f} % by chance), NLL {main.nll:.3f} nats.",
        f"Mean confidence {main.confidence:.1f} %; confidence minus accuracy {_interval(main)}: "
        f"{TECHNICAL[main.sureness]}.",
        *_of_sampling(found.main),
        *(_why_they_differ(main, found.looked_at[-1]) if found.evaluated and found.looked_at else ()),
    ]
    rows = [_row(f"all {s.rows:,} (evaluation)", s) for s in found.evaluated]
    rows += [_row(f"first {s.rows:,} (this report)", s) for s in found.looked_at]
    columns = [Column("which", "rows"), Column("draws", "S", format="d")]
    for m in shown_metrics():
        columns.append(Column(m.name, m.heading, m.unit, f".{m.digits}f"))
        columns += [BESIDE[m.name]] if m.name in BESIDE else []
    caption = (
        "Scores by number of posterior draws S (0: the posterior mean). ECE by chance: the mean ECE of a "
        "perfectly calibrated model with the same probabilities and number of rows."
    )
    return Section(
        "Accuracy and calibration",
        [Table(columns, rows, caption), *map(_reliability, found.main), facts(run)],
        plain,
        technical,
    )


def _plain(s: DistributionScores) -> str:
    """Return what the scores mean for a user, and no more than the number of rows supports."""
    sentence = PLAIN[s.sureness]
    if s.sureness == 0 and s.told > FINE:
        sentence = (
            f"Confidence minus accuracy is {_interval(s)}. This gap is not significant, but {s.rows:,} rows "
            f"cannot detect gaps under {s.told:.0f} points."
        )
    if s.sureness == 0 and s.uneven:
        sentence = sentence if s.told > FINE else "Overall the two agree."
        sentence += (
            f" At some levels of confidence the probabilities are off: the ECE is {s.ece:.0f} %, and a "
            f"calibrated model would stay below {s.chance_ece_high:.0f} % in 19 of 20 cases."
        )
    if s.acc < s.majority:
        sentence += f" Always giving the most frequent answer would be right in {s.majority:.0f} % of cases."
    return sentence


def _interval(s: DistributionScores) -> str:
    low, high = s.gap_interval
    return f"{s.gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"


def _row(which: str, s: DistributionScores) -> dict[str, object]:
    return {"which": which, **s.model_dump(), **s.added}


def _why_they_differ(main: DistributionScores, few: DistributionScores) -> list[str]:
    return [
        f"On the {few.rows:,} rows used in the rest of this report the ECE is {few.ece:.1f} % instead of "
        f"{main.ece:.1f} %. The ECE of few rows is biased upwards: a perfectly calibrated model would have "
        f"{few.chance_ece:.1f} % on {few.rows:,} rows and {main.chance_ece:.1f} % on {main.rows:,}."
    ]


def _of_sampling(scores: list[DistributionScores]) -> list[str]:
    point, averaged = scores[0], scores[-1]
    if point.draws or not averaged.draws:
        return []
    gain = point.nll - averaged.nll
    return [
        f"Averaging {averaged.draws} draws instead of using the posterior mean "
        f"{'lowers' if gain > 0 else 'raises'} the NLL by {abs(gain):.3f} nats and changes the ECE by "
        f"{averaged.ece - point.ece:+.1f} points."
    ]


def _reliability(s: DistributionScores) -> Picture:
    fields = {key: torch.tensor(values, dtype=torch.float64) for key, values in s.bins.model_dump().items()}
    bins = ReliabilityBins(**fields | {"counts": torch.tensor(s.bins.counts)})
    name = "posterior mean, S = 0" if s.draws == 0 else f"S = {s.draws} draws"
    return Picture(
        reliability_diagram({name: bins}),
        f"Reliability diagram, {name}: expected calibration error {s.ece:.1f} % on {s.rows:,} rows.",
        f"{s.rows:,} rows. Bars below the diagonal mean overconfidence.",
        f"reliability_s{s.draws}",
    )


def facts(run: RunFacts) -> Table:
    """Return the method, the task and the training of a run as a table."""
    took = "unknown" if run.train_seconds is None else f"{run.train_seconds:.0f} s of training"
    rows = [
        ("method", run.method),
        ("language model", run.backbone),
        ("task", f"{run.task}: {run.train_rows:,} training rows"),
        ("adapters", f"rank {run.r} on {run.modules} modules"),
        ("parameters", f"{run.trainable:,} trainable, {run.frozen:,} frozen"),
        ("training", f"{run.steps:,} steps, learning rate {run.lr:g}, seed {run.seed}"),
        ("time", took),
        ("configuration", run.config_hash),
    ]
    return pairs(rows, ("property", "value"), "The run")
