"""How much does it cost not to tune? Defaults against a tuned grid, on pairs of a language model and a task.

    bara microworld build --world 501 --seed 501 --out runs/worlds/501
    bara backbone get smollm2 --out runs/smollm2
    python -m experiments.panel rows --packages Packages
    python -m experiments.panel run --llama FOLDER     # hours; goes on where it was stopped
    python -m experiments.panel table

`--panel many_rows` is a panel with more rows, on world 701. `Packages` is Debian's index of packages
(bookworm, main, amd64): the task is to name a package's tag or section from its description. The plans in
experiments/studies/panel were fixed before the first runs.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy import quantile

from bara_pyro.report.style import INK, PALETTE, legend_of, new_figure
from bara_pyro.runs.by_rows import default_steps
from bara_pyro.runs.config import load_config
from bara_pyro.runs.system import build_system
from experiments.engine.figures import PAGE, name_rows, save
from experiments.engine.methods import display
from experiments.grid import (
    LENGTHS,
    RATES,
    TEXTS,
    UPPER,
    Settings,
    chosen_of,
    drawn_rows,
    file_settings,
    grid,
    keep,
    score,
    stored,
    tagged_packages,
    write_parts,
)

RESULTS = Path(__file__).parent / "results" / "scores"
ROWS, RUN = Path("runs/panel/rows"), Path("runs/panel/run")
METHODS = ("bara-gate", "lora")


class Panel(NamedTuple):
    """Pairs of a language model and a task.

    Attributes:
        scores: file of the scores.
        pairs: name of a pair -> its number of training rows and its settings.
        arms: compared with the grid.
        lengths: of the grid, as parts of the default number of steps.
        validation: number of rows on which the grid is tuned.
        tags: facet of Debian's index, or a field -> the tags to name.
        drawn: at most so many rows to draw from, and this share of all; others are for the test.
    """

    scores: Path
    pairs: dict[str, tuple[int, Settings]]
    arms: dict[str, Settings]
    lengths: tuple[float, ...]
    validation: int
    tags: dict[str, tuple[str, ...]]
    drawn: tuple[int, float]


TAGS = {
    "field": ("mathematics", "finance"),
    "role": ("program", "documentation", "app-data", "plugin"),
    "works-with": ("text", "audio", "mail", "db", "file"),
    "implemented-in": ("c", "perl", "python", "java", "lisp"),
    "suite": ("gnu", "debian", "kde", "emacs", "openstack", "gnome"),
}
MANY_TAGS = {
    "use": (
        *("gameplaying", "converting", "editing", "checking", "viewing", "monitor", "configuring"),
        *("analysing", "playing", "learning", "organizing", "searching"),
    ),
    "Section": (
        *("libs", "libdevel", "python", "doc", "perl", "utils", "devel", "haskell", "net", "rust"),
        *("golang", "javascript", "java", "science", "ruby", "admin", "gnu-r", "games", "x11", "text"),
    ),
}
MICRO = {"backbone.name": "runs/worlds/501", "task.world": 501, "task.seed": 501}
NEW_MICRO = {"backbone.name": "runs/worlds/701", "task.world": 701, "task.seed": 701}
LLAMA = {"backbone.name": "llama"}
PAIRS: dict[str, tuple[int, Settings]] = {
    "microworld, arce, 80": (80, {**MICRO, "task.name": "micro-arce"}),
    "microworld, obqa, 160": (160, {**MICRO, "task.name": "micro-obqa"}),
    "microworld, wgs, 160": (160, {**MICRO, "task.name": "micro-wgs"}),
    "Llama, field, 60": (60, {**LLAMA, "task.name": "field"}),
    "Llama, works-with, 160": (160, {**LLAMA, "task.name": "works-with"}),
    "Llama, implemented-in, 320": (320, {**LLAMA, "task.name": "implemented-in"}),
    "SmolLM2, role, 40, texts": (40, {**UPPER, **TEXTS, "task.name": "role"}),
    "SmolLM2, works-with, 80": (80, {**UPPER, "task.name": "works-with"}),
    "SmolLM2, suite, 120": (120, {**UPPER, "task.name": "suite"}),
}
MANY_PAIRS: dict[str, tuple[int, Settings]] = {
    "microworld, obqa, 640": (640, {**NEW_MICRO, "task.name": "micro-obqa"}),
    "microworld, obqa, 4700": (4700, {**NEW_MICRO, "task.name": "micro-obqa"}),
    "Llama, use, 640": (640, {**LLAMA, "task.name": "use"}),
    "Llama, sections, 4700": (4700, {**LLAMA, "task.name": "Section"}),
}
# Compared with the grid: the default, also on as many rows more as the grid has for validation, and PEFT's;
# with many rows the default search at a third of its rates.
MORE, LOWER = "default, 80 more", "search from 1e-3"
PEFT: Settings = {"adapter.calibrated": False, "train.lr": 2e-4, "train.epochs": 3}
ARMS: dict[str, Settings] = {"default": {}, MORE: {}, "PEFT's": PEFT}
MANY_ARMS = {"default": {}, LOWER: {"train.find_lr": True, "train.lr": 1e-3 / 3}, "PEFT's": PEFT}
TOO_FEW = ("Llama, field, 60", MORE)  # an arm that the pair's rows do not suffice for
PANELS = {
    "second": Panel(RESULTS / "second_panel.jsonl.gz", PAIRS, ARMS, LENGTHS, 80, TAGS, (500, 0.6)),
    "many_rows": Panel(
        RESULTS / "many_rows_panel.jsonl.gz",
        MANY_PAIRS,
        MANY_ARMS,
        (0.25, 0.5, 1),
        200,
        MANY_TAGS,
        (5000, 0.8),
    ),
}
MARKS = {"microworld": ("o", PALETTE[0]), "Llama": ("s", PALETTE[1]), "SmolLM2": ("^", PALETTE[2])}


def main() -> None:
    """Write rows, run or print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "run", "table"])
    parser.add_argument("--panel", choices=PANELS, default="second")
    parser.add_argument("--packages", type=Path, help="Debian's index of packages, unpacked")
    parser.add_argument("--llama", type=Path, help="folder of tinystories-llama-260k")
    parser.add_argument("--figure", type=Path, help="file for a figure of the table, .svg")
    parser.add_argument("--pairs", nargs="+", choices=[*PAIRS, *MANY_PAIRS], help="default: all of the panel")
    args = parser.parse_args()
    {"rows": write_rows, "run": run, "table": table}[args.what](PANELS[args.panel], args)


