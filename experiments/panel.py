"""How much does it cost not to tune? Defaults against a tuned grid, on pairs of a language model and a task.

    bara microworld build --world 901 --seed 901 --out runs/worlds/901
    bara backbone get smollm2 --out runs/smollm2
    python -m experiments.panel rows --packages Packages
    python -m experiments.panel run                    # hours; goes on where it was stopped
    python -m experiments.panel table

`Packages` is Debian's index of packages (bookworm, main, amd64): the task is to name a package's tag from its
description. The plan, cheaper.md in experiments/studies/panel, was fixed before the first run.
docs/results/panel.md names the code of earlier panels; `table --scores FILE` prints their tables.
"""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy import quantile

from bara_pyro.report.style import INK, PALETTE, legend_of, new_figure
from bara_pyro.runs.config import default_steps, load_config
from bara_pyro.runs.system import build_system
from experiments.engine.figures import PAGE, name_rows, save
from experiments.engine.methods import display
from experiments.grid import (
    DIVERGED,
    RATES,
    UPPER,
    Settings,
    chosen_of,
    drawn_rows,
    file_settings,
    grid,
    keep,
    stored,
    tagged_packages,
    trained,
    write_parts,
)

SCORES = Path(__file__).parent / "results" / "scores" / "cheaper_panel.jsonl.gz"
ROWS, RUN = Path("runs/panel/rows"), Path("runs/panel/run")
METHODS = ("bara-gate", "lora")
VALIDATION, LENGTHS = 20, (0.5, 1, 2)  # the grid's rows to tune on; its parts of the default steps
TAGS = {
    "protocol": ("http", "ssl"),
    "devel": ("library", "doc"),
    "culture": ("japanese", "german", "chinese", "french"),
    "x11": ("application", "font", "applet"),
}
MICRO = {"backbone.name": "runs/worlds/901", "task.world": 901, "task.seed": 901}
LLAMA = {"backbone.name": "runs/llama"}
# Name of a pair -> its number of training rows and its settings.
PAIRS: dict[str, tuple[int, Settings]] = {
    "microworld, boolq, 120": (120, {**MICRO, "task.name": "micro-boolq"}),
    "microworld, arcc, 640": (640, {**MICRO, "task.name": "micro-arcc"}),
    "microworld, boolq, 1280": (1280, {**MICRO, "task.name": "micro-boolq"}),
    "microworld, obqa, 1280": (1280, {**MICRO, "task.name": "micro-obqa"}),
    "SmolLM2, culture, 60": (60, {**UPPER, "task.name": "culture"}),
    "SmolLM2, x11, 80": (80, {**UPPER, "task.name": "x11"}),
    "Llama, protocol, 80": (80, {**LLAMA, "task.name": "protocol"}),
    "Llama, devel, 640": (640, {**LLAMA, "task.name": "devel"}),
}
GRIDS: tuple[str, ...] = ()  # the pairs that have a grid
FORMER = "former default"  # `run --arm "former default"` with the library of commit 2e0f491d
MARKS = {"microworld": ("o", PALETTE[0]), "Llama": ("s", PALETTE[1]), "SmolLM2": ("^", PALETTE[2])}


def main() -> None:
    """Write rows, run or print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "run", "table"])
    parser.add_argument("--packages", type=Path, help="Debian's index of packages, unpacked")
    parser.add_argument("--scores", type=Path, default=SCORES, help="of the table; default: of this panel")
    parser.add_argument("--figure", type=Path, help="file for a figure of the table, .svg")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--arm", choices=["default", FORMER], default="default", help="the run's name")
    args = parser.parse_args()
    {"rows": write_rows, "run": run, "table": table}[args.what](args)


def write_rows(args: Namespace) -> None:
    """Write the rows of the real tasks: those to train on and to set aside, and others for the test."""
    for count, own in PAIRS.values():
        if (facet := own["task.name"]) in TAGS:
            rows = tagged_packages(args.packages, facet, TAGS[facet])
            write_parts(ROWS, facet, rows, count + VALIDATION)


def settings(pair: str) -> Settings:
    """Return the settings of a pair, without those of an arm."""
    rows, own = PAIRS[pair]
    if not own["task.name"].startswith("micro"):
        own = {**own, **file_settings(ROWS, own["task.name"])}
    return {**own, **drawn_rows(rows, VALIDATION, 1), "seed": 1}


def run(args: Namespace) -> None:
    """Train the arm and every setting of the grid that has no stored score."""
    done = {(row["pair"], row["method"], row["arm"]) for row in stored(SCORES)}
    for pair in args.pairs:
        base = settings(pair)
        first = build_system(load_config(overrides=base))
        steps = default_steps(PAIRS[pair][0], first.config.train.batch_size)
        tried = grid(steps, LENGTHS) if pair in GRIDS and args.arm != FORMER else {}
        for method in args.methods:
            for arm, own in {args.arm: {}, **tried}.items():
                if (pair, method, arm) in done:
                    continue
                config = load_config(overrides={**base, **own, "method": method})
                system = build_system(config, first.backbone, first.task)
                drawn = trained(system, RUN)
                scores = drawn.scores(drawn.log_temperature(tuned=arm in tried)) if drawn else DIVERGED
                keep(SCORES, {"pair": pair, "method": method, "arm": arm}, scores)


def table(args: Namespace) -> None:
    """Print the NLL of the tuned and of the best setting, and each arm's minus the tuned one's, in nats."""
    scores: defaultdict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in stored(args.scores):
        scores[row["pair"], row["method"]][row["arm"]] = row
    regrets: defaultdict[str, dict[str, float]] = defaultdict(dict)
    shown = [*dict.fromkeys(arm for arms in scores.values() for arm in arms if not arm[0].isdigit())]
    print(
        f"| pair | method | tuned | best | {' | '.join(shown)} |\n|---|---|---:|---:|{'---:|' * len(shown)}"
    )
    for (pair, method), arms in scores.items():
        tried = [row for arm, row in arms.items() if arm not in shown]
        if "default" not in arms or len(tried) < len(RATES) * len(LENGTHS):
            continue
        tuned = chosen_of(tried)["nll"]
        cells = [f"{tuned:.3f}", f"{min(row['nll'] for row in tried):.3f}"]
        for arm in shown:
            regret = arms[arm]["nll"] - tuned if arm in arms else None
            cells.append("–" if regret is None else f"{regret:+.3f}")
            if regret is not None:
                regrets[f"{display(method)}, {arm}"][pair] = regret
        print(f"| {pair} | {method} | {' | '.join(cells)} |")
    for (pair, method), arms in scores.items():
        if FORMER in arms:
            change = arms["default"]["nll"] - arms[FORMER]["nll"]
            print(f"{pair}, {method}, default minus {FORMER}: {change:+.3f}")
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
            axes.plot(value, place, marker, color=colour, markerfacecolor="none")
    axes.axvline(0, color=INK, linewidth=0.9, linestyle="--")
    axes.set_xscale("symlog", linthresh=0.1)
    name_rows(axes, regrets, "NLL minus that of the tuned run (nats)")
    models = {pair.split(",")[0] for of_pair in regrets.values() for pair in of_pair}
    shown = [Line2D([], [], marker=m, color=c, markerfacecolor="none", linestyle="none", label=name)
             for name, (m, c) in MARKS.items() if name in models]  # fmt: skip
    legend_of(figure, handles=shown, loc="outside upper center", ncols=3)
    return figure


if __name__ == "__main__":
    main()
