"""Use of the rank: sparsity by module, effective rank by row, and its correlations."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.diagnostics import Result
from bara_pyro.diagnostics.context import Context
from bara_pyro.diagnostics.parts import pairs
from bara_pyro.diagnostics.sparsity import (
    RankCorrelation,
    RankSummary,
    Sparsity,
    SupportRelation,
    effective_rank,
    gate_sparsity,
    rank_summary,
    relation,
    spread,
    support_relation,
)
from bara_pyro.metrics import posterior_predictive
from bara_pyro.report.html import Block, Picture, Section
from bara_pyro.report.style import PALETTE, WIDTH, dress, legend_of, line_style, new_figure
from bara_pyro.report.table import Column, Table
from bara_pyro.runs.evaluate import system_gates

TRUE_AMBIGUITY, ERROR, ENTROPY = "true ambiguity (entropy of the true answer)", "error", "predicted entropy"


class ModuleUse(Result):
    """Sparsity and effective rank of one adapted module."""

    module: str  # path of the module
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percentage of gates that are off
    rank: float  # mean effective rank over rows
    spread: float  # standard deviation of the effective rank over rows


class RankUse(Result):
    """How much of the rank a run uses."""

    gates: bool  # False for LoRA, whose activations `A x` take the place of gates
    tau: float  # a gate below this threshold is off
    r: int  # rank of the adapters
    draws: int  # number of draws that percentages are averaged over
    modules: list[ModuleUse]  # in the model's order
    sparsity: dict[str, float]  # "phi", "theta", "psi" -> percentage off, over all modules
    summary: RankSummary  # summary of the effective rank
    rows: list[float]  # effective rank of each row, mean over modules
    relations: list[RankCorrelation]  # correlations of the effective rank with properties of the rows
    readings: dict[str, dict[str, float]]  # sparsity by each of three definitions; empty without gates
    support: SupportRelation | None  # None without both kinds of gates


def rank_use(c: Context) -> RankUse | None:
    """Return how much of the rank a run uses; None for methods with neither gates nor activations `A x`."""
    if c.gates is None:
        return None
    tau = c.options.tau
    expected, rank = gate_sparsity(c.gates, tau), effective_rank(c.gates, tau)
    both = c.has_gates and c.gates.phi is not None and c.gates.theta is not None
    return RankUse(
        gates=c.has_gates,
        tau=tau,
        r=c.system.model.r,
        draws=len(c.gates.log_probs),
        modules=[
            ModuleUse(
                module=path,
                sparsity={name: float(values[i]) for name, values in expected.by_module.items()},
                rank=float(rank[:, i].mean()),
                spread=spread(rank[:, i]),
            )
            for i, path in enumerate(expected.modules)
        ],
        sparsity=expected.overall,
        summary=rank_summary(rank),
        rows=rank.mean(dim=1).tolist(),
        relations=_relations(c, rank),
        readings=_readings(c, expected) if c.has_gates else {},
        support=support_relation(c.gates, tau, tau) if both else None,
    )


def _relations(c: Context, rank: Tensor) -> list[RankCorrelation]:
    """Correlate the effective rank of rows with error, predicted entropy and (if known) true ambiguity."""
    averaged = posterior_predictive(c.log_probs)
    wrong = (averaged.argmax(-1) != c.labels).double()
    targets = [(ERROR, wrong), (ENTROPY, torch.special.entr(averaged.exp()).sum(-1))]
    true_entropy = torch.special.entr(c.truth).sum(-1)
    if int((~true_entropy.isnan()).sum()) > 2:
        targets.insert(0, (TRUE_AMBIGUITY, true_entropy))
    return [relation(rank, values, name) for name, values in targets] if len(rank) > 2 else []


def _readings(c: Context, expected: Sparsity) -> dict[str, dict[str, float]]:
    """Return the sparsity by each interpretation of the paper's definition; `expected` is the first."""
    readings = {"expectation over draws": expected.overall}
    for name, samples in (("one draw", 1), ("mean gate", 0)):
        readings[name] = gate_sparsity(system_gates(c.system, c.rows, samples), c.options.tau).overall
    return readings


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
LABELLED = 24  # the most modules that fit as names on an axis
DOUBT = {
    1: "Questions with uncertain answers use more directions.",
    0: "The number does not clearly depend on how certain the answer is.",
    -1: "Questions with uncertain answers use fewer directions.",
}


