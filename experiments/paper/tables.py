"""The paper's tables: which runs each needs, and how it is read from their records, in the paper's layout."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bara_pyro.report import Column, Table
from experiments.paper import alignment
from experiments.paper.protocol import ARMS, DATASETS, SHIFTED, SHIFTED_FROM, TRAINED_ON, Run, Settings
from experiments.paper.runs import Record

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
METRICS = {"acc": "ACC (%, higher is better)", "ece": "ECE (%, lower is better)", "nll": "NLL (nats, lower)"}
BARA = ("bara-paper", "bara")
RANKS = (8, 16, 32, 64)
PRIORS = ((0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0))
LATENTS = ("phi", "theta", "phi*theta")
GATES = {"phi": "Φ", "theta": "θ", "psi": "Ψ"}

Records = Mapping[str, Record]
Read = Callable[[Record], float | None]
Cell = Callable[[Records, str, str], Any]
"""Records, arm and variant -> what a table shows of them."""


@dataclass(frozen=True)
class Group:
    """Rows of a table that one row of the paper's belongs to.

    Attributes:
        lines: (arm, variant) of the rows.
        paper: the method's name in the paper.
        published: the figures of its row, in the order of the columns.
        about: further cells of all these rows.
    """

    lines: Sequence[tuple[str, str]]
    paper: str
    published: Sequence[Any]
    about: Mapping[str, str]


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        title: what it shows.
        arms: the arms that it has.
        tasks: data sets to train on.
        render: makes the tables from the records and the arms asked for.
        variants: arm -> the settings of what the table varies, by name; an empty name is the arm itself.
        shifted: data sets that the runs are also tested on.
        gates: whether it shows the sparsity of gates.
    """

    title: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    render: Callable[[Records, Sequence[str]], list[Table]]
    variants: Callable[[str], Mapping[str, Settings]] = lambda arm: {"": {}}
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
        value = scores[max(scores, key=int)][metric] if scores else None
        return float("inf") if scores and value is None else value  # JSON has no infinity

    return read


def over_seeds(read: Read, task: str) -> Cell:
    """Return the mean and standard deviation over seeds, and how many runs failed."""

    def cell(records: Records, arm: str, variant: str) -> Any:
        place = (arm, task, variant)
        found = [r for r in records.values() if (r["arm"], r["task"], r["variant"]) == place]
        done = [record for record in found if "failed" not in record]
        values = [value for value in map(read, done) if value is not None]
        if not values:
            return "failed" if len(done) < len(found) else None
        own = values[0] if len(values) == 1 else (mean(values), stdev(values))
        if len(done) == len(found):
            return own
        shown = f"{own[0]:.2f} ± {own[1]:.2f}" if isinstance(own, tuple) else f"{own:.2f}"
        return f"{shown} ({len(found) - len(done)} failed)"

    return cell


def average(cells: Iterable[Cell]) -> Cell:
    """Return the mean of what other cells have; None while one has no score, or a run failed."""

    def cell(records: Records, arm: str, variant: str) -> float | None:
        found = (one(records, arm, variant) for one in cells)
        numbers = [value[0] if isinstance(value, tuple) else value for value in found]
        return mean(numbers) if all(isinstance(number, float) for number in numbers) else None

    cells = list(cells)
    return cell


def parameters(records: Records, arm: str, variant: str) -> float | None:
    """Return the trainable parameters in millions."""
    own = (r for r in records.values() if (r["arm"], r["variant"]) == (arm, variant))
    return next((record["parameters"] / 1e6 for record in own if "failed" not in record), None)


def over_tasks() -> dict[str, Cell]:
    """Return the three scores averaged over the six data sets."""
    return {m: average(over_seeds(score(m), task) for task in TRAINED_ON) for m in METRICS}


# The tables --------------------------------------------------------------------------------------------


def table_of(
    records: Records,
    arms: Sequence[str],
    groups: Iterable[Group],
    cells: Mapping[str, Cell],
    caption: str,
    columns: Sequence[Column],
) -> Table:
    """Return a row a line, and below each group the paper's own."""
    rows = []
    for group in groups:
        lines = [(arm, variant) for arm, variant in group.lines if arm in arms]
        for arm, variant in lines:
            shown = {key: cell(records, arm, variant) for key, cell in cells.items()}
            rows.append({"name": ARMS[arm].name, "from": "here", **group.about, **shown})
        if lines:
            theirs = dict(zip(cells, group.published, strict=True))
            rows.append({"name": group.paper, "from": "paper", **group.about, **theirs})
    lead = [Column(key, key) for key in dict.fromkeys(key for row in rows[:1] for key in row)]
    named = [column for column in lead if column.key not in {*cells, "name", "from"}]
    return Table([*named, Column("name", "method"), Column("from", "from"), *columns], rows, caption)


def by_method(
    table: Mapping[str, Sequence[Any]], variant: Callable[[str], str] = lambda arm: ""
) -> list[Group]:
    """Return a group for each method of one of the paper's tables."""
    return [
        Group([(arm, variant(arm)) for arm, own in ARMS.items() if own.paper == name], name, published, {})
        for name, published in table.items()
    ]


SHORT = [Column(m, m.upper(), "nats" if m == "nll" else "%") for m in METRICS]
MILLIONS = Column("params", "params (M)", format=".3f")


