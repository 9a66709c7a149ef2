"""How much does it cost not to tune? Defaults against a tuned grid, on pairs of a language model and a task.

    bara microworld build --world 801 --seed 801 --out runs/worlds/801
    bara backbone get smollm2 --out runs/smollm2
    python -m experiments.panel rows --packages Packages
    python -m experiments.panel run                    # hours; goes on where it was stopped
    python -m experiments.panel table

`Packages` is Debian's index of packages (bookworm, main, amd64): the task is to name a package's tag from its
description. The plan, shorter.md in experiments/studies/panel, was fixed before the first run of its pairs.
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
from bara_pyro.runs.stored import stored_step
from bara_pyro.runs.system import build_system
from experiments.engine.figures import PAGE, name_rows, save
from experiments.engine.methods import display
from experiments.grid import (
    RATES,
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

SCORES = Path(__file__).parent / "results" / "scores" / "shorter_panel.jsonl.gz"
ROWS, RUN = Path("runs/panel/rows"), Path("runs/panel/run")
METHODS = ("bara-gate", "lora")
VALIDATION, LENGTHS = 200, (0.25, 0.5, 1)  # the grid's rows to tune on; its parts of the default steps
TAGS = {"interface": ("graphical", "commandline", "daemon", "text-mode")}
MICRO = {"backbone.name": "runs/worlds/801", "task.world": 801, "task.seed": 801}
# Name of a pair -> its number of training rows and its settings.
PAIRS: dict[str, tuple[int, Settings]] = {
    "microworld, arcc, 640": (640, {**MICRO, "task.name": "micro-arcc"}),
    "microworld, arce, 1280": (1280, {**MICRO, "task.name": "micro-arce"}),
    "microworld, wgm, 1280": (1280, {**MICRO, "task.name": "micro-wgm"}),
    "SmolLM2, interface, 640": (640, {**UPPER, "task.name": "interface"}),
}
# Compared with the grid.
FULL = "full length"
ARMS: dict[str, Settings] = {
    "default": {},
    FULL: {"train.may_shorten": False},
    "PEFT's": {"adapter.calibrated": False, "train.lr": 2e-4, "train.epochs": 3},
}
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
    args = parser.parse_args()
    {"rows": write_rows, "run": run, "table": table}[args.what](args)


def write_rows(args: Namespace) -> None:
    """Write the rows of the real tasks: at most 5,000 to draw from, and others for the test."""
    for facet, tags in TAGS.items():
        rows = tagged_packages(args.packages, facet, tags)
        write_parts(ROWS, facet, rows, min(5000, len(rows) * 4 // 5))


def settings(pair: str) -> Settings:
    """Return the settings of a pair, without those of an arm."""
    rows, own = PAIRS[pair]
    if not own["task.name"].startswith("micro"):
        own = {**own, **file_settings(ROWS, own["task.name"])}
    return {**own, **drawn_rows(rows, VALIDATION, 1), "seed": 1}


def run(args: Namespace) -> None:
    """Train every arm and every setting of the grid that has no stored score."""
    done = {(row["pair"], row["method"], row["arm"]): row for row in stored(SCORES)}
    for pair in args.pairs:
        base = settings(pair)
        first = build_system(load_config(overrides=base))
        tried = grid(default_steps(PAIRS[pair][0], first.config.train.batch_size), LENGTHS)
        for method in args.methods:
            for arm, own in {**ARMS, **tried}.items():
                if (pair, method, arm) in done:
                    continue
                scores = done.get((pair, method, "default"), {})
                config = load_config(overrides={**base, **own, "method": method})
                system = build_system(config, first.backbone, first.task)
                if arm != FULL or scores["shorter"]:  # otherwise the default has the full length
                    scores = score(system, RUN, tuned=arm in tried)
                place = {"pair": pair, "method": method, "arm": arm}
                scores = {**scores, **place}
                if arm == "default":
                    scores["shorter"] = stored_step(RUN) < system.config.train.total_steps
                done[pair, method, arm] = scores
                keep(SCORES, place, scores)


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
