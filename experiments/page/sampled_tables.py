"""Tables of studies of sampled replies: the best of n, diversity, frontiers, budgets, the tax."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bara_pyro.metrics import compare_budgets, compare_frontiers, mean_over_prompts
from bara_pyro.report import Column, Table
from experiments.engine.results import distinct, having
from experiments.page.sampled_entries import (
    REFERENCE,
    Entry,
    arms,
    curve,
    diversity_of,
    numbers_of,
    paired,
    prompts_of,
    samples_of,
    scores_of,
    sweep,
    target_of,
    tax_of,
    taxes_of,
)
from experiments.page.sampled_intervals import difference
from experiments.page.tables import interval_cell
from experiments.page.values import display, spread, spread_rows, student


def scores_table(entries: Sequence[Entry]) -> Table:
    """Return what each arm gives at temperature 1, with the spread over seeds."""
    rows, numbers = [], numbers_of(entries)
    keys = ["nll", *(f"best {n}" for n in numbers), "diversity", "entropy", "distinct"]
    for method, kind, name in arms(entries):
        for entry in having(entries, method=method):
            samples = samples_of(entry, kind)
            best = {f"best {n}": float(scores_of(samples, n).mean()) for n in numbers}
            rows.append(
                {
                    "arm": name,
                    **best,
                    "nll": entry["nll"],
                    "diversity": float(diversity_of(samples).mean()),
                    "entropy": samples["entropy"],
                    "distinct": samples["distinct"][1],
                }
            )
    columns = [
        Column("arm", "method"),
        Column("nll", "NLL, S = 10", "nats", ".3f"),
        *(Column(f"best {n}", f"best of {n}", "%", ".1f") for n in numbers),
        Column("diversity", "diversity", format=".1f"),
        Column("entropy", "entropy", "nats", ".3f"),
        Column("distinct", "distinct 2-grams", "%", ".1f"),
    ]
    return Table(
        columns, spread_rows(rows, ("arm",), keys), "At temperature 1, mean ± standard deviation over seeds"
    )


def difference_table(entries: Sequence[Entry]) -> Table:
    """Return each arm minus LoRA at temperature 1, with crossed intervals."""
    most = max(numbers_of(entries))
    reads: dict[str, tuple[Callable[[Entry], np.ndarray], int]] = {
        "one": (lambda s: scores_of(s, 1), 1),
        "most": (lambda s: scores_of(s, most), 1),
        "diversity": (diversity_of, 1),
    }
    rows = []
    for method, kind, name in arms(entries):
        if method == REFERENCE:
            continue
        row: dict[str, Any] = {"arm": name}
        for key, (read, digits) in reads.items():
            found = asdict(difference(entries, (method, kind), (REFERENCE, "mean"), read))
            row |= {key: interval_cell(found, digits), f"{key} interval": found}
        rows.append(row)
    columns = (
        Column("arm", "method"),
        Column("one", "one reply", "points"),
        Column("most", f"best of {most}", "points"),
        Column("diversity", "diversity"),
    )
    return Table(
        columns, rows, "Minus LoRA at temperature 1 [interval] (standard error by seeds, by prompts)"
    )


def frontier_table(entries: Sequence[Entry]) -> Table:
    """Return frontiers of score against diversity, compared at equal diversity."""
    rows = []
    for method, kind, name in arms(entries):
        others = [(REFERENCE, "mean", display(REFERENCE))] if method != REFERENCE else []
        if kind == "each":
            others.append((method, "mean", f"{name}, mean"))
        for other, other_kind, other_name in others:
            row: dict[str, Any] = {"arm": name, "than": other_name, "one": "–"}
            found = compare_frontiers(
                mean_over_prompts(sweep(entries, method, kind, 1)),
                mean_over_prompts(sweep(entries, other, other_kind, 1)),
                prompts_of(entries),
            )
            if found.found is not None:
                row["band"] = f"{found.found.low:.1f} to {found.found.high:.1f}"
            if found.interval is not None:
                told = asdict(found.interval) | {"se_seeds": None, "se_rows": None}
                row |= {"one": interval_cell(told, 1, spread=False), "one interval": told}
            rows.append(row)
    columns = (
        Column("arm", "method"),
        Column("than", "minus"),
        Column("one", "one reply", "points"),
        Column("band", "between diversities of"),
    )
    caption = (
        "At equal diversity, over the temperatures: the score of one reply minus that of another frontier"
    )
    return Table(columns, rows, caption)


def budget_table(entries: Sequence[Entry]) -> Table:
    """Return how many replies each arm needs for what LoRA has with `target_of`, temperature 1."""
    numbers, target = numbers_of(entries), target_of(entries)
    reference = curve(entries, REFERENCE, "mean")[:, : numbers.index(target) + 1]
    rows = []
    for method, kind, name in arms(entries):
        if method == REFERENCE:
            continue
        found = compare_budgets(
            mean_over_prompts(curve(entries, method, kind)),
            numbers,
            mean_over_prompts(reference),
            numbers[: reference.shape[1]],
            prompts_of(entries),
        )
        low, high = ("–" if end is None else f"{end:.2f}" for end in (found.low, found.high))
        rows.append(
            {
                "arm": name,
                "target": found.target,
                "budget": "not reached" if found.budget is None else f"{found.budget:.1f}",
                "ratio": "–" if found.ratio is None else f"{found.ratio:.2f} [{low}, {high}]",
            }
        )
    columns = (
        Column("arm", "method"),
        Column("target", f"LoRA's best of {target}", "%", ".1f"),
        Column("budget", "replies needed"),
        Column("ratio", "share of LoRA's [interval]"),
    )
    return Table(columns, rows, f"Replies needed for LoRA's score with {target}, temperature 1")


def tax_table(entries: Sequence[Entry]) -> Table:
    """Return accuracy on tasks of questions after minus before, by method, and what LoRA's is less.

    Where there are seeds to tell, rows have `mean interval` and, but for LoRA, `minus interval`.
    """
    with_nll = all("nll" in scores for scores in entries[0]["tax"].values())
    rows = []
    for method in distinct(entries, "method"):
        taxes = taxes_of(entries, method)
        row: dict[str, Any] = {
            "arm": display(method),
            **{task: spread(found) for task, found in taxes.items()},
        }
        if len(taxes["mean"]) > 1:
            row["mean interval"] = student(taxes["mean"])
        both = paired(entries, method, REFERENCE)
        ours, theirs = (taxes_of(both, one)["mean"] for one in (method, REFERENCE))
        if method != REFERENCE and len(ours) > 1:
            found = student([a - b for a, b in zip(ours, theirs, strict=True)])
            row |= {"minus": interval_cell(found, 1), "minus interval": found}
        if with_nll:
            row["nll"] = spread([tax_of(entry, "nll") for entry in having(entries, method=method)])
        rows.append(row)
    columns = [
        Column("arm", "method"),
        *(Column(task, task, "points", ".1f") for task in entries[0]["tax"]),
        Column("mean", "mean", "points", ".2f"),
        Column("minus", "mean minus LoRA's", "points"),
        *([Column("nll", "NLL, mean", "nats", ".3f")] if with_nll else []),
    ]
    caption = "Tax: accuracy on questions after learning replies minus before, ± and [interval] over seeds"
    return Table(columns, rows, caption)
