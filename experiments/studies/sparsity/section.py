"""The section on sparsity: the paper's table, its layer-wise panels, and curves over the threshold."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from bara_pyro.report import Column, Table
from bara_pyro.report.style import PALETTE, dress, legend_of, line_style, new_figure
from experiments.engine.results import Results
from experiments.page.parts import Part, Picture
from experiments.page.spec import shared_facts
from experiments.page.values import Value, display, spread

GATES = {"phi": "Φ", "theta": "θ", "psi": "Ψ = Φθ"}
READINGS = {
    "draw": "one draw",
    "mean": "mean gate",
    "expectation": "expectation",
}
# Of the paper's table on ARC-Challenge with Qwen2.5-7B, r = 8, 16, 32, 64 (percent).
PAPER = {
    ("phi", "lora"): (0, 0, 0, 0),
    ("phi", "bara"): (5.36, 4.91, 6.14, 5.52),
    ("theta", "lora"): (4.91, 13.62, 17.14, 20.85),
    ("theta", "bara"): (16.96, 18.12, 18.93, 20.53),
    ("psi", "lora"): (4.91, 13.62, 17.14, 20.85),
    ("psi", "bara"): (34.38, 35.49, 37.61, 39.56),
}
QUESTION = """\
Shares of entries below τ = {tau:g} in the {module} modules at the last token of {rows} test rows
({model}, {tasks}, {steps:,} training steps, {seeds}; scaling α / r = 2 at every rank). LoRA has no gate:
its activations A x stand for θ and Ψ, and its Φ counts as 0. BaRA is read in three ways: one draw of the
gates, the mean gate, and the expectation over {draws} draws. The paper's figures are for Qwen2.5-7B on
ARC-Challenge and do not say which reading they are.
"""

RANK_KEYS = ("mean", "over_rows", "over_modules", "within_modules", "entropy", "error")

Entries = Sequence[dict[str, Any]]


def facts(results: Results) -> dict[str, Any]:
    """Return what the question names."""
    tasks = dict.fromkeys(entry["task"] for entry in results.entries.values())
    return {**shared_facts(results), "tasks": ", ".join(tasks)}


def parts(results: Results) -> list[Part]:
    """Return the tables and the figures."""
    entries, about = list(results.entries.values()), results.about
    layers = "Sparsity by layer, expectation over draws; one panel a rank. LoRA: its activations A x."
    curve = (
        f"Share of entries below a threshold, mean over layers, r = {_ranks(entries)[0]}; dotted: τ of the "
        "table."
    )
    return [
        sparsity_table(entries),
        rank_table(entries),
        Picture(lambda: layer_figure(entries), "sparsity-layers", layers),
        Picture(lambda: curve_figure(entries, about["taus"], about["tau"]), "sparsity-tau", curve),
    ]


def sparsity_table(entries: Entries) -> Table:
    """Return a row a gate, method and reading, a column a rank; the paper's figures beside."""
    ranks = _ranks(entries)
    rows: list[dict[str, object]] = []
    for gate, name in GATES.items():
        for method in dict.fromkeys(entry["method"] for entry in entries):
            readings = {"expectation": "–"} if method == "lora" else READINGS
            for reading, words in readings.items():
                row: dict[str, object] = {"gate": name, "method": display(method), "reading": words}
                found = {r: _over_seeds(entries, method, r, reading, gate) for r in ranks}
                rows.append(row | {str(r): value for r, value in found.items()})
            if (gate, method) in PAPER and ranks == [8, 16, 32, 64]:
                values = {str(r): v for r, v in zip(ranks, PAPER[gate, method], strict=True)}
                rows.append({"gate": name, "method": display(method), "reading": "paper", **values})
    columns = [Column("gate", "gate"), Column("method", "method"), Column("reading", "reading")]
    columns += [Column(str(r), f"r = {r}", format=".1f") for r in ranks]
    return Table(columns, rows, "Sparsity in percent")


