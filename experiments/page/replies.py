"""The sections of studies of sampled replies: the best of n, diversity, frontiers, budgets, the tax."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bara_pyro.errors import ConfigError
from bara_pyro.metrics import (
    compare_budgets,
    compare_frontiers,
    crossed_interval,
    mean_over_prompts,
    prompt_weights,
)
from bara_pyro.metrics.intervals import Interval, TaskDifference
from bara_pyro.report import Column, Table
from bara_pyro.report.style import GREY, INK, dress, legend_of, line_style, new_figure
from experiments.engine.arguments import option, preset, run_settings
from experiments.engine.replies import (
    FEW,
    NUMBERS,
    SAMPLES,
    THOUSAND,
    Look,
    Sampling,
    questions_tax,
    read_numbers,
    sampled,
)
from experiments.engine.results import Results, distinct, having
from experiments.engine.run import about_runs, read_off
from experiments.engine.search import CHOICES_REPLIES, UPPER, chosen
from experiments.engine.sweep import Job
from experiments.page.figures import PAGE
from experiments.page.parts import Folded, Part, Picture
from experiments.page.spec import Options, StudySpec, parsed, shared_facts
from experiments.page.tables import interval_cell
from experiments.page.values import display, spread, spread_rows, student

REFERENCE, METHODS = "lora", ("lora", "blob", "scalabl", "bara", "bara-gate")

Entry = Mapping[str, Any]


def numbers_of(entries: Sequence[Entry]) -> list[int]:
    """Return the numbers n of replies whose best is known."""
    return [int(n) for n in entries[0]["samples"][0]["best"]]


def target_of(entries: Sequence[Entry]) -> int:
    """Return how many replies of LoRA others are to equal: with all of its own a score may be at its end."""
    return max(numbers_of(entries)) // 4


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


def scored(entries: Sequence[Entry]) -> bool:
    """Return whether any reply is worth anything."""
    return any(scores_of(samples, 1).any() for entry in entries for samples in entry["samples"])


def diversity_of(samples: Entry) -> np.ndarray:
    """Return the diversity of each prompt's replies."""
    return read_numbers(samples["diversity"]) / 10


def by_seed(
    entries: Sequence[Entry],
    method: str,
    kind: str,
    read: Callable[[Entry], np.ndarray],
    temperature: float = 1.0,
) -> np.ndarray:
    """Return a figure of each prompt under each seed of a method, `seeds x prompts`, seeds rising."""
    own = sorted(having(entries, method=method), key=lambda entry: entry["seed"])
    return np.stack([read(samples_of(entry, kind, temperature)) for entry in own])


def temperatures_of(entries: Sequence[Entry]) -> list[float]:
    """Return the temperatures that were sampled at."""
    return distinct(entries[0]["samples"], "temperature")


def sweep(entries: Sequence[Entry], method: str, kind: str, n: int) -> np.ndarray:
    """Return score and diversity, `prompts x temperatures x 2`, means over seeds."""
    reads = (partial(scores_of, n=n), diversity_of)
    pairs = [
        [by_seed(entries, method, kind, read, temperature).mean(axis=0) for read in reads]
        for temperature in temperatures_of(entries)
    ]
    return np.array(pairs).transpose(2, 0, 1)


def prompts_of(entries: Sequence[Entry]) -> list[str]:
    """Return a name for each prompt: none has anything in common with another."""
    return [str(i) for i in range(len(scores_of(entries[0]["samples"][0], 1)))]


def curve(entries: Sequence[Entry], method: str, kind: str) -> np.ndarray:
    """Return the expected best of n, `prompts x numbers`, means over seeds."""
    by_number = [by_seed(entries, method, kind, partial(scores_of, n=n)) for n in numbers_of(entries)]
    return np.stack([values.mean(axis=0) for values in by_number], axis=-1)


def paired(entries: Sequence[Entry], *methods: str) -> list[Entry]:
    """Return the entries of the seeds that all of these methods have."""
    found = [set(distinct(having(entries, method=method), "seed")) for method in methods]
    shared = set.intersection(*found)
    return [entry for entry in entries if entry["seed"] in shared]


def tax_of(entry: Entry, key: str) -> float:
    """Return a score after minus before, mean over the tasks of questions."""
    return mean(entry["tax"][task][key] - entry["before"][task][key] for task in entry["tax"])


def taxes_of(entries: Sequence[Entry], method: str) -> dict[str, list[float]]:
    """Return accuracy after minus before of each seed, seeds rising: each task's, and `mean` over tasks."""
    own = sorted(having(entries, method=method), key=lambda entry: entry["seed"])
    by_task = {
        task: [e["tax"][task]["acc"] - e["before"][task]["acc"] for e in own] for task in own[0]["tax"]
    }
    return by_task | {"mean": [tax_of(entry, "acc") for entry in own]}


