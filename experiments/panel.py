"""How much does it cost not to tune? Defaults against a tuned grid, on pairs of a language model and a task.

    bara microworld build --world 301 --seed 301 --out runs/worlds/301
    bara backbone get smollm2 --out runs/smollm2
    python -m experiments.panel rows --packages Packages --hellaswag validation.jsonl
    python -m experiments.panel run --llama FOLDER     # hours; goes on where it was stopped
    python -m experiments.panel table

`Packages` is Debian's index of packages (bookworm, main, amd64): the task is to name a package's section from
its description. The plan, docs/results/panel.md, was fixed before the first run.
"""

import json
import random
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy import quantile
from torch import Tensor, tensor

import bara_pyro as bp
from bara_pyro.atomic import write_jsonl
from bara_pyro.errors import TrainingError
from bara_pyro.posthoc.temperature import best_common_log_temperature, nll_at, predictive_at
from bara_pyro.report.style import INK, PALETTE, legend_of, new_figure
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.ownership import discard
from bara_pyro.runs.system import System, build_system
from bara_pyro.runs.train import train
from experiments.engine.figures import PAGE, name_rows, save
from experiments.engine.methods import display

SCORES = Path(__file__).parent / "results" / "panel.jsonl"
ROWS, RUN = Path("runs/panel/rows"), Path("runs/panel/run")
METHODS = ("bara-gate", "lora")
RATES = (0.0003, 0.0006, 0.001, 0.0018, 0.003, 0.005, 0.009, 0.016)
LENGTHS = (0.5, 1, 2)  # of the default number of steps
ONE_LENGTH = ("SmolLM2, hellaswag, 80, texts",)  # a step takes two seconds
VALIDATION, TEST, DRAWS = 80, 300, 10
SECTIONS = {
    "two": "graphics sound",
    "four": "electronics games mail science",
    "twenty": "admin database editors electronics fonts games graphics hamradio httpd kernel "
    "mail math net news ruby science shells sound video web",
}
MICRO = {"backbone.name": "runs/worlds/301", "task.world": 301, "task.seed": 301}
LLAMA = {"backbone.name": "llama"}
UPPER = {"backbone.name": "runs/smollm2", "adapter.top_layers": 2, "adapter.target_modules": "all-linear"}
TEXTS = {"task.labels": "texts"}
# Name of a pair -> its number of training rows and its settings.
PAIRS: dict[str, tuple[int, dict[str, Any]]] = {
    "microworld, wgs, 40": (40, {**MICRO, "task.name": "micro-wgs"}),
    "microworld, arce, 40": (40, {**MICRO, "task.name": "micro-arce"}),
    "microworld, obqa, 80": (80, {**MICRO, "task.name": "micro-obqa"}),
    "microworld, arcc, 160": (160, {**MICRO, "task.name": "micro-arcc"}),
    "microworld, boolq, 160": (160, {**MICRO, "task.name": "micro-boolq"}),
    "microworld, wgs, 320": (320, {**MICRO, "task.name": "micro-wgs"}),
    "Llama, two sections, 40": (40, {**LLAMA, "task.name": "two"}),
    "Llama, four sections, 160": (160, {**LLAMA, "task.name": "four"}),
    "Llama, four sections, 320": (320, {**LLAMA, "task.name": "four"}),
    "SmolLM2, four sections, 40": (40, {**UPPER, "task.name": "four"}),
    "SmolLM2, two sections, 80, texts": (80, {**UPPER, **TEXTS, "task.name": "two"}),
    "SmolLM2, twenty sections, 160": (160, {**UPPER, "task.name": "twenty"}),
    "SmolLM2, hellaswag, 80, texts": (80, {**UPPER, **TEXTS, "task.name": "hellaswag"}),
}
# What is compared with the grid: the default of BaRA, for LoRA too; the one before; what PEFT's examples use.
HELP: dict[str, Any] = {"adapter.calibrated": True}
ARMS: dict[str, dict[str, Any]] = {
    "default": HELP,
    "at 1e-3": {**HELP, "train.lr": 1e-3},
    "PEFT's": {"adapter.calibrated": False, "train.lr": 2e-4, "train.epochs": 3},
}

MARKS = {"microworld": ("o", PALETTE[0]), "Llama": ("s", PALETTE[1]), "SmolLM2": ("^", PALETTE[2])}


