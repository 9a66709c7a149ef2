"""The card of the microworld: what each task is, how the backbone does, and whether that is as required."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bara_pyro.data.types import Example, Task
from bara_pyro.microworld.tasks import TASKS, load_task

Fit = Callable[[Task, int], np.ndarray]

MAX_WAY = 0.70  # zero-shot may go this far from chance to Bayes
MIN_GAIN = 0.08  # LoRA-MLE must gain this much accuracy on at least MIN_GAIN_TASKS
MIN_GAIN_TASKS = 4
MIN_ECE = 0.08  # LoRA-MLE must be this badly calibrated on at least MIN_ECE_TASKS
MIN_ECE_TASKS = 3


@dataclass(frozen=True)
class Scores:
    """Accuracy, expected calibration error (both in [0, 1]) and negative log-likelihood (nats a question)."""

    accuracy: float
    ece: float
    nll: float


@dataclass(frozen=True)
class CardRow:
    """What is known of one task.

    Attributes:
        name: the task.
        zero_shot: scores of the backbone as it is.
        bayes: scores of the true distribution.
        lora: scores of LoRA-MLE, one a seed; empty where it was not run or the task has no training rows.
    """

    name: str
    zero_shot: Scores
    bayes: Scores
    lora: tuple[Scores, ...] = ()

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return 1 / len(TASKS[self.name].labels)

    @property
    def way(self) -> float:
        """How far zero-shot is on the way from chance (0) to Bayes (1)."""
        return (self.zero_shot.accuracy - self.chance) / (self.bayes.accuracy - self.chance)

    def lora_mean(self, score: str) -> float:
        """Return the mean over seeds of "accuracy", "ece" or "nll"."""
        return float(np.mean([getattr(scores, score) for scores in self.lora]))


def score(probabilities: np.ndarray, labels: Sequence[int]) -> Scores:
    """Score probabilities (float, `n x C`) against labels (`n`); ECE has 15 bins, L1, top label."""
    p, y = torch.from_numpy(np.asarray(probabilities, dtype=np.float64)), torch.tensor(labels)
    ece = multiclass_calibration_error(p, y, num_classes=p.shape[1], n_bins=15, norm="l1")
    likelihood = p[torch.arange(len(y)), y].clamp_min(1e-12)
    return Scores((p.argmax(1) == y).double().mean().item(), ece.item(), -likelihood.log().mean().item())


@torch.no_grad()
def zero_shot_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Example],
    labels: Sequence[str],
    batch_size: int = 128,
) -> np.ndarray:
    """Return the probabilities of the answer tokens after each prompt, float64, `n x C`."""
    answers = tokenizer.convert_tokens_to_ids(list(labels))
    model.eval()
    parts: list[Tensor] = []
    for i in range(0, len(rows), batch_size):
        texts = [f"{row.context} {row.question}".strip() for row in rows[i : i + batch_size]]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        logits = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], logits_to_keep=1
        ).logits
        parts.append(logits[:, -1, answers].double().softmax(-1))
    return torch.cat(parts).numpy()


def measure_zero_shot(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    fit: Fit | None = None,
    seeds: int = 3,
) -> CardRow:
    """Measure one task on its test split.

    Args:
        name: one of `TASKS`.
        model: the backbone.
        tokenizer: its tokenizer.
        fit: trains LoRA-MLE by the default recipe on (task, seed) and returns its test probabilities, float64
            `n x C`; without it the LoRA columns say "not run".
        seeds: how many seeds to fit.
    """
    task = load_task(name)
    labels = [row.label for row in task.test]
    truth = np.array([row.truth for row in task.test])
    return CardRow(
        name=name,
        zero_shot=score(zero_shot_probabilities(model, tokenizer, task.test, task.labels), labels),
        bayes=score(truth, labels),
        lora=tuple(score(fit(task, s), labels) for s in range(seeds))
        if fit is not None and task.train
        else (),
    )


def write_card(path: str | Path, rows: Sequence[CardRow], note: str = "") -> None:
    """Write the card as Markdown.

    Args:
        path: file to write.
        rows: one a task, from `measure_zero_shot`.
        note: a sentence on how it was made, put at the top.
    """
    lines = ["# The microworld", "", _INTRODUCTION, ""]
    lines += [note, ""] if note else []
    lines += [
        "Test split. Accuracy and ECE (15 bins) in per cent, NLL in nats; LoRA-MLE: mean ± deviation",
        "over seeds. Way: how far zero-shot is from chance to Bayes.",
        "",
        "| task | as | classes | train / val / test | zero-shot acc | ECE | way | Bayes acc "
        "| LoRA-MLE acc | ECE | NLL |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *[_table_line(row) for row in rows],
        "",
        "## Requirements",
        "",
        *_requirements([row for row in rows if TASKS[row.name].sizes[0]]),
        "",
    ]
    Path(path).write_text("\n".join(lines), encoding="utf-8")


def _table_line(row: CardRow) -> str:
    spec = TASKS[row.name]
    cells = [
        f"`{row.name}`",
        spec.mimics,
        str(len(spec.labels)),
        " / ".join(map(str, spec.sizes)),
        f"{100 * row.zero_shot.accuracy:.1f}",
        f"{100 * row.zero_shot.ece:.1f}",
        f"{100 * row.way:.0f} %",
        f"{100 * row.bayes.accuracy:.1f}",
        *([_spread(row, "accuracy", 100), _spread(row, "ece", 100)] if row.lora else ["not run", "not run"]),
        _spread(row, "nll", 1) if row.lora else "not run",
    ]
    return "| " + " | ".join(cells) + " |"


def _spread(row: CardRow, name: str, factor: int) -> str:
    values = [factor * getattr(scores, name) for scores in row.lora]
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    digits = 1 if factor == 100 else 2
    return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def _requirements(rows: Sequence[CardRow]) -> list[str]:
    """Return one line a requirement, with what was found."""
    within = [row.name for row in rows if 0 < row.way <= MAX_WAY]
    band = f"zero-shot above chance and at most {MAX_WAY:.0%} of the way to Bayes"
    lines = [_verdict(band, within, len(rows), rows)]
    if not all(row.lora for row in rows):
        return [*lines, "- LoRA-MLE accuracy and ECE: not run."]
    gained = [r.name for r in rows if r.lora_mean("accuracy") - r.zero_shot.accuracy >= MIN_GAIN]
    astray = [r.name for r in rows if r.lora_mean("ece") >= MIN_ECE]
    gain = f"LoRA-MLE at least {100 * MIN_GAIN:.0f} points above zero-shot"
    return [
        *lines,
        _verdict(gain, gained, MIN_GAIN_TASKS, rows),
        _verdict(f"LoRA-MLE ECE at least {100 * MIN_ECE:.0f} points", astray, MIN_ECE_TASKS, rows),
    ]


def _verdict(what: str, names: Sequence[str], needed: int, rows: Sequence[CardRow]) -> str:
    met = "met" if len(names) >= needed else "NOT met"
    listed = ", ".join(f"`{name}`" for name in names) or "none"
    return f"- {what}, on at least {needed} of {len(rows)} tasks: **{met}** ({len(names)}: {listed})."


_INTRODUCTION = """\
A small known world, with the true answer distribution of every question. Some two hundred residents have a
kind, a home and a clan; what they do follows the custom of one of these, and a custom is certain or has two
values with known probabilities. The backbone, of about a million parameters, is a Llama with attention
biases, which computes what a Qwen2 does; it was pretrained on text in which half of the customs are out of
date, so it answers above chance but is wrong about these; the training rows of a task show the customs of
today. `bara_pyro.microworld.build.build(out)` rebuilds the backbone. Option letters are part of the option
words (`A:rice`), which spares a small model learning to bind the two."""