def render_rank(found: RankUse) -> Section:
    """Return the section with the sparsity by module, the effective rank of rows and its correlations."""
    summary = found.summary
    technical = [
        f"The mean effective rank is {summary.mean:.2f} of {found.r}, with a standard deviation of "
        f"{summary.over_rows:.2f} over rows and {summary.over_modules:.2f} over modules.",
        *(_sentence(x) for x in found.relations if not math.isnan(x.rho)),  # NaN: all rows alike
    ]
    rows = [{**m.sparsity, **m.model_dump(include={"module", "rank", "spread"})} for m in found.modules]
    tables = [Table(MODULES, rows, f"Share of gates below τ = {found.tau:g}, and effective rank")]
    if found.relations:
        rows = [{"what": f"{x.verdict} {x.with_}", **vars(x)} for x in found.relations]
        tables.append(Table(RELATIONS, rows, "Rank correlations over rows, with 95 % bootstrap intervals"))
    if found.readings:
        in_a_draw, at_mean = (found.readings[k]["psi"] for k in ("expectation over draws", "mean gate"))
        technical.append(
            f"{in_a_draw:.1f} % of the gates are off in a draw and {at_mean:.1f} % in the mean gate; the "
            "difference is due to the spread of the draws."
        )
        rows = [{"reading": name, **values} for name, values in found.readings.items()]
        tables.append(
            Table((Column("reading", "definition"), *SPARSITY), rows, "Sparsity by three definitions")
        )
    if found.support is not None:
        tables.append(_support(found.support))
    blocks: list[Block] = [*_pictures(found), _words(found), *tables]
    return Section("Effective rank", blocks, _plain(found), technical)


def _plain(use: RankUse) -> str:
    rank = f"{use.summary.mean:.1f} of the {use.r}"
    if not use.gates:
        return (
            f"LoRA has no gates. For comparison with methods that have gates: its activations are above the "
            f"threshold in {rank} directions of an adapter."
        )
    words = (
        f"On average a question uses {rank} directions of an adapter; the gates of the others are nearly off."
    )
    doubt = [x for x in use.relations if x.with_ == ENTROPY and not math.isnan(x.rho)]
    if not doubt:
        return words
    direction = 1 if doubt[0].low > 0 else -1 if doubt[0].high < 0 else 0
    return f"{words} {DOUBT[direction]}"


def _words(use: RankUse) -> str:
    if not use.gates:
        return (
            f"LoRA has no gates. Its activations A x take their place and count as off below {use.tau:g}; "
            "none of Φ counts as off."
        )
    return (
        f"A gate counts as off below {use.tau:g}. Percentages are averages over {use.draws} draws at the "
        "last token. The effective rank of a row is the average number of units that are on."
    )


def _sentence(x: RankCorrelation) -> str:
    if math.isnan(x.low):
        return f"The effective rank {x.verdict} {x.with_}: too few rows differ."
    return (
        f"The effective rank {x.verdict} {x.with_}: ρ = {x.rho:+.2f}, 95 % interval {x.low:+.2f} to "
        f"{x.high:+.2f}."
    )


def _support(s: SupportRelation) -> Table:
    rows = (
        ("units with Φ above τ", s.phi),
        ("units with θ above τ", s.theta),
        (f"units with Φθ above τ² = {s.tau_product:g}", s.product),
        ("of these, supports outside that of Φ or θ (%)", s.broken),
        (f"units with Φθ above the sound threshold {s.tau_sound:.3g}", s.sound),
        ("of these, supports outside that of Φ or θ (%)", s.broken_sound),
    )
    return pairs(rows, ("quantity", "mean"), "Proposition 1: the support of the product and of its factors")


def _pictures(use: RankUse) -> list[Picture]:
    return [
        Picture(
            sparsity_figure(use),
            f"Share of gates below {use.tau:g} in each of {len(use.modules)} modules.",
            "Share of gates that are off, by module, from the input to the answer.",
            "sparsity",
        ),
        Picture(
            rank_figure(use),
            f"Histogram of the effective rank of {len(use.rows)} rows, with mean {use.summary.mean:.2f}.",
            "Effective rank of each row, averaged over modules.",
            "effective_rank",
        ),
    ]


def sparsity_figure(found: RankUse) -> Figure:
    """Plot the share of gates that are off, by module."""
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
    """Plot a histogram of the effective rank over rows."""
    figure = new_figure(WIDTH, 3.4)
    axes = figure.add_subplot()
    axes.hist(found.rows, bins=20, color=PALETTE[0], edgecolor="white", label="A bin")
    dress(axes, f"Effective rank of a row (of {found.r})", "Rows")
    return figure


def short(path: str) -> str:
    """Return the short name of a module: "3 q_proj" for model.layers.3.self_attn.q_proj."""
    parts = path.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return f"{number} {parts[-1]}".strip()
