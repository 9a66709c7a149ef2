"""The sections of studies of sampled replies: the best of n, diversity, frontiers, budgets, the tax."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from bara_pyro.metrics import (
    compare_budgets,
    compare_frontiers,
    crossed_interval,
    mean_over_prompts,
    prompt_weights,
)
from bara_pyro.metrics.intervals import Drawn, Interval
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, legend_of, new_figure
from experiments.engine.results import Results, distinct, having
from experiments.engine.sampled import NUMBERS, TAXED, THOUSAND, read_numbers
from experiments.page.figures import marked
from experiments.page.parts import Part, Picture
from experiments.page.tables import interval_cell
from experiments.page.values import display, spread_rows

QUESTION = """\
Models that learnt {task} ({model}, {steps:,} training steps, {seeds}) write {replies} replies to every test
prompt, at temperatures of {temperatures}; each reply under a draw of the posterior of its own, or all at the
posterior mean ("mean"). Score: the expected best of n replies in percent, unbiased over all subsets of the
{replies}. Diversity: 100 - Self-BLEU of the first {few} replies of a prompt. Entropy: minus the
log-probability of a sampled token at temperature 1, in nats. Intervals (`95 %`) are crossed over seeds and
prompts where they are of differences at one temperature, and over prompts, seeds averaged, of frontiers and
budgets. Settings were chosen on validation replies (by NLL, as many trials for every method); temperatures
were not chosen.
"""
REFERENCE = "lora"
CAPTION = "At temperature 1, mean ± standard deviation over seeds"
MOST = max(NUMBERS)
TARGET = 8  # replies of LoRA that others are to equal: with all of its own a score may be at its end

Entry = Mapping[str, Any]


def parts(results: Results) -> Iterable[Part]:
    """Return the tables and figures."""
    entries = list(results.entries.values())
    yield scores_table(entries)
    yield difference_table(entries)
    yield frontier_table(entries)
    yield budget_table(entries)
    yield tax_table(entries)
    name = results.study
    yield Picture(
        lambda: curve_figure(entries),
        f"{name}-best-of-n",
        "Expected best of n at temperature 1; means of seeds.",
    )
    yield Picture(
        lambda: frontier_figure(entries),
        f"{name}-frontier",
        f"Score of one reply and of the best of {TARGET} against diversity, by temperature; means of seeds.",
    )
    yield Picture(
        lambda: entropy_figure(entries),
        f"{name}-entropy",
        f"Score of the best of {TARGET} against the entropy of a token, temperature 1; a point a seed.",
    )
    yield Picture(
        lambda: tax_figure(entries),
        f"{name}-tax",
        "Accuracy on questions after minus before, mean over tasks; bars: one standard deviation over seeds.",
    )


# What is read of an entry ----------------------------------------------------------------------------------


def kinds(entries: Sequence[Entry], method: str) -> list[str]:
    """Return which draws a method was sampled with, draws first."""
    return distinct(having(entries, method=method)[0]["samples"], "draws")


def arms(entries: Sequence[Entry]) -> Iterator[tuple[str, str, str]]:
    """Yield method, kind of draws and name of everything that was sampled."""
    for method in distinct(entries, "method"):
        own = kinds(entries, method)
        for kind in own:
            yield method, kind, display(method) + (", mean" if kind == "mean" and len(own) > 1 else "")


def samples_of(entry: Entry, kind: str, temperature: float = 1.0) -> Entry:
    """Return what was sampled from an entry with such draws at a temperature."""
    [found] = having(entry["samples"], draws=kind, temperature=temperature)
    return found


def scores_of(samples: Entry, n: int) -> np.ndarray:
    """Return the expected best of n of each prompt, percent."""
    return read_numbers(samples["best"][str(n)]) * 100 / THOUSAND


def diversity_of(samples: Entry) -> np.ndarray:
    """Return the diversity of each prompt's replies."""
    return read_numbers(samples["diversity"]) / 10


