"""Where the rank goes: sparsity by layer, the effective rank by row, and what it goes with."""

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.diagnostics.gates.rank import (
    Relation,
    effective_rank,
    rank_summary,
    relation,
    support_relation,
)
from bara_pyro.diagnostics.gates.sparsity import Sparsity, gate_sparsity
from bara_pyro.diagnostics.page.context import Context, Part
from bara_pyro.metrics import posterior_predictive
from bara_pyro.report import Column, Picture, Section, Table
from bara_pyro.report.style import PALETTE, dress, legend_of, line_style, new_figure
from bara_pyro.runs.evaluate import system_gates

NAMES = {"phi": "Φ", "theta": "θ", "psi": "Φθ"}
ACTIVATIONS = {"theta": "A x"}
SPARSITY = (
    Column("module", "module"),
    Column("phi", "Φ", "%", ".1f"),
    Column("theta", "θ", "%", ".1f"),
    Column("psi", "Φθ", "%", ".1f"),
    Column("rank", "effective rank", format=".2f"),
    Column("spread", "spread over rows", format=".2f"),
)
RELATIONS = (
    Column("with", "the effective rank"),
    Column("rho", "Spearman's ρ", format="+.2f"),
    Column("low", "from", format="+.2f"),
    Column("high", "to", format="+.2f"),
    Column("rows", "rows", format="d"),
)


def where_the_rank_goes(c: Context) -> Part | None:
    """Return the part on sparsity and effective rank; nothing for methods without gates or one A x."""
    if c.gates is None:
        return None
    tau, r = c.options.tau, c.system.model.r
    expected = gate_sparsity(c.gates, tau)
    rank = effective_rank(c.gates, tau)
    summary = rank_summary(rank)
    relations = _relations(c, rank)
    words = [
        f"A gate counts as off below {tau:g}. Percentages are expectations over {len(c.gates.log_probs)} "
        "draws at the last token; the effective rank of a row is the expected number of units that are on."
    ]
    if not c.has_gates:
        words = [f"LoRA has no gates: these are its activations A x, off below {tau:g}; Φ counts as 0."]
    tables = [_by_module(expected, rank)]
    findings = [
        f"Effective rank {summary.mean:.2f} of {r}; from row to row it varies by {summary.over_rows:.2f} "
        f"(standard deviation), from module to module by {summary.over_modules:.2f}."
    ]
    if relations:
        rows = [{"with": f"{x.verdict} {x.with_}", **vars(x)} for x in relations]
        tables.append(Table(RELATIONS, rows, "What it goes with, over rows (95 % bootstrap intervals)"))
        findings += [
            f"The effective rank {x.verdict} {x.with_} (ρ = {x.rho:+.2f} [{x.low:+.2f}, {x.high:+.2f}])."
            for x in relations
            if not math.isnan(x.rho)  # all rows alike: the table says so
        ]
    data = {"sparsity": expected.overall, "effective_rank": vars(summary)}
    data["relations"] = {x.with_: {"rho": x.rho, "low": x.low, "high": x.high} for x in relations}
    if c.has_gates:
        more, sentence, numbers = _of_gates(c, c.gates)
        tables += more
        findings.append(sentence)
        data |= numbers
    picture = Picture(
        _figure(expected, rank, r, c.has_gates),
        "Sparsity of each module, and how the effective rank is spread over rows.",
        "Left: share of gates that are off, by module. Right: effective rank of the rows, mean over modules.",
    )
    section = Section("Where the rank goes", words, tables, [picture])
    return Part(section, tuple(findings), data, {"rank": picture})