_weights = cache(prompt_weights)


def crossed(values: np.ndarray) -> Interval:
    """Return the mean of `seeds x prompts` numbers with its interval, crossed over both."""
    names = tuple(str(i) for i in range(values.shape[1]))
    drawn = torch.from_numpy(_weights(names) @ values.T)
    return crossed_interval([TaskDifference(torch.from_numpy(values.mean(axis=1)), drawn, frozenset(names))])


def difference(
    entries: Sequence[Entry],
    arm: tuple[str, str],
    reference: tuple[str, str],
    read: Callable[[Entry], np.ndarray],
) -> Interval:
    """Return an arm minus another, by a figure of each prompt, on the seeds that both have."""
    both = paired(entries, arm[0], reference[0])
    return crossed(by_seed(both, *arm, read) - by_seed(both, *reference, read))


def along_temperatures(
    entries: Sequence[Entry], method: str, kind: str, n: int
) -> list[tuple[Interval, Interval]]:
    """Return diversity and the best of n of an arm at each temperature."""

    def found(read: Callable[[Entry], np.ndarray], temperature: float) -> Interval:
        return crossed(by_seed(entries, method, kind, read, temperature))

    score = partial(scores_of, n=n)
    return [(found(diversity_of, t), found(score, t)) for t in temperatures_of(entries)]


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
    return Table(columns, rows, "Minus LoRA at temperature 1 [95 % interval]")


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
                own = asdict(found.interval)
                row |= {"one": interval_cell(own, 1), "one interval": own}
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


WHOLE = (0.0, 100.0)  # percent: where bands of scores end


def frontier_figure(entries: Sequence[Entry]) -> Figure:
    """Draw score against diversity over temperatures: a column a method, by draws and at its mean.

    The rows are one reply and the best of a few; LoRA is in every panel.
    """
    numbers = list(dict.fromkeys((1, target_of(entries))))
    methods = distinct(entries, "method")
    others = [method for method in methods if method != REFERENCE]
    figure = new_figure(PAGE, 2.2 * len(numbers) + 0.8)
    grid = figure.subplots(len(numbers), len(others), squeeze=False, sharex=True, sharey="row")
    for (row, n), (column, method) in product(enumerate(numbers), enumerate(others)):
        axes = grid[row, column]
        _frontier(axes, entries, REFERENCE, "mean", n, color=GREY, linestyle=":")
        for kind in kinds(entries, method):
            colour = line_style(methods.index(method))["color"]
            _frontier(axes, entries, method, kind, n, color=colour, **LOOKS[kind])
        dress(axes, title="" if row else display(method))
        if not column:
            axes.set_ylabel(f"Best of {n} (%)" if n > 1 else "One reply (%)", color=INK)
    figure.supxlabel("100 - Self-BLEU", fontsize="medium", color=INK)
    handles = [
        Line2D([], [], color=INK, markersize=4, label="by draws", **LOOKS["each"]),
        Line2D([], [], color=INK, markersize=4, label="at the posterior mean", **LOOKS["mean"]),
        Line2D([], [], color=GREY, linestyle=":", label=display(REFERENCE)),
    ]
    legend_of(figure, handles=handles, loc="outside upper center", ncols=3)
    return figure


LOOKS: dict[str, dict[str, Any]] = {
    "each": {"linestyle": "-", "marker": "o"},
    "mean": {"linestyle": "--", "marker": "o", "markerfacecolor": "white"},
}


def _frontier(axes: Axes, entries: Sequence[Entry], method: str, kind: str, n: int, **look: Any) -> None:
    diversities, scores = zip(*along_temperatures(entries, method, kind, n), strict=True)
    middles = [found.difference for found in diversities]
    _banded(axes, middles, scores, markersize=4, linewidth=1.2, **look)
    axes.hlines(
        [found.difference for found in scores],
        [found.low for found in diversities],
        [found.high for found in diversities],
        color=look["color"],
        linewidth=0.7,
    )


def _banded(axes: Axes, places: Sequence[float], found: Sequence[Interval], **look: Any) -> None:
    """Draw scores in percent as a line with the band of their intervals."""
    low, high = (np.clip([getattr(one, end) for one in found], *WHOLE) for end in ("low", "high"))
    axes.plot(places, [one.difference for one in found], **look)
    axes.fill_between(places, low, high, alpha=0.12, linewidth=0, color=look["color"])