def over_prompts(entries: Sequence[Entry], kind: str, read: Callable[[Entry], np.ndarray]) -> np.ndarray:
    """Return a figure of each prompt, `prompts`, mean over the seeds of one method."""
    return np.mean([read(samples_of(entry, kind)) for entry in entries], axis=0)


# Tables ----------------------------------------------------------------------------------------------------


def scores_table(entries: Sequence[Entry]) -> Table:
    """Return what each arm gives at temperature 1, with the spread over seeds."""
    rows = []
    keys = ["nll", *(f"best {n}" for n in NUMBERS), "diversity", "entropy", "distinct"]
    for method, kind, name in arms(entries):
        for entry in having(entries, method=method):
            samples = samples_of(entry, kind)
            best = {f"best {n}": float(scores_of(samples, n).mean()) for n in NUMBERS}
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
        *(Column(f"best {n}", f"best of {n}", "%", ".1f") for n in NUMBERS),
        Column("diversity", "diversity", format=".1f"),
        Column("entropy", "entropy", "nats", ".3f"),
        Column("distinct", "distinct 2-grams", "%", ".1f"),
    ]
    return Table(
        columns, spread_rows(rows, ("arm",), keys), "At temperature 1, mean ± standard deviation over seeds"
    )


def difference_table(entries: Sequence[Entry]) -> Table:
    """Return each arm minus LoRA at temperature 1, with crossed intervals."""
    reads: dict[str, tuple[Callable[[Entry], np.ndarray], int]] = {
        "one": (lambda s: scores_of(s, 1), 1),
        "most": (lambda s: scores_of(s, MOST), 1),
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
        Column("most", f"best of {MOST}", "points"),
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


def shared_seeds(entries: Sequence[Entry], *methods: str) -> list[int]:
    """Return the seeds that all of these methods have."""
    found = [set(distinct(having(entries, method=method), "seed")) for method in methods]
    return sorted(set.intersection(*found))


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


def sweep(entries: Sequence[Entry], method: str, kind: str, n: int) -> np.ndarray:
    """Return score and diversity, `prompts x temperatures x 2`, means over seeds."""
    own = having(entries, method=method)
    temperatures = distinct(own[0]["samples"], "temperature")
    pairs = [
        np.mean(
            [
                np.stack([scores_of(s, n), diversity_of(s)], axis=-1)
                for s in (samples_of(entry, kind, temperature) for entry in own)
            ],
            axis=0,
        )
        for temperature in temperatures
    ]
    return np.stack(pairs, axis=1)


def prompts_of(entries: Sequence[Entry]) -> list[str]:
    """Return a name for each prompt: none has anything in common with another."""
    return [str(i) for i in range(len(scores_of(entries[0]["samples"][0], 1)))]


def budget_table(entries: Sequence[Entry]) -> Table:
    """Return how many replies each arm needs for what LoRA has with `TARGET`, temperature 1."""
    reference = curve(entries, REFERENCE, "mean")[:, : NUMBERS.index(TARGET) + 1]
    rows = []
    for method, kind, name in arms(entries):
        if method == REFERENCE:
            continue
        found = compare_budgets(
            mean_over_prompts(curve(entries, method, kind)),
            NUMBERS,
            mean_over_prompts(reference),
            NUMBERS[: reference.shape[1]],
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
        Column("target", f"LoRA's best of {TARGET}", "%", ".1f"),
        Column("budget", "replies needed"),
        Column("ratio", "share of LoRA's [interval]"),
    )
    return Table(columns, rows, f"Replies needed for LoRA's score with {TARGET}, temperature 1")


def curve(entries: Sequence[Entry], method: str, kind: str) -> np.ndarray:
    """Return the expected best of n, `prompts x numbers`, means over seeds."""
    own = having(entries, method=method)
    return np.stack([over_prompts(own, kind, partial(scores_of, n=n)) for n in NUMBERS], axis=-1)


def tax_table(entries: Sequence[Entry]) -> Table:
    """Return accuracy on tasks of questions after minus before, by method, spread over seeds."""
    rows = [
        {
            "arm": display(entry["method"]),
            **{task: entry["tax"][task]["acc"] - entry["before"][task]["acc"] for task in TAXED},
            "mean": tax_of(entry, "acc"),
            "nll": tax_of(entry, "nll"),
        }
        for entry in entries
    ]
    columns = [
        Column("arm", "method"),
        *(Column(task, task, "points", ".1f") for task in TAXED),
        Column("mean", "mean", "points", ".2f"),
        Column("nll", "NLL, mean", "nats", ".3f"),
    ]
    keys = [column.key for column in columns[1:]]
    caption = "Tax: accuracy (S = 10) on questions after learning replies minus before, ± over seeds"
    return Table(columns, spread_rows(rows, ("arm",), keys), caption)


def tax_of(entry: Entry, key: str) -> float:
    """Return a score after minus before, mean over the tasks of questions."""
    return mean(entry["tax"][task][key] - entry["before"][task][key] for task in TAXED)


# Figures ---------------------------------------------------------------------------------------------------


def curve_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the expected best of n against n, with bands over prompts."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    weights = prompt_weights(prompts_of(entries))
    for index, (method, kind, name) in enumerate(drawn_arms(entries)):
        values = curve(entries, method, kind)
        low, high = np.quantile(weights @ values, [0.025, 0.975], axis=0)
        style = marked(index)
        axes.plot(NUMBERS, values.mean(axis=0), label=name, **style)
        axes.fill_between(NUMBERS, low, high, alpha=0.12, linewidth=0, color=style.get("color"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(NUMBERS, [str(n) for n in NUMBERS])
    dress(axes, "Replies n", "Best of n (%)")
    legend_of(axes, loc="lower right")
    return figure


def drawn_arms(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Return each method once, by draws where it has any."""
    return [(method, kind, name) for method, kind, name in arms(entries) if kind == kinds(entries, method)[0]]


def frontier_figure(entries: Sequence[Entry]) -> Figure:
    """Draw score against diversity over temperatures, of one reply and of the best of a few."""
    figure = new_figure(8.2, 3.4)
    for axes, n in zip(figure.subplots(1, 2), (1, TARGET), strict=True):
        for index, (method, kind, name) in enumerate(drawn_arms(entries)):
            score, diversity = sweep(entries, method, kind, n).mean(axis=0).T
            axes.plot(diversity, score, label=name, **marked(index))
        dress(axes, "100 - Self-BLEU", f"Best of {n} (%)" if n > 1 else "One reply (%)")
    legend_of(figure.axes[0], loc="best")
    return figure


def entropy_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the score of the best of a few against entropy, a point a seed."""
    figure = new_figure(4.6, 3.4)
    axes = figure.subplots()
    for index, (method, kind, name) in enumerate(drawn_arms(entries)):
        points = [samples_of(entry, kind) for entry in having(entries, method=method)]
        values = [float(scores_of(s, TARGET).mean()) for s in points]
        style = marked(index) | {"linestyle": "none"}
        axes.plot([s["entropy"] for s in points], values, label=name, **style)
    dress(axes, "Entropy of a token (nats)", f"Best of {TARGET} (%)")
    legend_of(axes, loc="best")
    return figure


def tax_figure(entries: Sequence[Entry]) -> Figure:
    """Draw the tax of each method as a bar."""
    figure = new_figure(4.6, 3.0)
    axes = figure.subplots()
    for index, method in enumerate(distinct(entries, "method")):
        values = [tax_of(entry, "acc") for entry in having(entries, method=method)]
        error = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        axes.bar(index, mean(values), yerr=error, width=0.6, color=marked(index).get("color"), capsize=3)
    names = [display(method) for method in distinct(entries, "method")]
    axes.set_xticks(range(len(names)), names, rotation=20)
    axes.axhline(0, color="0.4", linewidth=0.8)
    dress(axes, "", "After minus before (points)")
    return figure