def _relations(c: Context, rank: Tensor) -> list[Relation]:
    """Relate the effective rank to how hard a row is, as far as that is known."""
    averaged = posterior_predictive(c.log_probs)
    wrong = (averaged.argmax(-1) != c.labels).double()
    entropy = torch.special.entr(averaged.exp()).sum(-1)
    found = [("error", wrong), ("predicted entropy", entropy)]
    true_entropy = torch.special.entr(c.truth).sum(-1)
    if int((~true_entropy.isnan()).sum()) > 2:
        found.insert(0, ("true ambiguity (entropy of the true answer)", true_entropy))
    return [relation(rank, values, name) for name, values in found] if len(rank) > 2 else []


def _by_module(found: Sparsity, rank: Tensor) -> Table:
    rows = []
    for i, path in enumerate(found.modules):
        row = {"module": path, **{name: float(values[i]) for name, values in found.by_module.items()}}
        spread = float(rank[:, i].std()) if len(rank) > 1 else 0.0
        rows.append(row | {"rank": float(rank[:, i].mean()), "spread": spread})
    return Table(SPARSITY, rows, f"Sparsity at τ = {found.tau:g}, and effective rank")


def _of_gates(c: Context, gates: GateDraws) -> tuple[list[Table], str, dict]:
    """Return the three readings of sparsity, and the support relation where there are both gates."""
    tau = c.options.tau
    readings = {"expectation over draws": gate_sparsity(gates, tau).overall}
    for name, samples in (("one draw", 1), ("mean gate", 0)):
        readings[name] = gate_sparsity(system_gates(c.system, c.rows, samples), tau).overall
    columns = (Column("reading", "reading"), *SPARSITY[1:4])
    tables = [
        Table(columns, [{"reading": k, **v} for k, v in readings.items()], "Three readings of sparsity")
    ]
    data = {"readings": readings}
    mean_gate, expected = readings["mean gate"]["psi"], readings["expectation over draws"]["psi"]
    sentence = (
        f"{expected:.1f} % of the gates are off in a draw, {mean_gate:.1f} % in the mean gate: the rest of "
        "it is the draws' noise, which closes a gate at random."
    )
    if gates.phi is not None and gates.theta is not None:
        s = support_relation(gates, tau, tau)
        data["support"] = vars(s)
        rows = [
            {"what": "units with Φ above τ", "value": s.phi},
            {"what": "units with θ above τ", "value": s.theta},
            {"what": f"units with Φθ above τ² = {s.tau_product:g}", "value": s.product},
            {"what": "of these supports, not within both factors' (%)", "value": s.broken},
            {"what": f"units with Φθ above the sound threshold {s.tau_sound:.3g}", "value": s.sound},
            {"what": "of these supports, not within both factors' (%)", "value": s.broken_sound},
        ]
        shown = (Column("what", ""), Column("value", "mean", format=".2f"))
        tables.append(Table(shown, rows, "Proposition 1: the support of the product and of its factors"))
    return tables, sentence, data


def _figure(found: Sparsity, rank: Tensor, r: int, gates: bool) -> Figure:
    figure = new_figure(9.5, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    places = range(len(found.modules))
    names = NAMES if gates else ACTIVATIONS
    for index, (gate, label) in enumerate(names.items()):
        if gate in found.by_module:
            values = found.by_module[gate].tolist()
            left.plot(places, values, marker="osD"[index], markersize=3.5, label=label, **line_style(index))
    dress(left, "Module, from the input to the answer", f"Off: below τ = {found.tau:g} (%)")
    left.set_ylim(bottom=0)
    if len(places) <= 16:
        left.set_xticks(list(places), [_short(path) for path in found.modules], rotation=60, ha="right")
    legend_of(figure, loc="outside upper left", ncols=3)
    right.hist(rank.mean(dim=1).numpy(), bins=20, color=PALETTE[0], edgecolor="white")
    dress(right, f"Effective rank of a row (of {r})", "Rows")
    return figure


def _short(path: str) -> str:
    """Return "3 q_proj" for model.layers.3.self_attn.q_proj."""
    parts = path.split(".")
    number = next((part for part in parts if part.isdigit()), "")
    return f"{number} {parts[-1]}".strip()
