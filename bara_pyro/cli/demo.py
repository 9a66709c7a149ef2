"""The demonstration: LoRA and both forms of BaRA on one task, in one table and on one page.

The page is for readers who know no statistics; details are folded below.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.atomic import write_json, write_text
from bara_pyro.cli.running import run, score_columns, score_rows, score_table
from bara_pyro.cli.terminal import result, say, show
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics import ReliabilityBins, reliability_bins
from bara_pyro.metrics._inputs import correctness
from bara_pyro.report.figures import PARTS, recorded_parts, reliability_diagram, training_curves
from bara_pyro.report.html import Block, Details, Paragraph, Picture, Points, Section, write_index
from bara_pyro.report.style import save
from bara_pyro.report.table import Column, Table, markdown
from bara_pyro.runs.config import RunConfig, for_rows, load_config
from bara_pyro.runs.devices import find_device
from bara_pyro.runs.evaluate import truth_predictions, truth_scores, untrained_scores
from bara_pyro.runs.evaluation_files import log_probs_and_labels, read_predictions
from bara_pyro.runs.manifest import LOG, is_run
from bara_pyro.runs.ownership import adding, clear
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.stored import stored_config
from bara_pyro.runs.system import System, build_system
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_jsonl
from bara_pyro.untrusted.schemas import LogLine

STEPS = 1500  # with 640 rows, LoRA is then clearly overconfident, and the demonstration takes a few minutes
QUICK = {"train.steps": 20, "task.limit": 48}


def demo(out: Path, given: Json, *, overwrite: bool, quick: bool) -> None:
    """Train the methods in turn, print the table of scores and write the page; see `bara demo`.

    An interrupted demonstration continues. `overwrite` starts a finished one again, or one with other
    settings. Each method writes its run into its own folder in `out`. `given` are settings by dotted key;
    None keeps a default.
    """
    if given.get("backbone.name") is None and "OMP_NUM_THREADS" not in os.environ:
        # More threads save a tenth with matrices this small. Where cores are taken, they wait for each other
        # at every step: 25 minutes instead of 30 seconds.
        torch.set_num_threads(1)
    settings = {**(QUICK if quick else {"train.steps": STEPS}), "predict.samples": [0, 10]}
    settings |= {key: value for key, value in given.items() if value is not None}
    configs = {method: load_config(overrides={**settings, "method": method}) for method in METHODS}
    if any(is_run(out / method) and not _same(out / method, config) for method, config in configs.items()):
        if not overwrite:
            raise ConfigError(f"{out} was started with other settings: add --overwrite to start again.")
        overwrite = True
    if overwrite:
        for folder in (*(out / method for method in METHODS), out):
            clear(folder)
    rows, system = _train_all(out, configs)
    write_page(out, system, rows, quick)
    show(score_table(rows))
    say(f"Open {out / INDEX}")
    result({"page": out / INDEX, "rows": rows})


def _same(folder: Path, config: RunConfig) -> bool:
    try:
        started, stored = stored_config(folder)
        return started == for_rows(config, stored["num_data"])
    except (CheckpointError, ValueError):
        return False


def _train_all(out: Path, configs: Mapping[str, RunConfig]) -> tuple[list[Json], System]:
    """Return the rows of the table, and one of the systems for what they share."""
    shared = configs["lora"]
    data = load_data(shared)
    backbone = load_backbone(shared.backbone.name, device=find_device(shared.backbone.device))
    system = build_system(shared, backbone, data)
    rows: list[Json] = [{"method": "no training", **untrained_scores(system)}]
    for method, config in configs.items():
        system = build_system(config, backbone, data)
        report = run(config, out / method, resume=True, system=system, name=METHODS[method])
        rows += score_rows(report, METHODS[method])
    scores = truth_scores(system)
    if scores is not None:
        # As text, so that the table marks the best of the methods and not the truth.
        known = [column for column in score_columns() if column.key in scores]
        shown = {column.key: format(scores[column.key], column.format) for column in known}
        rows.append({"method": TRUTH, **shown})
    return rows, system


METHODS = {"lora": "LoRA", "bara": "BaRA", "bara-gate": "BaRA gate"}
INDEX, TRUTH = "index.html", "truth"
SURE = 0.9  # confidence from which the page counts an answer as sure
ANSWERED = (100, 75, 50, 25)  # shares of the questions that a method answers, in percent

Predictions = tuple[Tensor, Tensor]
"""Log-probabilities (`n x C`) and labels (`n`)."""


def write_page(out: Path, system: System, rows: list[Json], quick: bool) -> None:
    """Write the table, the pictures and, last, the page that shows them."""
    with adding(out) as place:
        table, truth = score_table(rows), truth_predictions(system)
        predictions = {samples: _predicted(out, samples, truth) for samples in (10, 0)}
        bins = {
            samples: {name: reliability_bins(*predicted) for name, predicted in systems.items()}
            for samples, systems in predictions.items()
        }
        curves = _histories(out, system.model.num_data)
        write_json(place / "results.json", {"schema": 1, "task": system.task.name, "rows": rows})
        write_text(place / "results.md", markdown(table))
        for samples, systems in bins.items():
            save(reliability_diagram(systems), place / f"reliability-s{samples}.png")
        save(training_curves(curves), place / "elbo.png")
        setting = (
            f"Three methods fine-tuned the same language model on {system.model.num_data} examples. Each "
            f"then answered {len(system.split('test'))} new questions, and said how sure it was of every "
            "answer. Probabilities can be trusted if a method is as often correct as it says."
        )
        parts = [
            Picture(training_curves(curves, parts=[part]), f"{PARTS[part]} against the training step.")
            for part in recorded_parts(curves)
        ]
        details: list[Block] = [
            Details("All scores", [table, *_text(system, truth is not None)]),
            Details("Accuracy against confidence at the posterior mean, S = 0", _reliability(bins[0])),
            Details("Training", [_ABOUT_TRAINING, *parts]),
        ]
        sections = [
            Section("Accuracy against confidence", [_ABOUT_BARS, *_reliability(bins[10])]),
            Section(
                "Leave the unsure cases to a person", [_ABOUT_ABSTAINING, abstention_table(predictions[10])]
            ),
            Section("What this does not show", [Points(_limits(system, quick))]),
            Section("Details", details),
        ]
        first: list[Block] = [
            Paragraph(setting, "plain"),
            trust_table(predictions[10]),
            _reading(predictions[10]),
        ]
        write_index(place, "Can you trust its probabilities?", first, sections)


def _predicted(out: Path, samples: int, truth: Predictions | None) -> dict[str, Predictions]:
    systems = {
        name: log_probs_and_labels(read_predictions(out / method), str(samples))
        for method, name in METHODS.items()
    }
    return systems if truth is None else {**systems, TRUTH: truth}


def trust_table(systems: Mapping[str, Predictions]) -> Table:
    """Return how often each method is correct, and how often it says that it is."""
    columns = [
        Column("method", "method"),
        Column("correct", "correct", "%", ".0f"),
        Column("says", "mean confidence", "%", ".0f"),
        Column("sure", f"at least {100 * SURE:.0f} % sure", "%", ".0f"),
        Column("sure_correct", "of these correct", "%", ".0f"),
    ]
    rows: list[Json] = []
    for name, (log_probs, labels) in systems.items():
        confidence, correct = correctness(log_probs, labels)
        sure = confidence >= SURE
        shares = {"correct": correct, "says": confidence, "sure": sure, "sure_correct": correct[sure]}
        rows.append({"method": name, **{key: _percent(values) for key, values in shares.items()}})
    return Table(columns, rows, "S = 10: the average over ten posterior draws")


def _percent(values: Tensor) -> float | None:
    return 100 * float(values.double().mean()) if len(values) else None


def _reading(systems: Mapping[str, Predictions]) -> Points:
    """Return a sentence on each method for readers who know no statistics."""
    points = []
    for name in METHODS.values():
        says, correct = (100 * float(values.mean()) for values in correctness(*systems[name]))
        gap = round(says) - round(correct)
        verdict = (
            f"{abs(gap)} points too {'sure' if gap > 0 else 'unsure'}" if gap else "as sure as it should be"
        )
        points.append(f"{name} is correct in {correct:.0f} of 100 answers and says {says:.0f} %: {verdict}.")
    return Points(points)


_ABOUT_BARS = (
    "Answers are grouped by confidence. A bar shows how many of a group are correct. A bar that ends below "
    "the diagonal, by the hatched gap, means that the method was too sure."
)
_ABOUT_ABSTAINING = (
    "Let a method answer only the questions that it is most sure of, and hand the others to a person. The "
    "table shows the share of wrong answers. If it falls quickly, confidence finds the mistakes."
)


def abstention_table(systems: Mapping[str, Predictions]) -> Table:
    """Return the error rate of each method if it answers only its most confident questions."""
    columns = [Column("method", "answers, most confident first")]
    columns += [Column(str(share), f"{share} %", "", ".0f") for share in ANSWERED]
    rows: list[Json] = []
    for name, predictions in systems.items():
        confidence, correct = correctness(*predictions)
        ranked = correct[confidence.argsort(descending=True, stable=True)]
        answered = {share: ranked[: max(1, len(ranked) * share // 100)] for share in ANSWERED}
        rows.append({"method": name, **{str(share): _percent(1 - part) for share, part in answered.items()}})
    return Table(columns, rows, "wrong answers in %, by the share of questions that is answered")


def _reliability(systems: Mapping[str, ReliabilityBins]) -> list[Picture]:
    return [
        Picture(
            reliability_diagram({name: bins}),
            f"Reliability diagram of {name}; expected calibration error: {bins.ece:.1f} %.",
        )
        for name, bins in systems.items()
    ]


def _limits(system: System, quick: bool) -> list[str]:
    """Return what a reader must not conclude from the page."""
    error = 50.0 / math.sqrt(len(system.split("test")))
    points = [
        f"One seed is a demonstration, not a measurement: chance alone moves accuracy by about {error:.1f} "
        "points.",
        "All methods had the same learning rate and length. A LoRA that is tuned on held-out rows does "
        "about as well as BaRA.",
        "No method here notices questions of an unfamiliar kind. For these, train with --distance-aware.",
    ]
    if quick:
        points.insert(0, "This was a quick run of a few steps: it shows that everything works, not how well.")
    return points


_ABOUT_TRAINING = (
    "Training minimises the negative ELBO. The figures show it and its parts before they are weighted. LoRA "
    "has no latent variables, so its negative ELBO is the negative log-likelihood."
)


def _histories(out: Path, num_data: int) -> dict[str, list[Json]]:
    runs = {name: read_jsonl(out / method / LOG, LogLine) for method, name in METHODS.items()}
    for record in (record for history in runs.values() for record in history if "kl_phi" in record):
        record["kl_phi"] /= num_data  # the log has the KL of all rows; the figure shows it per example
    return runs


def _text(system: System, has_truth: bool) -> list[str]:
    """Return the paragraphs that explain the table of scores."""
    parts = [
        f"The frozen language model is {system.backbone.name}; each method trained for "
        f"{system.config.train.total_steps} steps. 'No training' is the language model as it is.",
        "LoRA learns one set of weights. BaRA learns a distribution over gates on the directions that LoRA "
        "uses. S = 0 sets the gates to their mean; S = 10 averages the answers over ten draws of them. BaRA "
        "is the additive form and BaRA gate the gate form: they differ in where the gate is applied.",
        "acc is the share of correct answers. ECE is the gap between confidence and accuracy: 0 means that "
        "80 % of the answers given with 80 % confidence are correct. NLL and Brier punish confident "
        "mistakes. Φ, θ and Φθ are the shares of gates that are nearly closed. Lower is better, except for "
        "acc and these shares.",
    ]
    if has_truth:
        parts.append(
            "In this small artificial world, the probability of every answer is known. The row 'truth' "
            "scores these probabilities: no method can be expected to do better. Its ECE is not 0, because "
            "test answers are drawn at random. KL is the distance of a method's probabilities from them."
        )
    return parts
