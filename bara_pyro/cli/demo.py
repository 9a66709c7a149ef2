"""The demonstration: LoRA and both forms of BaRA on one task, in one table and on one page."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from bara_pyro.cli.running import run
from bara_pyro.cli.scores import score_columns, score_rows, score_table
from bara_pyro.cli.terminal import result, say, show
from bara_pyro.errors import CheckpointError, ConfigError
from bara_pyro.lm.loading import load_backbone
from bara_pyro.metrics import ReliabilityBins, reliability_bins
from bara_pyro.report import (
    Paragraph,
    Picture,
    Section,
    markdown,
    reliability_diagram,
    save,
    training_curves,
    write_index,
)
from bara_pyro.report.figures import PARTS, recorded_parts
from bara_pyro.runs.atomic import write_json, write_text
from bara_pyro.runs.by_rows import for_rows
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.evaluate import truth_predictions, truth_scores, untrained_scores
from bara_pyro.runs.evaluation_files import read_predictions
from bara_pyro.runs.folder import stored_config
from bara_pyro.runs.manifest import LOG, is_run
from bara_pyro.runs.ownership import adding, clear
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system, find_device
from bara_pyro.types import Json
from bara_pyro.untrusted.files import read_jsonl
from bara_pyro.untrusted.schemas import LogLine

METHODS = {"lora": "LoRA", "bara": "BaRA", "bara-gate": "BaRA gate"}
STEPS = 1500  # enough on 640 rows for LoRA to be far too sure, and the whole demonstration a few minutes
QUICK = {"train.steps": 20, "train.log_every": 1, "task.limit": 48}
INDEX, TRUTH = "index.html", "truth"

Predictions = tuple[Tensor, Tensor]
"""Log-probabilities (`n x C`) and labels (`n`)."""


def demo(
    out: Path,
    *,
    overwrite: bool = False,
    seed: int = 0,
    steps: int | None = None,
    quick: bool = False,
    model: str | None = None,
    device: str | None = None,
    task: str | None = None,
    data_dir: Path | None = None,
) -> None:
    """Train the methods one after the other, print the table of scores, write the page; see `bara demo`.

    A demonstration that was interrupted goes on where it was; `overwrite` starts again what is finished, or
    was started with other settings. Each method has its run in a folder of its own in `out`.

    Raises:
        BaraError: see `bara_pyro.runs.system.build_system` and `bara_pyro.runs.train.train`.
    """
    settings = {
        **(QUICK if quick else {}),
        "backbone.name": model,
        "backbone.device": device,
        "task.name": task,
        "task.data_dir": data_dir,
        "task.seed": seed,
        "seed": seed,
        "predict.samples": [0, 10],
    }
    settings = {key: value for key, value in settings.items() if value is not None}
    if steps is not None or not quick:
        settings["train.steps"] = STEPS if steps is None else steps
    configs = {method: load_config(overrides={**settings, "method": method}) for method in METHODS}
    if any(is_run(out / method) and not _same(out / method, config) for method, config in configs.items()):
        if not overwrite:
            raise ConfigError(f"{out} was started with other settings: --overwrite starts again.")
        overwrite = True
    if overwrite:
        for folder in (*(out / method for method in METHODS), out):
            clear(folder)
    rows, system = _train_all(out, configs)
    _write(out, system, rows, quick)
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


def _predictions(folder: Path, samples: int) -> Predictions:
    records = read_predictions(folder)
    probs = torch.tensor([record["probs"][str(samples)] for record in records], dtype=torch.float64)
    return probs.log(), torch.tensor([record["label"] for record in records])


# The page --------------------------------------------------------------------------------------------------


def _write(out: Path, system: System, rows: list[Json], quick: bool) -> None:
    """Write the table, the pictures and, last, the page that shows them."""
    with adding(out) as place:
        table = score_table(rows)
        truth = truth_predictions(system)
        bins = {samples: _bins(out, samples, truth) for samples in (10, 0)}
        curves = _histories(out, system.model.num_data)
        write_json(place / "results.json", {"schema": 1, "task": system.task.name, "rows": rows})
        write_text(place / "results.md", markdown(table))
        for samples, systems in bins.items():
            save(reliability_diagram(systems), place / f"reliability-s{samples}.png")
        save(training_curves(curves), place / "elbo.png")
        title = f"LoRA and BaRA on {system.task.name}"
        sections = [
            *(_reliability(samples, systems) for samples, systems in bins.items()),
            Section("Training", [_ABOUT_TRAINING, *_curves(curves)]),
        ]
        plain = Paragraph(_plain(bins[10]), "plain")
        write_index(place, title, [plain, table, *_text(system, truth is not None, quick)], sections)


def _plain(systems: Mapping[str, ReliabilityBins]) -> str:
    """Return how often each method is right and how sure it is."""
    parts = []
    for name in METHODS.values():
        bins = systems[name]
        share = bins.counts / bins.counts.sum()
        right, sure = (
            100 * float((share * part.nan_to_num()).sum()) for part in (bins.accuracy, bins.confidence)
        )
        parts.append(f"{name} {right:.0f} in 100, {sure:.0f} %")
    return (
        f"Right answers, and how sure the method is on average: {'; '.join(parts)}. The closer the two, the "
        "more "
        "its probabilities can be trusted."
    )


def _bins(out: Path, samples: int, truth: Predictions | None) -> dict[str, ReliabilityBins]:
    systems = {name: _predictions(out / method, samples) for method, name in METHODS.items()}
    if truth is not None:
        systems[TRUTH] = truth
    return {name: reliability_bins(log_probs, labels) for name, (log_probs, labels) in systems.items()}


def _reliability(samples: int, systems: Mapping[str, ReliabilityBins]) -> Section:
    drawn = "the posterior mean, S = 0" if samples == 0 else f"{samples} posterior draws, S = {samples}"
    pictures = [
        Picture(
            reliability_diagram({name: bins}),
            f"Reliability diagram of {name}; expected calibration error: {bins.ece:.1f} %.",
        )
        for name, bins in systems.items()
    ]
    text = "Bars below the diagonal: the method is surer than it is right."
    return Section(f"Reliability with {drawn}", [text, *pictures])


_ABOUT_TRAINING = (
    "What training minimises, the negative ELBO, and its parts before they are weighted; for LoRA, which has "
    "no "
    "latent variable, it is the negative log-likelihood alone."
)


def _histories(out: Path, num_data: int) -> dict[str, list[Json]]:
    runs = {name: read_jsonl(out / method / LOG, LogLine) for method, name in METHODS.items()}
    for record in (record for history in runs.values() for record in history if "kl_phi" in record):
        record["kl_phi"] /= num_data  # the log has it in nats, once for all rows; the figure per example
    return runs


def _curves(runs: Mapping[str, list[Json]]) -> list[Picture]:
    return [
        Picture(training_curves(runs, parts=[part]), f"{PARTS[part]} against the training step.")
        for part in recorded_parts(runs)
    ]


def _text(system: System, has_truth: bool, quick: bool) -> list[str]:
    """Return the paragraphs that say how to read the page."""
    n, steps = len(system.split("test")), system.config.train.total_steps
    error = 50.0 / math.sqrt(n)
    parts = [
        f"The same frozen language model ({system.backbone.name}), fine-tuned by each method on "
        f"{system.model.num_data} training rows for {steps} steps, and asked {n} test questions.",
        "LoRA trains one set of weights. BaRA trains a distribution over gates that open and close the "
        "directions LoRA would use: S = 0 puts the gates at their mean, S = 10 averages the answers over ten "
        "draws of them. The additive form (BaRA) and the gate form (BaRA gate) differ in where the gate "
        "stands. 'No training' is the language model as it comes.",
        "acc is the share of right answers. ECE is how far confidence and accuracy lie apart: 0 means that "
        "80 % of the answers given with 80 % confidence are right. NLL and Brier punish confident mistakes. "
        "Φ, θ and Φθ are the shares of gates that are nearly closed. Lower is better but for acc and these.",
    ]
    if has_truth:
        parts.append(
            "This task comes from a small world in which the probability of every answer is known. The row "
            "'truth' scores these probabilities themselves: no method can be expected to do better. Its ECE "
            "is not 0 because the answers of the test rows are drawn at random. KL is how far a method's "
            "probabilities are from them."
        )
    parts.append(
        f"One seed on {n} rows is a demonstration, not a measurement: chance alone moves accuracy by about "
        f"{error:.1f} points."
    )
    if quick:
        parts.append("This was a quick run of a few steps: it shows that everything works, not how well.")
    return parts
