"""Write docs/results.md from the committed result files; nothing in it is typed by hand but the words.

python -m experiments.report
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from bara_pyro.config import load_config

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
KEYS = (("acc", 1), ("ece", 1), ("nll", 3), ("brier", 3))

INTRODUCTION = """# Results

Written by `python -m experiments.report` from the files in `experiments/results/`, which hold every score
with its configuration hash, versions and hardware. Accuracy and ECE (15 bins) in percent, NLL in nats, Brier
from 0 to 2. S = 0 is the posterior mean, S = 10 the average over ten draws. Where there is one seed, say
nothing about differences of a few points: on 1,000 rows the standard error of an accuracy is 1.5 points.
"""

REAL = """## Real rows, a real language model

A Llama of 260 thousand parameters trained on children's stories (5 layers, width 64), {steps} steps of 4 rows
at rate 1e-3, r = 8, official splits, letters as answers. It knows nothing of science or current affairs: on
the paper's sets the fair answer is "I do not know", and a good method says so (NLL near log C, small ECE).
ag_news it can learn in part, and there BaRA learns more slowly than LoRA: noise of the order of the gates
themselves has to be averaged out. Nothing was tuned here.
"""

SELECTED = """## Each method at the learning rate that validation chose

Test rows, {steps} steps. Every method had the same budget: four rates and the seeds of the sweep above; the
lowest NLL on validation rows wins (`experiments/selected.py`).
"""

SWEEP = """## Learning rates, before and after the mend ({task})

{steps} steps on rows of train, scored on rows set aside from it, S = 10; seeds: {seeds}. "before" is
Algorithm 1 as printed (noise levels random around ln 2, no cap, one rate for all, the amortiser sees its
input as it is), "after" are the defaults; docs/decisions.md has the mechanism.
"""


def _load(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def _spread(values: list[float], digits: int) -> str:
    if any(v is None for v in values):
        return "∞"
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def scores(results: dict[str, Any], introduction: str) -> list[str]:
    """Return a table of runs named "task method seed": mean and spread over the seeds there are."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for name, report in results.items():
        task, method, _ = name.split(" ")
        groups[task, method].append(report)
    lines = [
        "| task | method | lr | S | seeds | acc | ECE | NLL | Brier |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (task, method), reports in groups.items():
        rate = reports[0]["settings"].get("train.lr", load_config().train.lr)
        for samples in ("0",) if method == "lora" else ("0", "10"):
            rows = [report["metrics"][samples] for report in reports]
            cells = [_spread([row[key] for row in rows], digits) for key, digits in KEYS]
            lines.append(f"| {task} | {method} | {rate:g} | {samples} | {len(rows)} | {' | '.join(cells)} |")
    steps = next(iter(results.values()))["settings"]["train.steps"]
    return [introduction.format(steps=steps), *lines, ""]


def sweep(task: str, results: dict[str, Any]) -> list[str]:
    """Return the table of a sweep: a row an arm, a column a rate, in a cell the mean over the seeds."""
    cells: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for name, report in results.items():
        arm, rate, _ = name.rsplit(" ", 2)
        cells[arm][rate].append(report)
    rates = list(dict.fromkeys(rate for row in cells.values() for rate in row))
    lines = ["| acc / ECE / NLL | " + " | ".join(f"lr {rate}" for rate in rates) + " |"]
    lines.append("|---|" + "---|" * len(rates))
    lines += [
        f"| {arm} | " + " | ".join(_cell(row[rate]) for rate in rates) + " |" for arm, row in cells.items()
    ]
    settings, seeds = next(iter(results.values()))["settings"], len(next(iter(cells["lora"].values())))
    return [SWEEP.format(task=task, steps=settings["train.steps"], seeds=seeds), *lines, ""]


def _cell(reports: list[dict[str, Any]]) -> str:
    if not reports or any("failed" in report for report in reports):
        return "failed" if reports else "–"
    scores = [report["metrics"]["10"] for report in reports]
    return " / ".join(_spread([s[key] for s in scores], digits) for key, digits in KEYS[:3])


def demo(results: dict[str, Any]) -> list[str]:
    """Return the table that the demonstration printed."""
    lines = ["## The demonstration", "", f"`make demo`: {results['task']}, one seed.", ""]
    lines += [
        "| method | S | acc | ECE | NLL | Brier | KL from truth |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in results["rows"]:
        cells = [
            row.get("S", "–"),
            *(row.get(key, "–") for key in ("acc", "ece", "nll", "brier", "kl_truth")),
        ]
        shown = [f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells]
        lines.append(f"| {row['method']} | {' | '.join(shown)} |")
    return [*lines, ""]


def main() -> None:
    """Write the page."""
    lines = [INTRODUCTION]
    if (results := _load("demo.json")) is not None:
        lines += demo(results)
    for task in ("micro-wgs", "ag_news"):
        if (results := _load(f"lr_sweep_{task}.json")) is not None:
            lines += sweep(task, results)
    for name, introduction in (("selected", SELECTED), ("real_rows", REAL)):
        if (results := _load(f"{name}.json")) is not None:
            lines += scores(results, introduction)
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
