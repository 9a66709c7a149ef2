"""The paper's tables: which runs each needs, and how it is read from their records, in the paper's layout."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bara_pyro.report import Column, Table
from experiments.paper.protocol import ARMS, DATASETS, SHIFTED, SHIFTED_FROM, TRAINED_ON, Run, Settings
from experiments.paper.runs import Record

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
METRICS = {"acc": "ACC (%, higher is better)", "ece": "ECE (%, lower is better)", "nll": "NLL (nats, lower)"}
BARA = ("bara-paper", "bara")
RANKS = (8, 16, 32, 64)
PRIORS = ((0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
LATENTS = ("phi", "theta", "phi*theta")
AVERAGE = "average"

Records = Mapping[str, Record]
Variants = Mapping[str, Settings]
Read = Callable[[Record], float | None]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        title: what it shows.
        arms: the arms that it has.
        tasks: data sets to train on.
        variants: name -> settings of what it varies; an empty name is the arm itself.
        render: makes the tables from the records and the arms asked for.
        shifted: data sets that the runs are also tested on.
        gates: whether it shows the sparsity of gates.
    """

    title: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    render: Callable[[Records, Sequence[str]], list[Table]]
    variants: Callable[[str], Variants] = lambda arm: {"": {}}
    shifted: tuple[str, ...] = ()
    gates: bool = False

    def runs(self, arms: Iterable[str], seeds: int) -> list[Run]:
        """Return the runs of these arms, seed by seed: an interrupted table is one of fewer seeds."""
        return [
            Run(arm, task, seed, name, settings, self.shifted, self.gates)
            for seed in range(seeds)
            for task in self.tasks
            for arm in self.arms
            if arm in arms
            for name, settings in self.variants(arm).items()
        ]


def runs_of(tables: Iterable[str], arms: Sequence[str], seeds: int) -> list[Run]:
    """Return the runs of several tables; a run that two of them need is one."""
    found: dict[str, Run] = {}
    for run in (run for table in tables for run in TABLES[table].runs(arms, seeds)):
        known = found.get(run.name, run)
        shifted = tuple(dict.fromkeys((*known.shifted, *run.shifted)))
        found[run.name] = replace(run, shifted=shifted, gates=known.gates or run.gates)
    return list(found.values())


# Reading the records -----------------------------------------------------------------------------------


def score(metric: str, shifted: str | None = None) -> Read:
    """Return what reads a score under the most draws, of a shifted data set if one is named."""

    def read(record: Record) -> float | None:
        scores = record["scores"] if shifted is None else record["shifted"].get(shifted)
        if not scores:
            return None
        value = scores[max(scores, key=int)][metric]
        return float("inf") if value is None else value  # JSON has no infinity

    return read


def over_seeds(found: Sequence[Record], read: Read) -> Any:
    """Return a cell: mean and standard deviation over seeds, and how many runs failed."""
    failed = sum("failed" in record for record in found)
    values = [value for record in found if "failed" not in record and (value := read(record)) is not None]
    if not values:
        return "failed" if failed else None
    cell = values[0] if len(values) == 1 else (mean(values), stdev(values))
    if not failed:
        return cell
    shown = f"{cell:.2f}" if isinstance(cell, float) else f"{cell[0]:.2f} ± {cell[1]:.2f}"
    return f"{shown} ({failed} failed)"


def having(records: Records, arm: str, task: str, variant: str = "") -> list[Record]:
    """Return the records of an arm on a data set."""
    place = (arm, task, variant)
    return [r for r in records.values() if (r["arm"], r["task"], r["variant"]) == place]


def over_tasks(records: Records, arm: str, read: Read, variant: str = "") -> float | None:
    """Return the mean over the six data sets of the means over seeds; None while one has no score."""
    cells = [over_seeds(having(records, arm, task, variant), read) for task in TRAINED_ON]
    return _mean(cells)


def _mean(cells: Sequence[Any]) -> float | None:
    numbers = [cell[0] if isinstance(cell, tuple) else cell for cell in cells]
    return mean(numbers) if all(isinstance(number, float) for number in numbers) else None


def parameters(records: Iterable[Record]) -> float | None:
    """Return the trainable parameters in millions."""
    return next((r["parameters"] / 1e6 for r in records if "failed" not in r), None)


# The tables --------------------------------------------------------------------------------------------


