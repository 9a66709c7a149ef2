"""The sources of uncertainty of a run: aleatoric, from the global gates, and from the local gates."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.diagnostics import Number, Result
from bara_pyro.diagnostics.context import Context, is_random
from bara_pyro.diagnostics.sparsity import RankCorrelation, relation
from bara_pyro.metrics import NestedUncertainty, decompose_nested, posterior_predictive
from bara_pyro.report.html import Picture, Section
from bara_pyro.report.style import GREY, PALETTE, WIDTH, dress, legend_of, new_figure
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.evaluate import draw


class UncertaintySplit(Result):
    """The predictive uncertainty by source, from nested draws, in nats."""

    nested: int  # number of draws of the global gates, and of the local gates for each of them
    total: float  # mean over rows; the sum of the next three
    aleatoric: float
    global_: float
    local: float
    aleatoric_rows: list[float]  # `n`: the aleatoric part of each row
    epistemic_rows: list[float]  # `n`: the part from both kinds of gates
    wrong: list[bool]  # whether the row was answered wrong
    true_entropy: list[Number]  # entropy of the row's true answer; null if unknown
    aleatoric_bias: (
        float | None
    )  # mean of `aleatoric_rows` minus `true_entropy`; None if unknown for all rows
    relations: dict[str, RankCorrelation]  # correlations of both parts with properties of the rows

    def share(self, part: str) -> float:
        """Return the share of a part in the total, in percent."""
        return 100 * float(getattr(self, part)) / self.total if self.total else 0.0


def uncertainty_split(c: Context) -> UncertaintySplit | None:
    """Return the predictive uncertainty by source; None for methods without random gates."""
    if not is_random(c.system):
        return None
    k = c.options.nested
    draws = draw(c.system, c.rows, k * k, repeats=k)
    parts = decompose_nested(draws, k)
    wrong = posterior_predictive(draws).argmax(-1) != c.labels
    truth = torch.special.entr(c.truth).sum(-1)
    known = ~truth.isnan()
    return UncertaintySplit(
        nested=k,
        **{name: float(getattr(parts, name).mean()) for name in ("total", "aleatoric", "global_", "local")},
        aleatoric_rows=parts.aleatoric.tolist(),
        epistemic_rows=(parts.global_ + parts.local).tolist(),
        wrong=wrong.tolist(),
        true_entropy=truth.tolist(),
        aleatoric_bias=float((parts.aleatoric - truth)[known].mean()) if known.any() else None,
        relations=_relations(parts, wrong, truth),
    )


def _relations(parts: NestedUncertainty, wrong: Tensor, truth: Tensor) -> dict[str, RankCorrelation]:
    """Correlate the aleatoric part with the true entropy (if known), the epistemic part with errors."""
    if len(wrong) < 3:
        return {}
    relations = {}
    if int((~truth.isnan()).sum()) > 2:
        relations["Aleatoric uncertainty"] = relation(parts.aleatoric[:, None], truth, "the true entropy")
    epistemic = (parts.global_ + parts.local)[:, None]
    return relations | {"Epistemic uncertainty": relation(epistemic, wrong.double(), "error")}


PARTS = {
    "total": "total: entropy of the prediction",
    "aleatoric": "aleatoric: mean entropy of the draws",
    "global_": "epistemic, from the global gates Φ",
    "local": "epistemic, from the local gates θ",
}
COLUMNS = (
    Column("part", "part"),
    Column("mean", "mean", "nats", ".4f"),
    Column("share", "share", "%", ".1f"),
)
ABOUT = (
    "Draws are nested: several draws of the local gates for each draw of the global gates. Differences "
    "between the groups come from the global gates, differences within a group from the local gates."
)
KINDS = {"aleatoric": "Aleatoric", "epistemic": "Epistemic"}


def render_uncertainty(found: UncertaintySplit) -> Section:
    """Return the section with the parts of the uncertainty and the uncertainty of each row."""
    in_gates = found.share("global_") + found.share("local")
    plain = (
        f"{found.share('aleatoric'):.0f} % of the uncertainty comes from questions that look ambiguous to "
        f"the model, {in_gates:.0f} % from draws of its gates that disagree. The other weights count as "
        "certain."
    )
    technical = [
        f"The mean uncertainty is {found.total:.3f} nats: {found.share('aleatoric'):.1f} % aleatoric, "
        f"{found.share('global_'):.1f} % from the global and {found.share('local'):.1f} % from the local "
        "gates.",
        *(
            f"{name} {x.verdict} {x.with_} (ρ = {x.rho:+.2f})."
            for name, x in found.relations.items()
            if not math.isnan(x.low)  # NaN: too few rows differ
        ),
    ]
    if found.aleatoric_bias is not None:
        manner = "more" if found.aleatoric_bias > 0 else "less"
        technical.append(
            f"On average the aleatoric part is {abs(found.aleatoric_bias):.3f} nats {manner} than the true "
            "ambiguity."
        )
    rows = [{"part": t, "mean": getattr(found, k), "share": found.share(k)} for k, t in PARTS.items()]
    table = Table(COLUMNS, rows, f"{found.nested} draws of Φ, with {found.nested} draws of θ for each")
    pictures = [_picture(found, kind) for kind in KINDS]
    return Section("Sources of uncertainty", [table, *pictures, ABOUT], plain, technical)


def _picture(uncertainty: UncertaintySplit, kind: str) -> Picture:
    known = uncertainty.aleatoric_bias is not None
    against = "against the true entropy of its answer" if known else "by whether it was answered right"
    return Picture(
        uncertainty_figure(uncertainty, kind),
        f"{KINDS[kind]} uncertainty of each row {against}.",
        f"{KINDS[kind]} part: each point is a row.",
        f"uncertainty_{kind}",
    )


def uncertainty_figure(found: UncertaintySplit, kind: str) -> Figure:
    """Plot the "aleatoric" or "epistemic" part of each row against its true entropy or its correctness."""
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
