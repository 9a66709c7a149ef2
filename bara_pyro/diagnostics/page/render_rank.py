"""The section on where the rank goes."""

import math

from matplotlib.figure import Figure

from bara_pyro.diagnostics.gates.rank import RankCorrelation, SupportRelation
from bara_pyro.diagnostics.gates.rank_use import ENTROPY, RankUse
from bara_pyro.diagnostics.shown import Shown, pairs, shown_section
from bara_pyro.report import Column, Picture, Table
from bara_pyro.report.blocks import Block
from bara_pyro.report.style import PALETTE, WIDTH, dress, legend_of, line_style, new_figure

NAMES = {"phi": "Φ", "theta": "θ", "psi": "Φθ"}
SPARSITY = (
    Column("phi", "Φ off", "%", ".1f"),
    Column("theta", "θ off", "%", ".1f"),
    Column("psi", "Φθ off", "%", ".1f"),
)
MODULES = (
    Column("module", "module"),
    *SPARSITY,
    Column("rank", "effective rank", format=".2f"),
    Column("spread", "spread over rows", format=".2f"),
)
RELATIONS = (
    Column("what", "the effective rank"),
    Column("rho", "Spearman's ρ", format="+.2f"),
    Column("low", "from", format="+.2f"),
    Column("high", "to", format="+.2f"),
    Column("rows", "rows", format="d"),
)
LABELLED = 24  # modules that an axis has room to name
DOUBT = {
    1: "Questions that the model is less sure of use more of them.",
    0: "No difference is seen between questions that the model is sure of and others.",
    -1: "Questions that the model is less sure of use fewer of them.",
}


def render_rank(found: RankUse) -> Shown:
    """Show sparsity by module, the effective rank of the rows, and what it goes with."""
    summary = found.summary
    technical = [
        f"Effective rank {summary.mean:.2f} of {found.r}; from row to row it varies by "
        f"{summary.over_rows:.2f} (standard deviation), from module to module by {summary.over_modules:.2f}.",
        *(_sentence(x) for x in found.relations if not math.isnan(x.rho)),  # NaN: all rows alike
    ]
    rows = [{**m.sparsity, **m.model_dump(include={"module", "rank", "spread"})} for m in found.modules]
    tables = [Table(MODULES, rows, f"Share of gates below τ = {found.tau:g}, and effective rank")]
    if found.relations:
        rows = [{"what": f"{x.verdict} {x.with_}", **vars(x)} for x in found.relations]
        tables.append(Table(RELATIONS, rows, "What it goes with, over rows (95 % bootstrap intervals)"))
    if found.readings:
        in_a_draw, at_mean = (found.readings[k]["psi"] for k in ("expectation over draws", "mean gate"))
        technical.append(
            f"{in_a_draw:.1f} % of the gates are off in a draw, {at_mean:.1f} % in the mean gate: the rest "
            "of it is the draws' noise, which closes a gate at random."
        )
        rows = [{"reading": name, **values} for name, values in found.readings.items()]
        tables.append(Table((Column("reading", "reading"), *SPARSITY), rows, "Three readings of sparsity"))
    if found.support is not None:
        tables.append(_support(found.support))
    blocks: list[Block] = [*_pictures(found), _words(found), *tables]
    return shown_section("Effective rank", _plain(found), technical, blocks)


def _plain(found: RankUse) -> str:
    rank = f"{found.summary.mean:.1f} of the {found.r}"
    if not found.gates:
        return (
            f"LoRA has no gates, so nothing closes: its activations count as small in all but {rank} "
            "directions of an adapter, for comparison with methods that have gates."
        )
    words = f"In a draw a question uses {rank} directions that an adapter has; the rest are nearly off."
    doubt = [x for x in found.relations if x.with_ == ENTROPY and not math.isnan(x.rho)]
    if not doubt:
        return words
    direction = 1 if doubt[0].low > 0 else -1 if doubt[0].high < 0 else 0
    return f"{words} {DOUBT[direction]}"


def _words(found: RankUse) -> str:
    if not found.gates:
        return f"LoRA has no gates: these are its activations A x, off below {found.tau:g}; Φ counts as 0."
    return (
        f"A gate counts as off below {found.tau:g}. Percentages are expectations over {found.draws} draws at "
        "the last token; the effective rank of a row is the expected number of units that are on."
    )


def _sentence(x: RankCorrelation) -> str:
    known = "too few rows differ" if math.isnan(x.low) else f"ρ = {x.rho:+.2f} [{x.low:+.2f}, {x.high:+.2f}]"
    return f"The effective rank {x.verdict} {x.with_} ({known})."


def _support(s: SupportRelation) -> Table:
    rows = (
        ("units with Φ above τ", s.phi),
        ("units with θ above τ", s.theta),
        (f"units with Φθ above τ² = {s.tau_product:g}", s.product),
        ("of these supports, not within both factors' (%)", s.broken),
        (f"units with Φθ above the sound threshold {s.tau_sound:.3g}", s.sound),
        ("of these supports, not within both factors' (%)", s.broken_sound),
    )
    return pairs(rows, ("count", "mean"), "Proposition 1: the support of the product and of its factors")


def _pictures(found: RankUse) -> list[Picture]:
    return [
        Picture(
            sparsity_figure(found),
            f"Share of gates below {found.tau:g} in each of {len(found.modules)} modules.",
            "Share of gates that are off, by module from the input to the answer.",
            "sparsity",
        ),
        Picture(
            rank_figure(found),
            f"Histogram of the effective rank of {len(found.rows)} rows, around {found.summary.mean:.2f}.",
            "Effective rank of the rows, mean over modules.",
            "effective_rank",
        ),
    ]


def sparsity_figure(found: RankUse) -> Figure:
    """Draw the share of gates that are off, by module."""
    figure = new_figure(WIDTH, 3.4)
    axes, places = figure.add_subplot(), range(len(found.modules))
    for index, (gate, name) in enumerate(NAMES.items()):
        values = [m.sparsity[gate] for m in found.modules if gate in m.sparsity]
        if values and (found.gates or gate == "theta"):
            label = name if found.gates else "A x"
            axes.plot(places, values, marker="osD"[index], markersize=3.5, label=label, **line_style(index))
    dress(axes, "", f"Off: below τ = {found.tau:g} (%)")
    axes.set_ylim(bottom=0)
    if len(places) <= LABELLED:
        axes.set_xticks(list(places), [short(m.module) for m in found.modules], rotation=75, ha="center")
    else:
        axes.set_xlabel("Module, from the input to the answer")
    legend_of(figure, loc="outside upper left", ncols=3)
    return figure


def rank_figure(found: RankUse) -> Figure:
    """Draw how the effective rank is spread over the rows."""
    figure = new_figure(WIDTH, 3.4)
    axes = figure.add_subplot()
    axes.hist(found.rows, bins=20, color=PALETTE[0], edgecolor="white", label="A bin")
    dress(axes, f"Effective rank of a row (of {found.r})", "Rows")
    return figure


def short(path: str) -> str:
    """Return "3 q_proj" for model.layers.3.self_attn.q_proj."""
    parts = path.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return f"{number} {parts[-1]}".strip()
