"""The demonstration: LoRA and both forms of BaRA on a small task, as `bara demo` trains and scores them.

python -m experiments demo --run runs/demo
"""

from pathlib import Path

from matplotlib.figure import Figure

from bara_pyro.cli.demo import METHODS, TRUTH
from bara_pyro.cli.scores import score_table
from bara_pyro.cli.terminal import say
from bara_pyro.runs.evaluate import truth_predictions
from bara_pyro.runs.folder import load_system
from bara_pyro.untrusted.files import read_json
from experiments.engine.arguments import command_line
from experiments.engine.record import StoredBins, load_predictions, reliability_numbers
from experiments.engine.results import Results, results_option
from experiments.page.figures import pooled_bins, reliability_panels
from experiments.page.parts import Part, Picture
from experiments.page.spec import entry_study

SAMPLES = 10


def parts(results: Results) -> list[Part]:
    """Return the table that the demonstration printed, and a reliability diagram of each method."""
    caption = (
        f"How often answers of a confidence are right, {SAMPLES} draws of the posterior averaged. Bars below "
        "the diagonal: surer than right."
    )
    return [
        score_table(list(results.entries.values())),
        Picture(lambda: reliability(results), "demo-reliability", caption),
    ]


def reliability(results: Results) -> Figure:
    """Draw the reliability diagram of each method and of the true probabilities."""
    drawn = [entry for entry in results.entries.values() if "reliability" in entry]
    return reliability_panels(
        {
            f"{entry['method']}\nECE {float(entry['ece']):.1f} %": pooled_bins([entry["reliability"]])
            for entry in drawn
        }
    )


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


STUDY = entry_study("The demonstration", "`make demo`: {task}, one seed.", main, parts, order=30)
