"""The demonstration: LoRA and both forms of BaRA on a small task, as `bara demo` trains and scores them.

    make demo                                     # trains, and writes runs/demo
    python -m experiments demo --run runs/demo    # keeps the scores of runs/demo for this page

The second command trains nothing.
"""

import math
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.cli.demo_page import METHODS, TRUTH
from bara_pyro.cli.scores import score_table
from bara_pyro.cli.terminal import say
from bara_pyro.metrics import ReliabilityBins, reliability_bins
from bara_pyro.metrics.reliability import bin_edges
from bara_pyro.report import reliability_diagram
from bara_pyro.runs.evaluate import truth_predictions
from bara_pyro.runs.folder import load_system
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import command_line
from experiments.engine.record import load_predictions
from experiments.engine.results import Results, results_option
from experiments.page.parts import Part, Picture
from experiments.page.spec import StudySpec

SAMPLES = 10
StoredBins = dict[str, list[float | None]]
"""Of each bin of a reliability diagram `counts`, `accuracy` and `confidence`, null if it has no row."""
SHOWN = {f"LoRA {SAMPLES}": "LoRA", f"BaRA gate {SAMPLES}": "BaRA"}  # key of the results -> title


def parts(results: Results) -> list[Part]:
    """Return the table that the demonstration printed, and a reliability diagram of two methods."""
    caption = (
        "How often an answer is correct, for each level of confidence. Bars below the diagonal: the model "
        f"is overconfident. BaRA's probabilities are averages over {SAMPLES} posterior draws."
    )
    shown = {title: stored_bins(results.entries[key]["reliability"]) for key, title in SHOWN.items()}
    draw = partial(reliability_diagram, shown)
    return [score_table(list(results.entries.values())), Picture(draw, "demo-reliability", caption)]


def stored_bins(stored: StoredBins) -> ReliabilityBins:
    """Return the bins that were stored; NaN stands for the accuracy and confidence of an empty bin."""
    counts, accuracy, confidence = (
        torch.tensor([float("nan") if value is None else value for value in stored[key]], dtype=torch.float64)
        for key in ("counts", "accuracy", "confidence")
    )
    return ReliabilityBins(bin_edges(len(counts)), counts, accuracy, confidence)


def reliability_numbers(log_probs: Tensor, labels: Tensor) -> StoredBins:
    """Return the reliability diagram's numbers; bins are of equal width."""
    bins = reliability_bins(log_probs, labels)
    means = {"accuracy": bins.accuracy.tolist(), "confidence": bins.confidence.tolist()}
    return {"counts": bins.counts.tolist()} | {
        key: [None if math.isnan(value) else round(value, 5) for value in values]
        for key, values in means.items()
    }


def bins_of(run: Path) -> dict[str, StoredBins]:
    """Return the bins of each method and of the truth, by the key of its scores."""
    found = {}
    for method, name in METHODS.items():
        labels, log_probs = load_predictions(run / method)
        found[f"{name} {SAMPLES}"] = reliability_numbers(log_probs[SAMPLES], labels)
    truth = truth_predictions(load_system(run / "lora"))
    return found if truth is None else {**found, TRUTH: reliability_numbers(*truth)}


def main() -> None:
    """Keep the scores of a demonstration that was run."""
    parser = command_line(__doc__)
    parser.add_argument("--run", metavar="DIR", type=Path, default=Path("runs/demo"),
        help="folder that `bara demo` wrote; default: %(default)s")  # fmt: skip
    results_option(parser)
    args = parser.parse_args()
    run = args.run
    stored, bins = read_json(run / "results.json"), bins_of(run)
    results = Results("demo", args.out, {"task": stored["task"]})
    for row in stored["rows"]:
        key = f"{row['method']} {row.get('S', '')}".strip()
        results.add(key, {**row, **({"reliability": bins[key]} if key in bins else {})})
    say(f"Written: {results.path}: python -m experiments report --out {args.out}")


STUDY = StudySpec(
    "What does the demonstration show?",
    "`make demo`: {task}, one seed.",
    main,
    parts,
)