def _with_paper(
    arms: Sequence[str], row: Callable[[str], dict[str, Any]], paper: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of the arms, each paper's method below the last arm that stands for it."""
    rows = []
    for place, arm in enumerate(arms):
        rows.append({"name": ARMS[arm].name, "from": "here", **row(arm)})
        name = ARMS[arm].paper
        if all(ARMS[later].paper != name for later in arms[place + 1 :]):
            rows.append({"name": name, "from": "paper", **paper(name)})
    return rows


PAPER = {"name": "BaRA", "from": "paper"}
NAMED = (Column("name", "method"), Column("from", "from"))


def scores_tables(
    records: Records, arms: Sequence[str], *, name: str, tested: Sequence[str], averaged: Sequence[str]
) -> list[Table]:
    """Return a table a metric, a row a method and a column a data set."""
    columns = [*NAMED, Column("params", "params (M)", format=".3f")]
    columns += [Column(task, DATASETS[task].name) for task in tested] + [Column(AVERAGE, "average")]
    tables = []
    for metric, heading in METRICS.items():

        def row(arm: str, metric: str = metric) -> dict[str, Any]:
            cells = {}
            for task in tested:
                trained, other = (task, None) if name == "in_distribution" else (SHIFTED_FROM, task)
                read = score(metric, None if trained == task else other)
                cells[task] = over_seeds(having(records, arm, trained), read)
            params = parameters(r for r in records.values() if r["arm"] == arm and not r["variant"])
            return {"params": params, **cells, AVERAGE: _mean([cells[task] for task in averaged])}

        def theirs(method: str, metric: str = metric) -> dict[str, Any]:
            found = PUBLISHED[name][metric][method]
            return dict(zip(("params", *tested, AVERAGE), found, strict=True))

        tables.append(Table(columns, _with_paper(arms, row, theirs), heading))
    return tables


def _three(records: Records, arm: str, read: Callable[..., Any], variant: str = "") -> dict[str, Any]:
    return {metric: read(records, arm, score(metric), variant) for metric in METRICS}


SHORT = [Column(m, m.upper(), "nats" if m == "nll" else "%") for m in METRICS]


def efficiency_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return memory and times on WG-S."""
    reads: dict[str, Read] = {
        "memory": lambda r: r.get("peak_gib"),
        "train": lambda r: r["seconds"]["train"],
        "evaluate": lambda r: r["seconds"]["evaluate"],
    }
    columns = [
        *NAMED,
        Column("memory", "peak GPU memory", "GiB"),
        Column("train", "training", "s", ".0f"),
        Column("evaluate", "inference", "s", ".0f"),
    ]

    def row(arm: str) -> dict[str, Any]:
        return {key: over_seeds(having(records, arm, "winogrande_s"), read) for key, read in reads.items()}

    rows = _with_paper(arms, row, lambda name: _published("efficiency", name, reads))
    caption = "WG-S. Inference is S = 0 and the most draws together; the paper's GPU is an RTX PRO 6000"
    return [Table(columns, rows, caption)]


def _published(table: str, name: str, keys: Iterable[str]) -> dict[str, Any]:
    return dict(zip(keys, PUBLISHED[table][name], strict=True))


def prior_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA on WG-S under five priors."""
    keys = ("sparsity", *METRICS)
    rows = []
    for name in map(_prior_name, PRIORS):
        variant = "" if name == _prior_name((1.0, 1.0)) else name
        for arm in arms:
            found = having(records, arm, "winogrande_s", variant)
            cells = {metric: over_seeds(found, score(metric)) for metric in METRICS}
            cells["sparsity"] = over_seeds(found, lambda r: r["sparsity"].get("psi"))
            rows.append({"prior": name, "name": ARMS[arm].name, "from": "here", **cells})
        rows.append({"prior": name, **PAPER, **_published("prior", name, keys)})
    columns = [Column("prior", "prior"), *NAMED, Column("sparsity", "sparsity", "%"), *SHORT]
    return [Table(columns, rows, "WG-S. Sparsity here: share of products Phi theta below 0.1")]


def _prior_name(prior: tuple[float, float]) -> str:
    return f"Gamma({prior[0]}, {prior[1]})"


def prior_variants(arm: str) -> Variants:
    """Return the priors of both gates."""
    found: dict[str, Settings] = {}
    for prior in PRIORS:
        gamma = {"name": "gamma", "concentration": prior[0], "rate": prior[1]}
        own = prior == (1.0, 1.0)
        found["" if own else _prior_name(prior)] = (
            {} if own else {"method.phi_prior": gamma, "method.theta_prior": gamma}
        )
    return found


def hierarchy_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA with global gates, local gates or both, averaged over the six data sets."""
    rows = []
    for latent in LATENTS:
        variant = "" if latent == LATENTS[-1] else latent
        for arm in arms:
            found = _three(records, arm, over_tasks, variant)
            rows.append({"latent": latent, "name": ARMS[arm].name, "from": "here", **found})
        rows.append({"latent": latent, **PAPER, **_published("hierarchy", latent, METRICS)})
    return [Table([Column("latent", "gates"), *NAMED, *SHORT], rows, "Averages over the six data sets")]


def rank_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA at rank 8 beside two rivals at rank 16, averaged over the six data sets."""

    def row(arm: str) -> dict[str, Any]:
        variant = "" if arm in BARA else "r16"
        own = (r for r in records.values() if (r["arm"], r["variant"]) == (arm, variant))
        return {"params": parameters(own), **_three(records, arm, over_tasks, variant)}

    rows = _with_paper(arms, row, lambda name: _published("rank", name, ("params", *METRICS)))
    caption = "Averages over the six data sets; ScalaBL and BLoB have rank 16"
    return [Table([*NAMED, Column("params", "params (M)"), *SHORT], rows, caption)]


def rank_variants(ranks: Sequence[int]) -> Variants:
    """Return ranks with the scale alpha / r of the protocol."""
    return {
        "" if r == 8 else f"r{r}": {} if r == 8 else {"adapter.r": r, "adapter.lora_alpha": 2.0 * r}
        for r in ranks
    }


def sparsity_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return the sparsity of the gates by rank, on ARC-C."""
    rows: list[dict[str, Any]] = []
    keys = [f"r{r}" for r in RANKS]
    for gate, symbol in (("phi", "Φ"), ("theta", "θ"), ("psi", "Ψ")):

        def row(arm: str, gate: str = gate) -> dict[str, Any]:
            read: Read = lambda record: record.get("gates", {}).get(gate)  # noqa: E731
            found = zip(keys, rank_variants(RANKS), strict=True)
            return {key: over_seeds(having(records, arm, "arc_challenge", v), read) for key, v in found}

        def theirs(name: str, gate: str = gate) -> dict[str, Any]:
            found = PUBLISHED["sparsity"][gate]["LoRA" if name == "MLE" else name]
            return dict(zip(keys, found, strict=True))

        rows += [{"gate": symbol, **found} for found in _with_paper(arms, row, theirs)]
    columns = [Column("gate", "gate"), *NAMED, *(Column(k, f"r = {k[1:]}", "%") for k in keys)]
    caption = (
        "ARC-C, value projections, last token, entries below 0.1, one draw. MLE (LoRA) has no gates: its A x "
        "stands as θ and Ψ"
    )
    return [Table(columns, rows, caption)]


TABLES = {
    "in_distribution": PaperTable(
        "In-distribution scores",
        tuple(ARMS),
        TRAINED_ON,
        partial(scores_tables, name="in_distribution", tested=TRAINED_ON, averaged=TRAINED_ON),
    ),
    "out_of_distribution": PaperTable(
        "Out-of-distribution scores of runs trained on OBQA",
        tuple(ARMS),
        (SHIFTED_FROM,),
        partial(scores_tables, name="out_of_distribution", tested=(SHIFTED_FROM, *SHIFTED), averaged=SHIFTED),
        shifted=SHIFTED,
    ),
    "efficiency": PaperTable(
        "Memory and time", ("scalabl", "blob", *BARA), ("winogrande_s",), efficiency_table
    ),
    "prior": PaperTable("Priors", BARA, ("winogrande_s",), prior_table, prior_variants),
    "hierarchy": PaperTable(
        "Global and local gates",
        BARA,
        TRAINED_ON,
        hierarchy_table,
        lambda arm: {"phi": {"method.latent": "phi"}, "theta": {"method.latent": "theta"}, "": {}},
    ),
    "rank": PaperTable(
        "Parameter budgets",
        ("scalabl", "blob", *BARA),
        TRAINED_ON,
        rank_table,
        lambda arm: {"": {}} if arm in BARA else rank_variants((16,)),
    ),
    "sparsity": PaperTable(
        "Sparsity of the gates",
        ("lora", *BARA),
        ("arc_challenge",),
        sparsity_table,
        lambda arm: rank_variants(RANKS),
        gates=True,
    ),
}