SETUP = """\
Models that learnt {task} ({model}, {steps:,} training steps, {seeds}) write {replies} replies to every test
prompt at temperatures of {temperatures}. Each reply has its own posterior draw, or all use the posterior
mean ("mean"). Settings were chosen on validation replies by NLL, with as many trials for every method.

- **Score**: the expected best of n replies in percent, unbiased over all subsets of the {replies}.
- **Diversity**: 100 - Self-BLEU of the first {few} replies of a prompt. **Entropy**: minus the log
  probability of a sampled token at temperature 1, in nats.
- **Tax**: accuracy on questions, with {samples} draws, after learning replies minus before.
- **Intervals** (`95 %`) are crossed over seeds and prompts for differences at one temperature, and over
  prompts for frontiers and budgets.
"""


UNSCORED = """Every reply scores 0 at every temperature, so there are no frontiers or budgets.
"""


def parts(results: Results) -> Iterable[Part]:
    """Return the tables and the figure; if nothing scores, those that do not need a score."""
    entries, name = list(results.entries.values()), results.name
    more = [scores_table(entries)]
    yield difference_table(entries)
    if scored(entries):
        more += [frontier_table(entries), budget_table(entries)]
    else:
        yield UNSCORED
    if "tax" in entries[0]:
        more.append(tax_table(entries))
    yield Folded("Scores, frontiers, budgets and tax", more)
    if scored(entries) and {entry["method"] for entry in entries} != {REFERENCE}:
        yield Picture(
            lambda: frontier_figure(entries),
            f"{name}-frontier",
            f"Score of one reply and of the best of {target_of(entries)} against diversity, by temperature. "
            "Bands and bars: 95 % intervals over seeds and prompts, each method by itself.",
        )


def reply_study(
    name: str,
    about: str | None,
    title: str,
    question: str,
    task: str,
    look: Callable[[Namespace], Look],
    settings: Callable[[str], Mapping[str, Any]],
    *,
    steps: int,
    replies: int,
    runs: str = "runs/replies",
    options: Options,
    facts: Callable[[Results], Mapping[str, Any]] = shared_facts,
) -> StudySpec:
    """Return a study of replies: models that learnt them, trained once, sampled from once, and kept.

    `task` is learnt by every method with its `settings`; `look` says what is looked at in every model.
    Defaults of the command are `steps`, `replies` (to a prompt) and `runs`; all else is as in `look_study`.
    """

    def main() -> None:
        more = {**options, "--replies": option(replies, "replies a prompt")}
        args = parsed(about, more, runs=runs, methods=METHODS, tasks=None, steps=steps)
        asked = look(args)
        shared = {"task.likelihood": "completion", "task.name": task}
        jobs = {
            (method, seed): Job(
                run_settings(args, {**shared, "method": method, "seed": seed, **preset(settings(method))})
            )
            for seed in range(args.seeds)
            for method in args.methods
        }
        depends = {
            "task": task,
            "samples": SAMPLES,
            "few": FEW,
            "temperatures": [*asked.sampling.temperatures],
        }
        read_off(
            name,
            jobs,
            ("method", "seed"),
            lambda system, args: sampled(system, asked.sampling, args.replies, asked.tax),
            about_runs(args, "replies", **depends),
            args,
            by_hash=True,
        )

    return StudySpec(title, question, main, parts, facts=facts)


def microworld_study(
    name: str, about: str | None, title: str, task: str, asked: Callable[[], Sampling]
) -> StudySpec:
    """Return a study of replies in the microworld: chosen settings, and a tax on its questions."""

    def look(args: Namespace) -> Look:
        return Look(asked(), questions_tax(args.rows), {"rows": args.rows})

    options = {"--rows": option(300, "test rows of each task of questions")}
    return reply_study(
        name,
        about,
        title,
        SETUP,
        task,
        look,
        lambda method: chosen(method, CHOICES_REPLIES),
        steps=400,
        replies=max(NUMBERS),
        options=options,
    )


def smollm2_study(
    name: str,
    about: str | None,
    title: str,
    question: str,
    look: Callable[[Namespace], Look],
    *,
    replies: int,
    options: Options,
    facts: Callable[[Results], Mapping[str, Any]] = shared_facts,
) -> StudySpec:
    """Return a study of replies of SmolLM2, which learnt UltraFeedback's chosen ones: they share models."""

    def checked(args: Namespace) -> Look:
        if args.model is None or args.data_dir is None:
            raise ConfigError(
                "Give --model and --data-dir: this study is of a real language model on real rows."
            )
        return look(args)

    settings = {"adapter.target_modules": UPPER, "task.max_length": 256, "task.too_long": "drop"}
    # Two epochs of the 118 replies of at most 256 tokens, prompt included.
    return reply_study(
        name,
        about,
        title,
        question,
        "ultrafeedback",
        checked,
        lambda method: settings,
        steps=60,
        replies=replies,
        runs="runs/instructions",
        options=options,
        facts=facts,
    )