def main() -> None:
    """Write rows, run or print the table."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "run", "table"])
    parser.add_argument("--packages", type=Path, help="Debian's index of packages, unpacked")
    parser.add_argument("--hellaswag", type=Path, help="rows of HellaSwag's validation split, JSON Lines")
    parser.add_argument("--llama", type=Path, help="folder of tinystories-llama-260k")
    parser.add_argument("--figure", type=Path, help="file for a figure of the table, .svg")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    args = parser.parse_args()
    {"rows": write_rows, "run": run, "table": table}[args.what](args)


def write_rows(args: Namespace) -> None:
    """Write the rows of the real tasks: 500 for training and validation, the rest for testing."""
    described = defaultdict(list)
    for entry in args.packages.read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line and line[0] != " ")
        described[fields.get("Section")].append(fields.get("Description", ""))
    for name, named in SECTIONS.items():
        sections = named.split()
        texts = {text: section for section in sections for text in sorted(set(described[section]))}
        rows = [{"text": text, "label": section} for text, section in texts.items()]
        least = min(sum(row["label"] == section for row in rows) for section in sections)
        random.Random(0).shuffle(rows)
        write(
            name, [row for section in sections for row in [r for r in rows if r["label"] == section][:least]]
        )
    lines = [json.loads(line) for line in args.hellaswag.read_text().splitlines()]
    write("hellaswag", [{"text": r["ctx"], "choices": r["endings"], "label": int(r["label"])} for r in lines])


def write(name: str, rows: list[dict[str, Any]]) -> None:
    """Write shuffled rows: those of training and validation, and those of the test."""
    ROWS.mkdir(parents=True, exist_ok=True)
    random.Random(1).shuffle(rows)
    cut = min(500, len(rows) * 3 // 5)
    for part, some in (("", rows[:cut]), ("-test", rows[cut : cut + TEST])):
        write_jsonl(ROWS / f"{name}{part}.jsonl", some)


def settings(pair: str, args: Namespace) -> dict[str, Any]:
    """Return the settings of a pair, without those of an arm."""
    rows, own = PAIRS[pair]
    drawn = {
        "task.train_rows": rows + VALIDATION,
        "task.train_rows_seed": 1,
        "task.validation_rows": VALIDATION,
    }
    if not own["task.name"].startswith("micro"):
        file = ROWS / f"{own['task.name']}.jsonl"
        own = {**own, "task.name": str(file), "task.test_file": file.with_name(f"{file.stem}-test.jsonl")}
    if own["backbone.name"] == "llama":
        own = {**own, "backbone.name": str(args.llama)}
    return {**own, **drawn, "seed": 1}


def run(args: Namespace) -> None:
    """Train every arm and every setting of the grid that has no stored score."""
    done = {(row["pair"], row["method"], row["arm"]) for row in stored()}
    for pair in args.pairs:
        base = settings(pair, args)
        first = build_system(load_config(overrides=base))
        plain, steps = {"adapter.calibrated": False}, first.config.train.total_steps
        grid: dict[str, dict[str, Any]] = {
            f"{lr:g}, {length:g}": {**plain, "train.lr": lr, "train.steps": round(steps * length)}
            for length in lengths(pair)
            for lr in RATES
        }
        for method in METHODS:
            for arm, own in {**ARMS, **grid}.items():
                if (pair, method, arm) in done:
                    continue
                config = load_config(overrides={**base, **own, "method": method})
                scores = score(build_system(config, first.backbone, first.task), tuned=arm in grid)
                with SCORES.open("a") as file:
                    file.write(json.dumps({"pair": pair, "method": method, "arm": arm, **scores}) + "\n")
                print(f"{pair} | {method} | {arm}: {scores['nll']:.3f}", flush=True)


def lengths(pair: str) -> tuple[float, ...]:
    """Return the lengths of a pair's grid."""
    return (1,) if pair in ONE_LENGTH else LENGTHS


def score(system: System, *, tuned: bool) -> dict[str, float]:
    """Train and return scores on the test rows (nats, percent); a grid's temperature fits validation rows."""
    try:
        drawn = draws(system)
    except TrainingError:
        return {"nll": inf}
    return drawn.scores(best_common_log_temperature(*drawn.validation) if tuned else 0.0)


@dataclass(frozen=True)
class RunDraws:
    """Draws of a trained run on two splits, each with its labels, and the CPU seconds of its training."""

    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    seconds: float

    def scores(self, ln_t: float) -> dict[str, float]:
        """Return the scores of the average over draws at a log-temperature."""
        drawn, labels = self.test
        found = bp.metrics.evaluate(predictive_at(drawn, ln_t), labels)
        return {
            **{name: found[name] for name in ("nll", "acc", "ece")},
            "validation_nll": nll_at(*self.validation, ln_t),
            "temperature": exp(ln_t),
            "seconds": self.seconds,
        }


def draws(system: System) -> RunDraws:
    """Train and draw; a `TrainingError` if the training diverges."""
    discard(RUN)
    began = time.process_time()
    train(system, RUN)
    seconds = time.process_time() - began
    known, test = system.split("validation"), system.split("test")
    test = test.take(range(min(TEST, len(test))))
    known_drawn, test_drawn = (draw(system, one, DRAWS) for one in (known, test))
    return RunDraws((known_drawn, tensor(known.labels)), (test_drawn, tensor(test.labels)), seconds)


def stored() -> list[dict[str, Any]]:
    """Return the stored scores."""
    return [json.loads(line) for line in SCORES.read_text().splitlines()] if SCORES.exists() else []


def table(args: Namespace) -> None:
    """Print the NLL of the tuned and of the best setting, and each arm's minus the tuned one's, in nats."""
    scores: defaultdict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in stored():
        scores[row["pair"], row["method"]][row["arm"]] = row
    regrets: defaultdict[str, dict[str, float]] = defaultdict(dict)
    print(f"| pair | method | tuned | best | {' | '.join(ARMS)} |\n|---|---|---:|---:|---:|---:|---:|")
    for (pair, method), arms in scores.items():
        if len(arms) < len(ARMS) + len(RATES) * len(lengths(pair)):
            continue
        grid = [row for arm, row in arms.items() if arm not in ARMS and isfinite(row["nll"])]
        tuned = min(grid, key=lambda row: float(row["validation_nll"]))["nll"]
        cells = [f"{tuned:.3f}", f"{min(row['nll'] for row in grid):.3f}"]
        for arm in ARMS:
            regrets[f"{display(method)}, {arm}"][pair] = arms[arm]["nll"] - tuned
            cells.append(f"{arms[arm]['nll'] - tuned:+.3f}")
        print(f"| {pair} | {method} | {' | '.join(cells)} |")
    for name, of_pair in regrets.items():
        some = [*of_pair.values()]
        print(
            f"{name}: median {median(some):+.3f}, 9 of 10 below {quantile(some, 0.9):+.3f}, "
            f"worst {max(some):+.3f}"
        )
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
