"""The section on what the uncertainty is made of."""

import math

from matplotlib.figure import Figure

from bara_pyro.diagnostics.posterior.uncertainty_split import UncertaintySplit
from bara_pyro.diagnostics.shown import Shown, shown_section
from bara_pyro.report import Column, Picture, Table
from bara_pyro.report.style import GREY, PALETTE, WIDTH, dress, legend_of, new_figure

PARTS = {
    "total": "total: entropy of the prediction",
    "aleatoric": "aleatoric: expected entropy of a draw",
    "global_": "epistemic, of the global gates Φ",
    "local": "epistemic, of the local gates θ",
}
COLUMNS = (
    Column("part", "part"),
    Column("mean", "mean", "nats", ".4f"),
    Column("share", "share", "%", ".1f"),
)
ABOUT = (
    "Draws are nested: for each draw of the global gates several of the local ones. What differs between the "
    "groups is the global gates' doing, what differs within them the local gates'."
)
KINDS = {"aleatoric": "Aleatoric", "epistemic": "Epistemic"}


def render_uncertainty(found: UncertaintySplit) -> Shown:
    """Show the parts of the uncertainty, and each row's against what is known of it."""
    in_gates = found.share("global_") + found.share("local")
    plain = (
        f"{found.share('aleatoric'):.0f} % of the model's doubt is about the questions themselves, which "
        f"look open to it, and {in_gates:.0f} % about what it has learnt, where draws of its gates disagree "
        "(the weights beside the gates count as certain)."
    )
    technical = [
        f"Of {found.total:.3f} nats of uncertainty {found.share('aleatoric'):.0f} % are aleatoric, "
        f"{found.share('global_'):.1f} % lie in the global and {found.share('local'):.1f} % in the local "
        "gates.",
        *(
            f"{name} {x.verdict} {x.with_} (ρ = {x.rho:+.2f})."
            for name, x in found.relations.items()
            if not math.isnan(x.low)  # all rows alike, or nearly
        ),
    ]
    if found.aleatoric_bias is not None:
        manner = "more" if found.aleatoric_bias > 0 else "less"
        technical.append(
            f"On average the model sees {abs(found.aleatoric_bias):.3f} nats {manner} ambiguity than there "
            "is."
        )
    rows = [{"part": t, "mean": getattr(found, k), "share": found.share(k)} for k, t in PARTS.items()]
    table = Table(COLUMNS, rows, f"{found.nested} draws of Φ, and {found.nested} of θ for each")
    pictures = [_picture(found, kind) for kind in KINDS]
    return shown_section("Sources of uncertainty", plain, technical, [table, *pictures, ABOUT])


def _picture(found: UncertaintySplit, kind: str) -> Picture:
    known = found.aleatoric_bias is not None
    against = "against the true entropy of its answer" if known else "by whether it was answered right"
    return Picture(
        uncertainty_figure(found, kind),
        f"{KINDS[kind]} uncertainty of each row {against}.",
        f"{KINDS[kind]} part: each point is a row.",
        f"uncertainty_{kind}",
    )


def uncertainty_figure(found: UncertaintySplit, kind: str) -> Figure:
    """Draw the "aleatoric" or "epistemic" part of each row against its true entropy, or by right or wrong."""
    figure = new_figure(WIDTH, 3.4)
    axes, known = figure.add_subplot(), found.aleatoric_bias is not None
    values = getattr(found, f"{kind}_rows")
    for wrong, label, color, marker in (
        (False, "answered right", PALETTE[0], "o"),
        (True, "answered wrong", PALETTE[1], "x"),
    ):
        chosen = [i for i, value in enumerate(found.wrong) if value == wrong]
        x = [found.true_entropy[i] if known else float(wrong) for i in chosen]
        y = [values[i] for i in chosen]
        axes.scatter(x, y, s=13, alpha=0.6, color=color, marker=marker, label=label)
    if known:
        dress(axes, "True entropy of the answer (nats)", f"{KINDS[kind]} (nats)")
        if kind == "aleatoric":
            top = max(value for value in found.true_entropy if not math.isnan(value))
            axes.plot([0, top], [0, top], color=GREY, linewidth=1, linestyle="--", label="equal")
    else:
        dress(axes, "Answered", f"{KINDS[kind]} (nats)")
        axes.set_xticks([0, 1], ["right", "wrong"])
        axes.set_xlim(-0.5, 1.5)
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure
