"""Tables of studies of sampled replies: the best of n, diversity, frontiers, budgets, the tax."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bara_pyro.metrics import (
    compare_budgets,
    compare_frontiers,
    crossed_interval,
    mean_over_prompts,
    prompt_weights,
)
from bara_pyro.metrics.intervals import Drawn, Interval
from bara_pyro.report import Column, Table
from experiments.engine.results import having
from experiments.page.sampled_entries import (
    REFERENCE,
    Entry,
    arms,
    curve,
    diversity_of,
    numbers_of,
    prompts_of,
    samples_of,
    scores_of,
    shared_seeds,
    sweep,
    target_of,
    tax_of,
)
from experiments.page.tables import interval_cell
from experiments.page.values import display, spread_rows


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


def difference(
    entries: Sequence[Entry],
    arm: tuple[str, str],
    reference: tuple[str, str],
    read: Callable[[Entry], np.ndarray],
) -> Interval:
    """Return an arm minus another, by a figure of each prompt, crossed over seeds and prompts."""
    by_seed = {
        seed: [
            read(samples_of(having(entries, method=method, seed=seed)[0], kind))
            for method, kind in (arm, reference)
        ]
        for seed in shared_seeds(entries, arm[0], reference[0])
    }
    gaps = np.stack([own - theirs for own, theirs in by_seed.values()])  # seeds x prompts
    names = [str(i) for i in range(gaps.shape[1])]
    drawn = torch.from_numpy(prompt_weights(names) @ gaps.T)
    return crossed_interval([Drawn(torch.from_numpy(gaps.mean(axis=1)), drawn, frozenset(names))])


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
    """Return accuracy on tasks of questions after minus before, by method, spread over seeds."""
    tasks = list(entries[0]["tax"])
    with_nll = all("nll" in scores for scores in entries[0]["tax"].values())
    rows = [
        {
            "arm": display(entry["method"]),
            **{task: entry["tax"][task]["acc"] - entry["before"][task]["acc"] for task in tasks},
            "mean": tax_of(entry, "acc"),
            **({"nll": tax_of(entry, "nll")} if with_nll else {}),
        }
        for entry in entries
    ]
    columns = [
        Column("arm", "method"),
        *(Column(task, task, "points", ".1f") for task in tasks),
        Column("mean", "mean", "points", ".2f"),
        *([Column("nll", "NLL, mean", "nats", ".3f")] if with_nll else []),
    ]
    keys = [column.key for column in columns[1:]]
    caption = "Tax: accuracy on questions after learning replies minus before, ± over seeds"
    return Table(columns, spread_rows(rows, ("arm",), keys), caption)
