"""Sparsity of Phi, theta and their product by rank and layer: the paper's table and its four panels.

    python -m experiments sparsity
    python -m experiments sparsity --model FOLDER --tasks arc_challenge --data-dir FOLDER --seeds 1

Trains LoRA and both forms of BaRA at each rank (the scaling alpha / r stays at 2) with the settings that the
search chose at r = 8, and looks at the value projections at the last token of test rows. Three readings of
BaRA's gates are given: one draw, the mean gate, and the expectation over draws.
"""

import math
from argparse import Namespace
from collections.abc import Sequence
from operator import itemgetter
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from bara_pyro.core.gate_draws import GateDraws
from bara_pyro.data import EncodedSplit, first_rows
from bara_pyro.diagnostics.gates.rank import effective_rank, rank_summary, relation
from bara_pyro.diagnostics.gates.sparsity import gate_sparsity, sparsity_curve
from bara_pyro.metrics import posterior_predictive
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from bara_pyro.runs.evaluate import system_gates, true_probabilities
from bara_pyro.runs.system import System
from experiments.engine.arguments import option
from experiments.engine.methods import tagged
from experiments.engine.results import Results, distinct, having
from experiments.engine.search import chosen_job
from experiments.engine.sweep import Job
from experiments.page.figures import PAGE, marked
from experiments.page.parts import Part, Picture
from experiments.page.spec import look_study
from experiments.page.tables import spread_table
from experiments.page.values import Value, display, spread

