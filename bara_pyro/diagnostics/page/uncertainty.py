"""What the uncertainty is made of: in the question, in the global gates, in the local ones."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.diagnostics.gates.rank import Relation, relation
from bara_pyro.diagnostics.page.context import Context, Part
from bara_pyro.metrics import NestedUncertainty, decompose_nested, posterior_predictive
from bara_pyro.report import Column, Picture, Section, Table
from bara_pyro.report.style import GREY, PALETTE, dress, legend_of, new_figure
from bara_pyro.runs.evaluate import draw

PARTS = {
    "total": "total: entropy of the prediction",
    "aleatoric": "aleatoric: expected entropy of a draw",
    "global_": "epistemic, of the global gates Φ",
    "local": "epistemic, of the local gates θ",
}


def uncertainty(c: Context) -> Part | None:
    """Return the split of the predictive uncertainty by nested draws; nothing for methods without gates."""
    if not c.has_gates or not c.system.guide.stochastic:
        return None
    k = c.options.nested
    draws = draw(c.system, c.rows, k * k, repeats=k)
    parts = decompose_nested(draws, k)
    averaged = posterior_predictive(draws)
    wrong = (averaged.argmax(-1) != c.labels).double()
    true_entropy = torch.special.entr(c.truth).sum(-1)
    known = bool((~true_entropy.isnan()).any())
    rows = [
        {"part": words, "mean": float(getattr(parts, name).mean()), "share": _share(parts, name)}
        for name, words in PARTS.items()
    ]
    columns = (
        Column("part", "part"),
        Column("mean", "mean", "nats", ".4f"),
        Column("share", "share", "%", ".1f"),
    )
    tables = [Table(columns, rows, f"{k} draws of Φ, and {k} of θ for each")]
    relations = _relations(parts, wrong, true_entropy if known else None)
    picture = Picture(
        _figure(parts, true_entropy if known else None, wrong),
        "Uncertainty of each row against its true entropy, or by whether it was answered right.",
        "Each point is a row." if known else "Rows answered right and wrong.",
    )
    data = {name: row["mean"] for name, row in zip(PARTS, rows, strict=True)}
    data["relations"] = {name: {"rho": r.rho, "low": r.low, "high": r.high} for name, r in relations.items()}
    findings = [
        f"Of {data['total']:.3f} nats of uncertainty {rows[1]['share']:.0f} % lie in the questions as the "
        f"model sees them, {rows[2]['share']:.1f} % in the global and {rows[3]['share']:.1f} % in the local "
        "gates."
    ]
    findings += [
        f"{name} {x.verdict} {x.with_} (ρ = {x.rho:+.2f})."
        for name, x in relations.items()
        if not math.isnan(x.rho)  # all rows alike
    ]
    if known:
        bias = float((parts.aleatoric - true_entropy)[~true_entropy.isnan()].mean())
        manner = "more" if bias > 0 else "less"
        findings.append(f"On average the model sees {abs(bias):.3f} nats {manner} ambiguity than there is.")
        data["aleatoric_bias"] = bias
    text = [
        "Draws are nested: for each draw of the global gates several of the local ones. What differs between "
        "the groups is the global gates' doing, what differs within them the local gates'."
    ]
    section = Section("What the uncertainty is made of", text, tables, [picture])
    return Part(section, tuple(findings), data, {"uncertainty": picture})


def _share(parts: NestedUncertainty, name: str) -> float:
    return 100 * float(getattr(parts, name).mean() / parts.total.mean())


def _relations(parts: NestedUncertainty, wrong: Tensor, truth: Tensor | None) -> dict[str, Relation]:
    """Relate the parts to what is known of the rows."""
    epistemic = (parts.global_ + parts.local)[:, None]
    found = {}
    if len(wrong) > 2:
        if truth is not None:
            found["Aleatoric uncertainty"] = relation(parts.aleatoric[:, None], truth, "the true entropy")
        found["Epistemic uncertainty"] = relation(epistemic, wrong, "error")
    return found


def _figure(parts: NestedUncertainty, truth: Tensor | None, wrong: Tensor) -> Figure:
    figure = new_figure(8.5, 3.4)
    left, right = figure.subplots(1, 2, sharex=True)
    epistemic = parts.global_ + parts.local
    for axes, values, name in ((left, parts.aleatoric, "Aleatoric"), (right, epistemic, "Epistemic")):
        for value, label, color, marker in (
            (0, "answered right", PALETTE[0], "o"),
            (1, "answered wrong", PALETTE[1], "x"),
        ):
            chosen = wrong == value
            x = truth[chosen] if truth is not None else torch.full((int(chosen.sum()),), float(value))
            axes.scatter(x, values[chosen], s=11, alpha=0.6, color=color, marker=marker, label=label)
        if truth is not None:
            dress(axes, "True entropy of the answer (nats)", f"{name} (nats)")
            if axes is left:
                top = float(truth[~truth.isnan()].max())
                axes.plot([0, top], [0, top], color=GREY, linewidth=1, linestyle="--", label="equal")
        else:
            dress(axes, "Answered", f"{name} (nats)")
            axes.set_xticks([0, 1], ["right", "wrong"])
            axes.set_xlim(-0.5, 1.5)
    legend_of(left, loc="best")
    return figure
