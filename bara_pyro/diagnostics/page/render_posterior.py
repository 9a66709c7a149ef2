"""The section on what the gates learnt and how reliable the posterior is."""

import math

from matplotlib.figure import Figure

from bara_pyro.diagnostics.parts import Shown, pairs, shown_section
from bara_pyro.diagnostics.posterior.trust import (
    EPS,
    NOT_COMPUTED,
    GateLearning,
    LeftOut,
    PosteriorTrust,
)
from bara_pyro.report import Column, Picture, Table
from bara_pyro.report.style import GREY, PALETTE, WIDTH, dress, legend_of, new_figure

KINDS = {"phi": "global", "theta": "local"}
ABOUT = (
    "The KL of a gate measures how far its posterior is from its prior; a gate with a KL near 0 learnt "
    "nothing. The Pareto k of a training row measures how strongly the posterior depends on that row. Above "
    "0.7 (less with few draws) the estimate for the row is unreliable. Neither shows whether the guide's "
    "family of distributions is adequate. To check that, python -m experiments.nuts compares a guide "
    "with NUTS on a small model."
)


def render_posterior(found: PosteriorTrust) -> Shown:
    """Return the section with the KL by gate and PSIS-LOO on training rows."""
    technical = [
        f"{one.at_prior:.0f} % of the {KINDS[one.kind]} gates are within {EPS:g} nats of their prior; the "
        f"mean KL of a unit is {one.mean:.2f} nats."
        for one in found.learning
    ]
    if found.why_not:
        technical.append(f"The KL by gate is unknown: {found.why_not}")
    technical.append(_weighing(found.left_out) if found.left_out else found.not_left_out)
    tables = [_learning(found.learning)] if found.learning else []
    if found.left_out:
        tables.append(_left_out(found.left_out))
    pictures = _pictures(found.left_out) if found.left_out else []
    return shown_section("The posterior", _plain(found), technical, [*pictures, ABOUT, *tables])


def _plain(trust: PosteriorTrust) -> str:
    words = _learnt({KINDS[one.kind]: 100 - one.at_prior for one in trust.learning})
    left = trust.left_out
    if trust.not_left_out == NOT_COMPUTED:
        return f"{words}Whether training rows were memorized was not checked."
    if left is None:
        return f"{words}All draws give the same answers, so the posterior has no spread."
    if not _finite(left):
        return f"{words}There are too few draws to measure how much was memorized: give more --samples."
    if left.gap <= 2 * left.gap_se:
        return f"{words}Training questions are predicted no better than new ones: no sign of memorization."
    ratio = math.exp(left.gap)
    return (
        f"{words}The right answers to training questions get {ratio:.2f} times the probability of those to "
        "new questions: part of the training data was memorized."
    )


def _learnt(share: dict[str, float]) -> str:
    """Return a sentence on the share (percent) of gates of each kind that differ from their prior.

    A guide may start away from the prior, so a difference does not prove that data moved the gate.
    """
    if not share:
        return ""
    if min(share.values()) > 99.5:
        return "Every gate differs from its prior. "
    if max(share.values()) < 0.5:
        return "No gate differs from its prior: nothing was learnt from the data. "
    parts = " and ".join(f"{value:.0f} % of the {kind} gates" for kind, value in share.items())
    return f"{parts} differ from their prior; the others learnt nothing from the data. "


def _weighing(left: LeftOut) -> str:
    weight = f"{left.high_k} of {left.rows} rows have a Pareto k that is too high for a reliable estimate."
    if not _finite(left):
        weight = f"{left.draws} draws are too few to estimate Pareto's k."
    what = "The point estimates A and B memorized this much."
    if left.gap <= 2 * left.gap_se:
        what = f"This is within two standard errors ({left.gap_se:.3f} nats)."
    return (
        f"A training row left out by PSIS has an expected log probability of {left.elpd:.3f} nats, an unseen "
        f"row of {left.unseen:.3f}, a difference of {left.gap:.3f}. {what} {weight}"
    )


def _learning(learning: list[GateLearning]) -> Table:
    columns = [Column("module", "module")]
    rows: dict[str, dict[str, object]] = {module: {"module": module} for module in learning[0].by_module}
    for one in learning:
        columns += [
            Column(one.kind, f"mean KL of {one.kind}", "nats", ".3f"),
            Column(f"{one.kind} at prior", f"{one.kind} at prior", f"of {one.r}", "d"),
        ]
        for module, row in rows.items():
            row[one.kind], row[f"{one.kind} at prior"] = one.by_module[module], one.at_prior_by_module[module]
    caption = f"KL of posterior and prior by module; at prior: units within {EPS:g} nats"
    return Table(columns, list(rows.values()), caption)


def _left_out(left: LeftOut) -> Table:
    k = _finite(left)
    rows = (
        ("expected log probability of a left-out row (nats)", left.elpd),
        ("standard error (nats)", left.se),
        ("largest Pareto k", max(k) if k else None),
        (f"rows with k above {left.good_k:.2f}", f"{left.high_k} of {left.rows}"),
    )
    caption = f"PSIS-LOO on {left.rows} training rows, {left.draws} draws"
    return pairs(rows, ("quantity", "value"), caption, ".3f")


def _finite(left: LeftOut) -> list[float]:
    return sorted(k for k in left.pareto_k.values() if math.isfinite(k))


def _pictures(left: LeftOut) -> list[Picture]:
    k = _finite(left)
    if not k:
        return []
    missing = len(left.pareto_k) - len(k)
    caption = "How strongly the posterior depends on single training rows."
    return [
        Picture(
            pareto_figure(k, left.good_k),
            f"Pareto k of {len(k)} training rows against the limit {left.good_k:.2f}.",
            f"{caption} {missing} rows without a finite k are left out." if missing else caption,
            "pareto_k",
        )
    ]


def pareto_figure(k: list[float], limit: float) -> Figure:
    """Plot the finite Pareto k of training rows in increasing order, with the limit."""
    figure = new_figure(WIDTH, 3.2)
    axes = figure.add_subplot()
    axes.axhline(limit, color=GREY, linewidth=1.2, linestyle="--", label=f"limit {limit:.2f}")
    points = list(enumerate(sorted(k), 1))
    for chosen, label, color, marker in (
        ([point for point in points if point[1] <= limit], "below", PALETTE[0], "o"),
        ([point for point in points if point[1] > limit], "above", PALETTE[1], "x"),
    ):
        if chosen:
            places, values = zip(*chosen, strict=True)
            axes.scatter(places, values, s=16, color=color, marker=marker, label=label)
    dress(axes, "Training rows, sorted by k", "Pareto k of a row (no unit)")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure
