"""What was trained, and how far its probabilities are right."""

import math

from bara_pyro.diagnostics.page.context import Context, Part
from bara_pyro.metrics import evaluate, posterior_predictive, reliability_bins
from bara_pyro.report import Column, Picture, Section, Table, reliability_diagram
from bara_pyro.runs.evaluate import draw, parameter_counts
from bara_pyro.runs.train import train_seconds

SCORES = (
    Column("draws", "S", format="d"),
    Column("acc", "ACC", "%", ".1f"),
    Column("ece", "ECE", "%", ".1f"),
    Column("nll", "NLL", "nats", ".3f"),
    Column("brier", "Brier", "", ".3f"),
)


def trained(c: Context) -> Part:
    """Return the facts of the run, its scores at the posterior mean and under draws, its reliability."""
    config, system = c.system.config, c.system
    samples = len(c.log_probs)
    point, averaged = draw(system, c.rows, 0)[0], posterior_predictive(c.log_probs)
    shown = {0: point, samples: averaged} if samples > 1 else {0: point}  # one draw is the point
    scores = {s: evaluate(p, c.labels, c.truth) for s, p in shown.items()}
    bins = {f"S = {s}": reliability_bins(p, c.labels) for s, p in shown.items()}
    rows = [{"draws": s, **values} for s, values in scores.items()]
    name = f"{config.method.name} on {system.task.name}"
    errors = ", ".join(f"{key}: {b.ece:.1f} %" for key, b in bins.items())
    picture = Picture(
        reliability_diagram(bins),
        f"Reliability diagrams; expected calibration error {errors}.",
        "Bars below the diagonal: surer than right.",
    )
    tables = [facts(c), Table(SCORES, rows, f"Scores on {len(c.rows)} rows; S = 0: posterior mean")]
    section = Section("What was trained", tables=tables, figures=[picture])
    found = scores[max(shown)]
    confidence = 100 * float(averaged.exp().max(dim=-1).values.mean())
    error = 100 * math.sqrt(found["acc"] / 100 * (1 - found["acc"] / 100) / len(c.rows))
    gap = confidence - found["acc"]
    manner = "neither too sure nor too unsure"
    if abs(gap) > 2 * error:
        manner = "over-confident" if gap > 0 else "under-confident"
    findings = (
        f"{name}: {found['acc']:.1f} % right (± {error:.1f} by chance), mean confidence {confidence:.1f} %: "
        f"{manner} on the whole; ECE {found['ece']:.1f} %, NLL {found['nll']:.3f} nats.",
        *_of_sampling(scores, samples),
    )
    data = {"scores": {str(s): values for s, values in scores.items()}, "confidence": confidence}
    return Part(section, findings, data, {"reliability": picture})


def facts(c: Context) -> Table:
    """Return what was trained on what."""
    config, counts = c.system.config, parameter_counts(c.system)
    seconds = train_seconds(c.folder)
    rows = [
        ("method", config.method.name),
        ("language model", c.system.backbone.name),
        ("task", f"{c.system.task.name}: {c.system.model.num_data} training rows, {len(c.rows)} looked at"),
        ("adapters", f"rank {config.adapter.r} on {len(c.system.model.targets)} modules"),
        ("parameters", f"{counts['trainable']:,} trainable, {counts['frozen']:,} frozen"),
        ("training", f"{config.train.steps:,} steps, rate {config.train.lr:g}, seed {config.seed}"),
        ("time", "not known" if seconds is None else f"{seconds:.0f} s of training"),
        ("configuration", config.hash),
    ]
    return Table((Column("what", ""), Column("value", "")), [{"what": a, "value": b} for a, b in rows])


def _of_sampling(scores: dict[int, dict[str, float]], samples: int) -> tuple[str, ...]:
    if samples < 2:
        return ()
    gain = scores[0]["nll"] - scores[samples]["nll"]
    words = "lowers" if gain > 0 else "raises"
    change = scores[samples]["ece"] - scores[0]["ece"]
    return (
        f"Averaging over {samples} draws instead of taking the posterior mean {words} the NLL by "
        f"{abs(gain):.3f} nats and changes the ECE by {change:+.1f} points.",
    )