def rank_table(entries: Entries) -> Table:
    """Return the effective rank: mean, spread over rows and over layers."""
    rows = []
    for method in dict.fromkeys(entry["method"] for entry in entries):
        for r in _ranks(entries):
            found = [e["rank"] for e in entries if (e["method"], e["r"]) == (method, r)]
            if found:
                numbers = {key: [item.get(key) for item in found] for key in RANK_KEYS}
                cells = {key: spread([v for v in values if v is not None]) for key, values in numbers.items()}
                rows.append({"method": display(method), "r": r, **cells})
    columns = (
        Column("method", "method"),
        Column("r", "r", format="d"),
        Column("mean", "effective rank", format=".2f"),
        Column("over_rows", "spread over rows", format=".2f"),
        Column("over_modules", "over layers", format=".2f"),
        Column("within_modules", "over rows in a layer", format=".2f"),
        Column("entropy", "ρ with true entropy", format="+.2f"),
        Column("error", "ρ with error", format="+.2f"),
    )
    caption = (
        "Effective rank: units above τ, expectation; its spreads are standard deviations; ρ: Spearman's "
        "correlation over rows with the entropy of the true answer, and with whether the answer is wrong"
    )
    return Table(columns, rows, caption)


def layer_figure(entries: Entries) -> Figure:
    """Draw sparsity against the layer: a column of panels a rank, a row a method, lines for the gates."""
    ranks, methods = _ranks(entries), list(dict.fromkeys(entry["method"] for entry in entries))
    figure = new_figure(2.3 * len(ranks) + 0.6, 1.9 * len(methods) + 0.5)
    grid = figure.subplots(len(methods), len(ranks), squeeze=False, sharex=True, sharey=True)
    for row, method in enumerate(methods):
        for column, r in enumerate(ranks):
            axes = grid[row, column]
            found = [e for e in entries if (e["method"], e["r"]) == (method, r)]
            for index, (gate, name) in enumerate(GATES.items()):
                if found and not (method == "lora" and gate != "theta"):
                    by_layer = [
                        mean(v)
                        for v in zip(*(e["expectation"]["by_module"][gate] for e in found), strict=True)
                    ]
                    label = "A x" if method == "lora" else name
                    axes.plot(
                        range(len(by_layer)),
                        by_layer,
                        marker="osD"[index],
                        markersize=3.5,
                        label=label,
                        **line_style(index),
                    )
            dress(
                axes,
                "Layer" if row == len(methods) - 1 else "",
                f"{display(method)}\nsparsity (%)" if column == 0 else "",
                f"r = {r}" if row == 0 else "",
            )
            axes.set_ylim(0, 100)
            axes.xaxis.get_major_locator().set_params(integer=True)
    for row in range(len(methods)):
        legend_of(grid[row, -1], loc="upper right")
    return figure


def curve_figure(entries: Entries, taus: Sequence[float], tau: float) -> Figure:
    """Draw sparsity against the threshold, a panel a method, at the smallest rank."""
    methods = list(dict.fromkeys(entry["method"] for entry in entries))
    figure = new_figure(3.0 * len(methods) + 0.4, 2.9)
    r = _ranks(entries)[0]
    for axes, method in zip(
        figure.subplots(1, len(methods), squeeze=False, sharey=True)[0], methods, strict=True
    ):
        found = [e["curve"] for e in entries if (e["method"], e["r"]) == (method, r)]
        for index, (gate, name) in enumerate(GATES.items()):
            if found and not (method == "lora" and gate != "theta"):
                values = [mean(v) for v in zip(*(curve[gate] for curve in found), strict=True)]
                label = "A x" if method == "lora" else name
                axes.plot(taus, values, marker="osD"[index], markersize=3.5, label=label, **line_style(index))
        axes.axvline(tau, color=PALETTE[-1], linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_ylim(0, 100)
        dress(axes, "Threshold τ", "Entries below τ (%)" if axes is figure.axes[0] else "", display(method))
        legend_of(axes, loc="upper left")
    return figure


def _ranks(entries: Entries) -> list[int]:
    return sorted({entry["r"] for entry in entries})


def _over_seeds(entries: Entries, method: str, r: int, reading: str, gate: str) -> Value:
    by_seed = defaultdict(list)
    for entry in entries:
        if (entry["method"], entry["r"]) == (method, r) and gate in entry[reading]["overall"]:
            by_seed[entry["seed"]].append(entry[reading]["overall"][gate])
    return spread([mean(found) for found in by_seed.values()])
