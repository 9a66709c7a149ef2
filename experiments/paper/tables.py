"""The paper's tables: which runs each needs, and how it is read from their records, in the paper's layout."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from bara_pyro.extras.replies.over_prompts import prompt_weights
from bara_pyro.metrics import TaskDifference, crossed_interval
from bara_pyro.metrics.base import METRICS
from bara_pyro.report.table import Column, Table
from experiments.engine import values
from experiments.engine.record import Record, number
from experiments.engine.tables import interval_cell
from experiments.engine.values import Read, Value
from experiments.paper import alignment
from experiments.paper.alignment import score_of
from experiments.paper.protocol import ARMS, DATASETS, SHIFTED, SHIFTED_FROM, TRAINED_ON, PaperRun, Settings

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
SCORES = ("acc", "ece", "nll")  # what the paper's tables have
BETTER = {"max": "higher", "min": "lower"}
BARA = ("bara-paper", "bara")
GATES = {"phi": "Φ", "theta": "θ", "psi": "Ψ"}
MILLIONS = Column("params", "params (M)", format=".3f")

Records = Mapping[str, Record]
Cell = Callable[[Records, str, str], Value]
"""Records, arm and variant -> what a table shows of them."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of a table that one row of the paper's belongs to.

    Attributes:
        name: the method's name in the paper.
        lines: (arm, variant) of the rows here.
        published: the figures of the paper's row, in the order of the columns; there is no such row if all
            are None.
        about: further cells of all these rows.
    """

    name: str
    lines: Sequence[tuple[str, str]]
    published: Sequence[Any]
    about: Mapping[str, str]


@dataclass(frozen=True)
class TablePart:
    """A table of numbers: its rows, and how its columns are read."""

    caption: str
    groups: Sequence[RowGroup]
    columns: Mapping[Column, Cell]

    def table(self, records: Records, arms: Sequence[str]) -> Table:
        """Return a row a line of these arms, and below each group the paper's own."""
        rows: list[dict[str, Any]] = []
        for group in self.groups:
            lines = [(arm, variant) for arm, variant in group.lines if arm in arms]
            for arm, variant in lines:
                cells = {column.key: cell(records, arm, variant) for column, cell in self.columns.items()}
                rows.append({**group.about, "method": ARMS[arm].name, "from": "here", **cells})
            if lines and any(figure is not None for figure in group.published):
                keys = (column.key for column in self.columns)
                theirs = dict(zip(keys, group.published, strict=True))
                rows.append({**group.about, "method": group.name, "from": "paper", **theirs})
        lead = (*self.groups[0].about, "method", "from")
        return Table([*(Column(key, key) for key in lead), *self.columns], rows, self.caption)


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Attributes:
        title: what it shows.
        arms: the arms that it has.
        tasks: data sets to train on.
        parts: its numbers.
        variants: the settings of what it varies, by name; an empty name is the arm itself.
        varied: the arms that it varies; the others are as they are.
        shifted: data sets that the runs are also tested on.
    """

    title: str
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    parts: Sequence[TablePart]
    variants: Mapping[str, Settings] | None = None
    varied: tuple[str, ...] = tuple(ARMS)
    shifted: tuple[str, ...] = ()

    def runs(self, arms: Iterable[str], seeds: int) -> list[PaperRun]:
        """Return the runs of these arms, seed by seed: an interrupted table is one of fewer seeds."""
        own: dict[str, Mapping[str, Settings]] = {arm: {"": {}} for arm in self.arms}
        own |= {arm: self.variants for arm in self.varied if self.variants and arm in own}
        return [
            PaperRun(arm, task, seed, name, settings, self.shifted)
            for seed in range(seeds)
            for task in self.tasks
            for arm in self.arms
            if arm in arms
            for name, settings in own[arm].items()
        ]


def runs_of(tables: Iterable[str], arms: Sequence[str], seeds: int) -> list[PaperRun]:
    """Return the runs of several tables; a run that two of them need is one."""
    found: dict[str, PaperRun] = {}
    for run in (run for table in tables for run in TABLES[table].runs(arms, seeds)):
        known = found.get(run.name, run)
        shifted = tuple(dict.fromkeys((*known.shifted, *run.shifted)))
        found[run.name] = replace(run, shifted=shifted)
    return list(found.values())


# Cells -------------------------------------------------------------------------------------------------


def score(metric: str) -> Read:
    """Return what reads a score under the most draws."""
    return lambda record: number(score_of(record, metric))


def over_seeds(read: Read, task: str, shifted: str = "") -> Cell:
    """Return the mean and standard deviation over seeds, on a shifted data set if one is named."""

    def cell(records: Records, arm: str, variant: str) -> Value:
        own = {r["seed"]: r for r in records.values() if place(r) == (arm, task, variant)}
        if shifted:
            own = {seed: r if "failed" in r else r["shifted"].get(shifted) for seed, r in own.items()}
        known = {seed: r for seed, r in own.items() if r and ("failed" in r or read(r) is not None)}
        return values.over_seeds(known, read)

    return cell


def minus(reference: str, read: alignment.Read, task: str) -> Cell:
    """Return the difference from an arm, with an interval over prompts and the seeds that both have."""

    def cell(records: Records, arm: str, variant: str) -> Value:
        own, other = (
            {
                r["seed"]: read(r)
                for r in records.values()
                if "failed" not in r and place(r) == (name, task, variant)
            }
            for name in (arm, reference)
        )
        seeds = sorted(own.keys() & other.keys())
        if arm == reference or not seeds:
            return None
        by_prompt = np.array([np.subtract(own[seed], other[seed]) for seed in seeds])
        if not by_prompt.any():  # equal scores say nothing of other prompts
            return "0.0, each prompt alike"
        names = [str(i) for i in range(by_prompt.shape[1])]
        drawn = torch.from_numpy(prompt_weights(names) @ by_prompt.T)
        found = crossed_interval([TaskDifference(torch.from_numpy(by_prompt.mean(1)), drawn, names)])
        return interval_cell(asdict(found), 1)

    return cell


def place(record: Record) -> tuple[str, str, str]:
    """Return which arm, data set and variant a record is of."""
    return record["arm"], record["task"], record["variant"]


def average(cells: Iterable[Cell]) -> Cell:
    """Return the mean of other cells; None while one has no score, or a run of it failed."""
    cells = list(cells)

    def cell(records: Records, arm: str, variant: str) -> float | None:
        found = (one(records, arm, variant) for one in cells)
        means = [value[0] if isinstance(value, tuple) else value for value in found]
        known = [value for value in means if isinstance(value, float)]
        return mean(known) if len(known) == len(means) else None

    return cell


def parameters(records: Records, arm: str, variant: str) -> float | None:
    """Return the trainable parameters in millions."""
    own = (r for r in records.values() if (r["arm"], r["variant"]) == (arm, variant))
    return next((record["parameters"]["trainable"] / 1e6 for record in own if "failed" not in record), None)


def three(cell: Callable[[Read], Cell]) -> dict[Column, Cell]:
    """Return a column for each score."""
    return {Column(name, name.upper(), METRICS[name].unit): cell(score(name)) for name in SCORES}


def on_wgs(read: Read) -> Cell:
    """Return a score on WG-S."""
    return over_seeds(read, "winogrande_s")


OVER_TASKS = three(lambda read: average(over_seeds(read, task) for task in TRAINED_ON))


# The tables --------------------------------------------------------------------------------------------


def one(caption: str, groups: Sequence[RowGroup], columns: Mapping[Column, Cell]) -> list[TablePart]:
    """Return the part of a table that has one."""
    return [TablePart(caption, groups, columns)]


def by_method(published: Mapping[str, Sequence[Any]], *rivals: str, variant: str = "") -> list[RowGroup]:
    """Return a group for each method of the paper; `variant` is that of the arms of these rivals."""
    return [
        RowGroup(
            name, [(a, variant if a in rivals else "") for a in ARMS if ARMS[a].paper == name], figures, {}
        )
        for name, figures in published.items()
    ]


def bara_by(heading: str, table: str, variants: Iterable[str]) -> list[RowGroup]:
    """Return a group for each variation of BaRA."""
    found = zip(variants, PUBLISHED[table].items(), strict=True)
    return [
        RowGroup("BaRA", [(arm, variant) for arm in BARA], figures, {heading: name})
        for variant, (name, figures) in found
    ]


def scores(table: str, tested: Sequence[str], averaged: Sequence[str]) -> list[TablePart]:
    """Return a table a metric, a row a method and a column a data set."""
    parts = []
    for metric in SCORES:
        cells = {
            task: over_seeds(score(metric), SHIFTED_FROM, task)
            if table == "out_of_distribution" and task in SHIFTED
            else over_seeds(score(metric), task)
            for task in tested
        }
        columns: dict[Column, Cell] = {MILLIONS: parameters}
        columns |= {Column(task, DATASETS[task].name): cell for task, cell in cells.items()}
        columns[Column("average", "average")] = average(cells[task] for task in averaged)
        caption = f"{metric.upper()} ({METRICS[metric].unit}, {BETTER[METRICS[metric].best]} is better)"
        parts.append(TablePart(caption, by_method(PUBLISHED[table][metric]), columns))
    return parts


def _prior(concentration: float, rate: float) -> Settings:
    gamma = {"name": "gamma", "concentration": concentration, "rate": rate}
    return {"method.phi_prior": gamma, "method.theta_prior": gamma}


def _rank(r: int) -> Settings:
    return {"adapter.r": r, "adapter.lora_alpha": 2.0 * r}


PRIORS: dict[str, Settings] = {
    "gamma0.5-1": _prior(0.5, 1.0),
    "": {},
    "gamma2-1": _prior(2.0, 1.0),
    "gamma1-0.5": _prior(1.0, 0.5),
    "gamma1-2": _prior(1.0, 2.0),
}
LATENTS: dict[str, Settings] = {"phi": {"method.latent": "phi"}, "theta": {"method.latent": "theta"}, "": {}}
RANKS: dict[str, Settings] = {"": {}, "r16": _rank(16), "r32": _rank(32), "r64": _rank(64)}


def _at_rank(gate: str, rank: str) -> Cell:
    cell = over_seeds(lambda record: record.get("gates", {}).get(gate), "arc_challenge")
    return lambda records, arm, _: cell(records, arm, rank)


TABLES = {
    "in_distribution": PaperTable(
        "In-distribution scores", tuple(ARMS), TRAINED_ON, scores("in_distribution", TRAINED_ON, TRAINED_ON)
    ),
    "out_of_distribution": PaperTable(
        "Out-of-distribution scores of runs trained on OBQA",
        tuple(ARMS),
        (SHIFTED_FROM,),
        scores("out_of_distribution", (SHIFTED_FROM, *SHIFTED), SHIFTED),
        shifted=SHIFTED,
    ),
    "efficiency": PaperTable(
        "Memory and time",
        ("scalabl", "blob", *BARA),
        ("winogrande_s",),
        one(
            "WG-S. Inference here: S = 0 and the most draws. The paper's GPU is an RTX PRO 6000",
            by_method(PUBLISHED["efficiency"]),
            {
                Column("memory", "peak GPU memory", "GiB"): on_wgs(lambda r: r["peak_gib"]),
                Column("train", "training", "s", ".0f"): on_wgs(lambda r: r["wall_clock_train_s"]),
                Column("test", "inference", "s", ".0f"): on_wgs(lambda r: r["wall_clock_evaluate_s"]),
            },
        ),
    ),
    "prior": PaperTable(
        "Priors",
        BARA,
        ("winogrande_s",),
        one(
            "WG-S. Sparsity here: share of products Φθ below 0.1",
            bara_by("prior", "prior", PRIORS),
            {
                Column("sparsity", "sparsity", "%"): on_wgs(lambda r: r["sparsity"].get("psi")),
                **three(on_wgs),
            },
        ),
        PRIORS,
    ),
    "hierarchy": PaperTable(
        "Global and local gates",
        BARA,
        TRAINED_ON,
        one("Averages over the six data sets", bara_by("gates", "hierarchy", LATENTS), OVER_TASKS),
        LATENTS,
    ),
    "rank": PaperTable(
        "Parameter budgets",
        ("scalabl", "blob", *BARA),
        TRAINED_ON,
        one(
            "Averages over the six data sets; ScalaBL and BLoB have rank 16",
            by_method(PUBLISHED["rank"], "scalabl", "blob", variant="r16"),
            {MILLIONS: parameters, **OVER_TASKS},
        ),
        {"r16": RANKS["r16"]},
        ("scalabl", "blob"),
    ),
    "sparsity": PaperTable(
        "Sparsity of the gates",
        ("lora", *BARA),
        ("arc_challenge",),
        [
            TablePart(
                f"{symbol}, ARC-C: value projections, last token, entries below 0.1, one draw",
                by_method(PUBLISHED["sparsity"][gate]),
                {
                    Column(name or "r8", f"r = {(name or 'r8')[1:]}", "%"): _at_rank(gate, name)
                    for name in RANKS
                },
            )
            for gate, symbol in GATES.items()
        ],
        RANKS,
    ),
    "alignment": PaperTable(
        "Replies: best of n, programs, and the alignment tax",
        ("lora", "blob", "scalabl", *BARA),
        (alignment.TASK,),
        [
            TablePart(
                alignment.CAPTION,
                by_method(PUBLISHED["alignment"]),
                {column: over_seeds(read, alignment.TASK) for column, read in alignment.COLUMNS.items()},
            ),
            TablePart(
                alignment.CAPTION_BY_PROMPT,
                by_method(dict.fromkeys(PUBLISHED["alignment"], ())),
                {column: minus("lora", read, alignment.TASK) for column, read in alignment.BY_PROMPT.items()},
            ),
        ],
        {"": alignment.SETTINGS},
    ),
}
