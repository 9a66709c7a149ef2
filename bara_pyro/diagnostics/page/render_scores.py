"""The section on how far the probabilities of a run are right."""

import torch

from bara_pyro.diagnostics.inspection import RunFacts
from bara_pyro.diagnostics.posterior.predictive_scores import DistributionScores, PredictiveScores
from bara_pyro.diagnostics.shown import Shown, pairs, shown_section
from bara_pyro.metrics import ReliabilityBins
from bara_pyro.report import Column, Picture, Table, reliability_diagram

COLUMNS = (
    Column("which", "rows"),
    Column("draws", "S", format="d"),
    Column("acc", "ACC", "%", ".1f"),
    Column("confidence", "confidence", "%", ".1f"),
    Column("ece", "ECE", "%", ".1f"),
    Column("chance_ece", "ECE by chance", "%", ".1f"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("brier", "Brier", "", ".3f"),
)
PLAIN = {
    1: "It is surer than it should be: its probabilities overstate how often it is right.",
    0: "The two agree within chance: its probabilities can be taken at their word, on the whole.",
    -1: "It is less sure than it could be: its probabilities understate how often it is right.",
}
FINE = 5.0  # points: what rows can tell, for probabilities that no difference is told of to be trusted
TECHNICAL = {1: "over-confident on the whole", 0: "within chance", -1: "under-confident on the whole"}


def render_scores(run: RunFacts, found: PredictiveScores) -> Shown:
    """Show the facts of the run, its scores on all rows and on those looked at, its reliability."""
    main, few = found.main[-1], found.looked_at[-1]
    plain = (
        f"Of {main.rows:,} {run.split} questions the model answers {main.acc:.0f} in 100 right, and is "
        f"{main.confidence:.0f} % sure on average. {_plain(main)}"
    )
    technical = [
        f"{run.method} on {run.task}, S = {main.draws}: {main.acc:.1f} % right (± {main.standard_error:.1f} "
        f"by chance), mean confidence {main.confidence:.1f} %; confidence less accuracy {_interval(main)}, "
        f"{TECHNICAL[main.sureness]}; ECE {main.ece:.1f} %{_by_chance(main)}, NLL {main.nll:.3f} nats, on "
        f"{main.rows:,} rows.",
        *_of_sampling(found.main),
        *(_why_they_differ(main, few) if found.evaluated else ()),
    ]
    rows = [_row(f"all {s.rows:,}, as evaluate has them", s) for s in found.evaluated]
    rows += [_row(f"the first {s.rows:,}, looked at here", s) for s in found.looked_at]
    caption = (
        "Scores by number of draws S (0: the posterior mean). ECE by chance: what a perfectly calibrated "
        "model with these probabilities would show on so many rows."
    )
    return shown_section(
        "Accuracy and calibration",
        plain,
        technical,
        [Table(COLUMNS, rows, caption), *map(_reliability, found.main), facts(run)],
    )


def _plain(s: DistributionScores) -> str:
    """Return what that means, and no more than so few rows can tell."""
    said = PLAIN[s.sureness]
    if s.sureness == 0 and s.told > FINE:
        side = "over" if s.gap > 0 else "under"
        said = (
            f"That leans to {side}-confidence: confidence less accuracy is {_interval(s)}. No difference is "
            f"told; on so few rows one of up to {s.told:.0f} points would not be."
        )
    if s.sureness == 0 and s.uneven:
        said = said if s.told > FINE else "The two agree on the whole."
        said += (
            f" Single probabilities are off: the ECE is {s.ece:.0f} %, and by chance at most "
            f"{s.chance_ece_high:.0f} % in 19 cases of 20."
        )
    if s.majority is not None and s.acc < s.majority:
        said += f" Always giving the most frequent answer would be right {s.majority:.0f} times in 100."
    return said


def _interval(s: DistributionScores) -> str:
    low, high = s.gap_interval
    return f"{s.gap:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"


def _by_chance(s: DistributionScores) -> str:
    return "" if s.chance_ece_high is None else f" (by chance up to {s.chance_ece_high:.1f} %)"


def _row(which: str, s: DistributionScores) -> dict[str, object]:
    return {"which": which, **s.model_dump(include={column.key for column in COLUMNS})}


def _why_they_differ(main: DistributionScores, few: DistributionScores) -> list[str]:
    return [
        f"On the {few.rows:,} rows that are looked at below the ECE is {few.ece:.1f} % instead of "
        f"{main.ece:.1f} %. An ECE of few rows is too high by chance: a perfectly calibrated model with "
        f"these probabilities would show {few.chance_ece:.1f} % on {few.rows:,} rows and "
        f"{main.chance_ece:.1f} % on {main.rows:,}."
    ]


def _of_sampling(scores: list[DistributionScores]) -> list[str]:
    point, averaged = scores[0], scores[-1]
    if point.draws or not averaged.draws:
        return []
    gain = point.nll - averaged.nll
    return [
        f"Averaging over {averaged.draws} draws instead of taking the posterior mean "
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
        f"{s.rows:,} rows. Bars below the diagonal: surer than right.",
        f"reliability_s{s.draws}",
    )


def facts(run: RunFacts) -> Table:
    """Return what was trained on what, as a table."""
    took = "not known" if run.train_seconds is None else f"{run.train_seconds:.0f} s of training"
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
    return pairs(rows, ("of the run", "value"), "The run")