def write_rows(panel: Panel, args: Namespace) -> None:
    """Write the rows of the real tasks: those to draw from, and others for the test."""
    most, share = panel.drawn
    for facet, tags in panel.tags.items():
        rows = tagged_packages(args.packages, facet, tags)
        write_parts(ROWS, facet, rows, min(most, int(len(rows) * share)))


def settings(panel: Panel, pair: str, args: Namespace) -> Settings:
    """Return the settings of a pair, without those of an arm."""
    rows, own = panel.pairs[pair]
    if not own["task.name"].startswith("micro"):
        own = {**own, **file_settings(ROWS, own["task.name"])}
    if own["backbone.name"] == "llama":
        own = {**own, "backbone.name": str(args.llama)}
    return {**own, **drawn_rows(rows, panel.validation, 1), "seed": 1}


def run(panel: Panel, args: Namespace) -> None:
    """Train every arm and every setting of the grid that has no stored score."""
    done = {(row["pair"], row["method"], row["arm"]) for row in stored(panel.scores)}
    for pair in args.pairs or panel.pairs:
        base, count = settings(panel, pair, args), panel.pairs[pair][0]
        first = build_system(load_config(overrides=base))
        tried = grid(default_steps(count, first.config.train.batch_size), panel.lengths)
        for method in METHODS:
            for arm, own in {**panel.arms, **tried}.items():
                if (pair, method, arm) in done or (pair, arm) == TOO_FEW:
                    continue
                more = panel.validation
                rows = drawn_rows(count + more, more, 1) if arm == MORE else {}
                config = load_config(overrides={**base, **own, **rows, "method": method})
                system = build_system(config, first.backbone, None if rows else first.task)
                scores = score(system, RUN, tuned=arm in tried)
                keep(panel.scores, {"pair": pair, "method": method, "arm": arm}, scores)


def table(panel: Panel, args: Namespace) -> None:
    """Print the NLL of the tuned and of the best setting, and each arm's minus the tuned one's, in nats."""
    scores: defaultdict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in stored(panel.scores):
        scores[row["pair"], row["method"]][row["arm"]] = row
    regrets: defaultdict[str, dict[str, float]] = defaultdict(dict)
    names = " | ".join(panel.arms)
    print(f"| pair | method | tuned | best | {names} |\n|---|---|---:|---:|{'---:|' * len(panel.arms)}")
    for (pair, method), arms in scores.items():
        tried = [row for arm, row in arms.items() if arm not in panel.arms]
        if "default" not in arms or len(tried) < len(RATES) * len(panel.lengths):
            continue
        tuned = chosen_of(tried)["nll"]
        cells = [f"{tuned:.3f}", f"{min(row['nll'] for row in tried):.3f}"]
        for arm in panel.arms:
            regret = arms[arm]["nll"] - tuned if arm in arms else None
            cells.append("–" if regret is None else f"{regret:+.3f}")
            if regret is not None:
                regrets[f"{display(method)}, {arm}"][pair] = regret
        print(f"| {pair} | {method} | {' | '.join(cells)} |")
    for name, of_pair in regrets.items():
        some = [*of_pair.values()]
        figures = f"median {median(some):+.3f}, 9 of 10 below {quantile(some, 0.9):+.3f}"
        print(f"{name}: {figures}, worst {max(some):+.3f}")
    if args.figure:
        caption = "NLL of untuned runs minus that of the tuned one, a mark for each pair; left is better."
        save(regret_figure(regrets), args.figure, caption)


def regret_figure(regrets: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the regrets of each arm: a mark for each pair by its language model, a line at the median."""
    figure = new_figure(PAGE, 0.4 * len(regrets) + 1.2)
    axes = figure.add_subplot()
    for place, of_pair in enumerate(regrets.values()):
        axes.plot([median(of_pair.values())] * 2, [place - 0.3, place + 0.3], color=INK, linewidth=2)
        for pair, value in of_pair.items():
            marker, colour = MARKS[pair.split(",")[0]]
            axes.plot(
                value, place, marker, color=colour, markerfacecolor="none", label=f"{pair}: {value:+.3f}"
            )
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    axes.set_xscale("symlog", linthresh=0.1)
    name_rows(axes, regrets, "NLL minus that of the tuned run (nats)")
    shown = [Line2D([], [], marker=m, color=c, markerfacecolor="none", linestyle="none", label=name)
             for name, (m, c) in MARKS.items()]  # fmt: skip
    legend_of(figure, handles=shown, loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    main()
