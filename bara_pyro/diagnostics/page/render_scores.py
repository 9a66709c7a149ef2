"""The section on accuracy and calibration."""

import torch

from bara_pyro.diagnostics.inspection import RunFacts
from bara_pyro.diagnostics.parts import Shown, pairs, shown_section
from bara_pyro.diagnostics.posterior.predictive_scores import (
    DistributionScores,
    PredictiveScores,
    shown_metrics,
)
from bara_pyro.metrics import ReliabilityBins
from bara_pyro.report import Column, Picture, Table, reliability_diagram

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


def render_scores(run: RunFacts, found: PredictiveScores) -> Shown:
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
    return shown_section(
        "Accuracy and calibration",
        plain,
        technical,
        [Table(columns, rows, caption), *map(_reliability, found.main), facts(run)],
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