RANKS, TAUS = (8, 16, 32, 64), (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
GATES = {"phi": "Φ", "theta": "θ", "psi": "Ψ = Φθ"}
READINGS = {"draw": ("one draw", 1), "mean": ("mean gate", 0), "expectation": ("expectation", 20)}
"""What each is called, and its number of draws."""
# Of the paper's table on ARC-Challenge with Qwen2.5-7B, r = 8, 16, 32, 64 (percent).
PAPER = {
    ("phi", "lora"): (0, 0, 0, 0),
    ("phi", "bara"): (5.36, 4.91, 6.14, 5.52),
    ("theta", "lora"): (4.91, 13.62, 17.14, 20.85),
    ("theta", "bara"): (16.96, 18.12, 18.93, 20.53),
    ("psi", "lora"): (4.91, 13.62, 17.14, 20.85),
    ("psi", "bara"): (34.38, 35.49, 37.61, 39.56),
}
SETUP = """\
Shares of entries below τ = {tau:g} in the {module} modules, at the last token of {rows} test rows ({model},
{tasks}, {steps:,} training steps, {seeds}; scaling α / r = 2 at every rank). LoRA has no gate: its
activations A x are shown as θ and Ψ = Φθ, and its Φ counts as 0. BaRA is read in three ways: one draw of
the gates, the mean gate, and the expectation over {draws} draws. The paper's figures are for Qwen2.5-7B on
ARC-Challenge and do not name their reading.
"""
RANK = (
    Column("method", "method"),
    Column("r", "r", format="d"),
    Column("mean", "effective rank", format=".2f"),
    Column("over_rows", "spread over rows", format=".2f"),
    Column("over_modules", "over layers", format=".2f"),
    Column("within_modules", "over rows in a layer", format=".2f"),
    Column("entropy", "ρ with true entropy", format="+.2f"),
    Column("error", "ρ with error", format="+.2f"),
)

Entries = Sequence[dict[str, Any]]


def jobs(args: Namespace) -> dict[tuple[Any, ...], Job]:
    """Return each method at each rank."""
    return {
        (method, r, task, seed): chosen_job(
            args, method, task, seed, {"adapter.r": r, "adapter.lora_alpha": 2.0 * r}
        )
        for seed in range(args.seeds)
        for task in args.tasks
        for method in args.methods
        for r in args.ranks
    }


def look(system: System, args: Namespace) -> dict[str, Any]:
    """Return what the gates of a fitted system do on test rows.

    Returns:
        `layers`: paths of the modules looked at; per reading `overall` and `by_module` percentages of phi,
        theta and psi; `curve`: those of the expectation at each of `TAUS`; `rank`: mean and spreads of the
        effective rank (units), and its rank correlation over rows with `entropy` (true, of the answer) and
        `error`.
    """
    rows = first_rows(system.split("test"), args.rows)
    modules = [t.path for t in system.model.targets if t.path.rsplit(".", 1)[-1] == args.module]
    gates = {
        reading: system_gates(system, rows, samples, modules=modules or None)
        for reading, (_, samples) in READINGS.items()
    }
    draws = gates["expectation"]
    rank = effective_rank(draws, args.tau)
    return {
        "layers": modules,
        **{reading: _percent(found, args.tau) for reading, found in gates.items()},
        "curve": {k: v.tolist() for k, v in sparsity_curve(draws, TAUS).items()},
        "rank": {**vars(rank_summary(rank)), **_relations(system, rows, draws, rank)},
    }


def _relations(system: System, rows: EncodedSplit, draws: GateDraws, rank: Tensor) -> dict[str, float | None]:
    """Return Spearman's correlation of the effective rank of rows with how hard they are; None if unknown."""
    averaged = posterior_predictive(draws.log_probs)
    entropy = torch.special.entr(true_probabilities(system, rows, "test")).sum(-1)
    wrong = (averaged.argmax(-1) != torch.tensor(rows.labels)).double()
    found = {}
    for name, values in (("entropy", entropy), ("error", wrong)):
        known = int((~values.isnan()).sum()) > 2
        rho = relation(rank, values, name).rho if known else math.nan
        found[name] = None if math.isnan(rho) else rho
    return found


def _percent(draws: GateDraws, tau: float) -> dict[str, Any]:
    found = gate_sparsity(draws, tau)
    by_module = {name: values.tolist() for name, values in found.by_module.items()}
    return {"overall": found.overall, "by_module": by_module}


def parts(results: Results) -> list[Part]:
    """Return the tables and the figure."""
    entries = list(results.entries.values())
    layers = "Sparsity by layer, expectation over draws; one panel a rank. LoRA: its activations A x."
    return [
        sparsity_table(entries),
        rank_table(entries),
        Picture(lambda: layer_figure(entries), "sparsity-layers", layers),
    ]


def sparsity_table(entries: Entries) -> Table:
    """Return a row a gate, method and reading, a column a rank; the paper's figures beside."""
    ranks = _ranks(entries)
    rows: list[dict[str, object]] = []
    for gate, name in GATES.items():
        for method in distinct(entries, "method"):
            about = {"gate": name, "method": display(method)}
            for reading, (words, _) in READINGS.items():
                if method != "lora" or reading == "expectation":
                    found = {str(r): _over_seeds(entries, method, r, reading, gate) for r in ranks}
                    rows.append({**about, "reading": "–" if method == "lora" else words, **found})
            if (gate, method) in PAPER and ranks == [8, 16, 32, 64]:
                values = {str(r): v for r, v in zip(ranks, PAPER[gate, method], strict=True)}
                rows.append({**about, "reading": "paper", **values})
    columns = [Column("gate", "gate"), Column("method", "method"), Column("reading", "reading")]
    columns += [Column(str(r), f"r = {r}", format=".1f") for r in ranks]
    return Table(columns, rows, "Sparsity in percent")


def rank_table(entries: Entries) -> Table:
    """Return the effective rank: mean, spread over rows and over layers."""
    flat = [
        {"method": display(e["method"]), "r": e["r"], **e["rank"]}
        for method in distinct(entries, "method")
        for e in sorted(having(entries, method=method), key=itemgetter("r"))
    ]
    caption = (
        "Effective rank: units above τ, expectation; its spreads are standard deviations; ρ: Spearman's "
        "correlation over rows with the entropy of the true answer, and with whether the answer is wrong"
    )
    return spread_table(flat, RANK, ("method", "r"), caption)


def layer_figure(entries: Entries) -> Figure:
    """Draw sparsity against the layer: a column of panels a rank, a row a method, lines for the gates."""
    ranks, methods = _ranks(entries), distinct(entries, "method")
    figure = new_figure(PAGE, 1.9 * len(methods) + 0.5)
    grid = figure.subplots(len(methods), len(ranks), squeeze=False, sharex=True, sharey=True)
    for row, method in enumerate(methods):
        for column, r in enumerate(ranks):
            axes = grid[row, column]
            found = having(entries, method=method, r=r)
            _draw_gates(axes, method, [e["expectation"]["by_module"] for e in found])
            below, beside = "" if row < len(methods) - 1 else "Layer", f"{display(method)}\nsparsity (%)"
            dress(axes, below, "" if column else beside, "" if row else f"r = {r}")
            axes.set_ylim(0, 100)
            axes.xaxis.get_major_locator().set_params(integer=True)
    for row in range(len(methods)):
        legend_of(grid[row, -1], loc="upper right")
    return figure


def _draw_gates(axes: Axes, method: str, found: Sequence[dict[str, Any]]) -> None:
    """Draw the mean over runs of what each gate has; of LoRA its activations alone."""
    for index, (gate, name) in enumerate(GATES.items()):
        if found and (method != "lora" or gate == "theta"):
            values = [mean(numbers) for numbers in zip(*(run[gate] for run in found), strict=True)]
            label = "A x" if method == "lora" else name
            axes.plot(range(len(values)), values, label=label, **marked(index, 3.5))


def _ranks(entries: Entries) -> list[int]:
    return sorted(distinct(entries, "r"))


def _over_seeds(entries: Entries, method: str, r: int, reading: str, gate: str) -> Value:
    found = [e for e in having(entries, method=method, r=r) if gate in e[reading]["overall"]]
    seeds = distinct(found, "seed")
    return spread([mean(e[reading]["overall"][gate] for e in having(found, seed=seed)) for seed in seeds])


STUDY = look_study(
    "sparsity",
    __doc__,
    "Do the gates become sparse?",
    SETUP,
    look,
    parts,
    jobs=jobs,
    place=("method", "r", "task", "seed"),
    methods=tagged("reference", "ours"),
    tasks=("micro-arcc",),
    seeds=1,
    options={
        "--ranks": option(RANKS, "of the adapters"),
        "--tau": option(0.1, "threshold, the paper's"),
        "--rows": option(256, "test rows to look at"),
        "--module": option("v_proj", "last name of the modules to look at"),
    },
    kept=("tau", "module", "rows"),
    constants={"taus": list(TAUS), "draws": READINGS["expectation"][1]},
)