def scores_tables(
    records: Records, arms: Sequence[str], *, name: str, tested: Sequence[str], averaged: Sequence[str]
) -> list[Table]:
    """Return a table a metric, a row a method and a column a data set."""
    tables = []
    for metric, caption in METRICS.items():
        own = name == "in_distribution"
        cells = {
            task: over_seeds(score(metric), task)
            if own or task == SHIFTED_FROM
            else over_seeds(score(metric, task), SHIFTED_FROM)
            for task in tested
        }
        whole = {"params": parameters, **cells, "average": average(cells[task] for task in averaged)}
        columns = [MILLIONS, *(Column(task, DATASETS[task].name) for task in tested)]
        groups = by_method(PUBLISHED[name][metric])
        tables.append(
            table_of(records, arms, groups, whole, caption, [*columns, Column("average", "average")])
        )
    return tables


def efficiency_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return memory and times on WG-S."""
    reads: dict[str, tuple[Column, Read]] = {
        "memory": (Column("memory", "peak GPU memory", "GiB"), lambda r: r["peak_gib"]),
        "train": (Column("train", "training", "s", ".0f"), lambda r: r["seconds"]["train"]),
        "evaluate": (Column("evaluate", "inference", "s", ".0f"), lambda r: r["seconds"]["evaluate"]),
    }
    cells = {key: over_seeds(read, "winogrande_s") for key, (_, read) in reads.items()}
    caption = "WG-S. Inference here: S = 0 and the most draws. The paper's GPU is an RTX PRO 6000"
    columns = [column for column, _ in reads.values()]
    return [table_of(records, arms, by_method(PUBLISHED["efficiency"]), cells, caption, columns)]


def prior_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA on WG-S under five priors."""
    reads = {"sparsity": lambda r: r["sparsity"].get("psi"), **{m: score(m) for m in METRICS}}
    cells = {key: over_seeds(read, "winogrande_s") for key, read in reads.items()}
    names = zip(prior_variants(), PUBLISHED["prior"].items(), strict=True)
    groups = [
        Group([(arm, variant) for arm in BARA], "BaRA", published, {"prior": name})
        for variant, (name, published) in names
    ]
    columns = [Column("sparsity", "sparsity", "%"), *SHORT]
    caption = "WG-S. Sparsity here: share of products Φθ below 0.1"
    return [table_of(records, arms, groups, cells, caption, columns)]


def prior_variants() -> dict[str, Settings]:
    """Return the priors of both gates; Gamma(1, 1) is the arm itself."""
    found: dict[str, Settings] = {}
    for concentration, rate in PRIORS:
        gamma = {"name": "gamma", "concentration": concentration, "rate": rate}
        own = concentration == rate == 1.0
        both = {} if own else {"method.phi_prior": gamma, "method.theta_prior": gamma}
        found["" if own else f"gamma{concentration}_{rate}"] = both
    return found


def hierarchy_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA with global gates, local gates or both."""
    groups = [
        Group(
            [(arm, "" if name == LATENTS[-1] else name) for arm in BARA], "BaRA", published, {"gates": name}
        )
        for name, published in PUBLISHED["hierarchy"].items()
    ]
    return [table_of(records, arms, groups, over_tasks(), "Averages over the six data sets", SHORT)]


def rank_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return BaRA at rank 8 beside two rivals at rank 16."""
    groups = by_method(PUBLISHED["rank"], lambda arm: "" if arm in BARA else "r16")
    cells = {"params": parameters, **over_tasks()}
    caption = "Averages over the six data sets; ScalaBL and BLoB have rank 16"
    return [table_of(records, arms, groups, cells, caption, [MILLIONS, *SHORT])]


def rank_variants(ranks: Sequence[int]) -> dict[str, Settings]:
    """Return ranks with the scale alpha / r of the protocol; rank 8 is the arm itself."""
    names = ("" if r == 8 else f"r{r}" for r in ranks)
    return {
        name: {"adapter.r": r, "adapter.lora_alpha": 2.0 * r} if name else {}
        for name, r in zip(names, ranks, strict=True)
    }


def sparsity_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return the sparsity of the gates by rank, on ARC-C."""

    def at(gate: str, rank: str) -> Cell:
        cell = over_seeds(lambda record: record.get("gates", {}).get(gate), "arc_challenge")
        return lambda records, arm, _: cell(records, arm, rank)

    tables = []
    for gate, symbol in GATES.items():
        cells = {f"r{r}": at(gate, name) for r, name in zip(RANKS, rank_variants(RANKS), strict=True)}
        columns = [Column(f"r{r}", f"r = {r}", "%") for r in RANKS]
        caption = f"{symbol}, ARC-C: value projections, last token, entries below 0.1, one draw"
        groups = by_method(PUBLISHED["sparsity"][gate])
        tables.append(table_of(records, arms, groups, cells, caption, columns))
    return tables


def alignment_table(records: Records, arms: Sequence[str]) -> list[Table]:
    """Return win rates, pass rates, diversity and tax of models that learnt to reply."""
    cells = {key: over_seeds(read, alignment.TASK) for key, (_, read) in alignment.COLUMNS.items()}
    columns = [column for column, _ in alignment.COLUMNS.values()]
    groups = by_method(PUBLISHED["alignment"])
    return [table_of(records, arms, groups, cells, alignment.CAPTION, columns)]


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
    "prior": PaperTable("Priors", BARA, ("winogrande_s",), prior_table, lambda arm: prior_variants()),
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
    "alignment": PaperTable(
        "Replies: best of n, programs, and the alignment tax",
        ("lora", "blob", "scalabl", *BARA),
        (alignment.TASK,),
        alignment_table,
        lambda arm: {"": alignment.SETTINGS},
    ),
}
