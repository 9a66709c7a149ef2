"""The microworld's card: what each task is, how the backbone does, and whether that is as required."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bara_pyro.lm.backbone import Backbone
from bara_pyro.microworld import TASKS
from bara_pyro.runs.answers_file import WORLD_CARD
from bara_pyro.runs.atomic import write_text
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import truth_scores, untrained_scores
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import assemble

MAX_WAY = 70.0  # zero-shot may go this far, in percent, from chance to Bayes
MIN_GAIN, MIN_GAIN_TASKS = 8.0, 4  # LoRA-MLE must gain this many points of accuracy on so many tasks
MIN_ECE, MIN_ECE_TASKS = 8.0, 3  # and must be this badly calibrated on so many
Scores = dict[str, float]
Fit = Callable[[str, int], Scores]


@dataclass(frozen=True)
class CardRow:
    """What is known of one task: scores of the untrained backbone, of the truth, and of LoRA, one a seed.

    `constant` is the accuracy of giving each test row the answer that most of them have, percent.
    """

    name: str
    zero_shot: Scores
    bayes: Scores
    constant: float
    lora: tuple[Scores, ...] = ()

    @property
    def chance(self) -> float:
        """Accuracy of a uniform guess, percent."""
        return 100 / len(TASKS[self.name].labels)

    @property
    def way(self) -> float:
        """How far zero-shot is on the way from chance (0) to Bayes (100)."""
        return 100 * (self.zero_shot["acc"] - self.chance) / (self.bayes["acc"] - self.chance)

    def lora_mean(self, key: str) -> float:
        """Return the mean of a score over seeds."""
        return float(np.mean([scores[key] for scores in self.lora]))


def measure(backbone: Backbone, fit: Fit, seeds: int = 3, world: int = 0) -> list[CardRow]:
    """Measure every task on its test split; `fit` trains LoRA by default settings and returns its scores."""
    rows = []
    for name, spec in TASKS.items():
        config = load_config(overrides={"method": "lora", "task.name": name, "task.world": world})
        system = assemble(config, backbone, load_data(config), num_data=1)
        bayes = truth_scores(system)
        lora = tuple(fit(name, seed) for seed in range(seeds)) if spec.sizes[0] else ()
        labels = Counter(system.split("test").labels)
        constant = 100 * max(labels.values()) / labels.total()
        rows.append(CardRow(name, untrained_scores(system), bayes or {}, constant, lora))
    return rows


def write_card(path: Path, rows: Sequence[CardRow], recipe: str) -> None:
    """Write the card as Markdown; `recipe` says in one sentence how LoRA was trained."""
    lines = [
        WORLD_CARD,
        "",
        _INTRODUCTION,
        "",
        "Test split. Accuracy and ECE (15 bins) in percent, NLL in nats; LoRA (maximum likelihood): mean ±",
        "standard deviation over seeds. Constant: always the most frequent answer. Way: how far zero-shot is",
        f"from chance, a uniform guess, to Bayes. {recipe}",
        "",
        "| task | as | classes | train / validation / test | constant | zero-shot acc | ECE | way "
        "| Bayes acc | LoRA acc | ECE | NLL |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *map(_line, rows),
        "",
        "## Requirements",
        "",
        *_requirements([row for row in rows if row.lora]),
        "",
        "## What is asked",
        "",
        *(f"- `{name}`: {spec.description}" for name, spec in TASKS.items()),
        "",
    ]
    write_text(path, "\n".join(lines))


def _line(row: CardRow) -> str:
    spec = TASKS[row.name]
    cells: list[object] = [
        f"`{row.name}`",
        spec.mimics,
        len(spec.labels),
        " / ".join(map(str, spec.sizes)),
        f"{row.constant:.1f}",
        f"{row.zero_shot['acc']:.1f}",
        f"{row.zero_shot['ece']:.1f}",
        f"{row.way:.0f} %",
        f"{row.bayes['acc']:.1f}",
        *(_spread(row, key, digits) for key, digits in (("acc", 1), ("ece", 1), ("nll", 3))),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _spread(row: CardRow, key: str, digits: int) -> str:
    values = [scores[key] for scores in row.lora]
    if not values:
        return "–"
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def _requirements(rows: Sequence[CardRow]) -> list[str]:
    """Return one line a requirement, with what was found."""
    checks = (
        (
            f"zero-shot above chance and at most {MAX_WAY:.0f} % of the way to Bayes",
            [row.name for row in rows if 0 < row.way <= MAX_WAY],
            len(rows),
        ),
        (
            f"LoRA at least {MIN_GAIN:.0f} points above zero-shot",
            [r.name for r in rows if r.lora_mean("acc") - r.zero_shot["acc"] >= MIN_GAIN],
            MIN_GAIN_TASKS,
        ),
        (
            f"LoRA's ECE at least {MIN_ECE:.0f} points",
            [r.name for r in rows if r.lora_mean("ece") >= MIN_ECE],
            MIN_ECE_TASKS,
        ),
    )
    lines = []
    for what, names, needed in checks:
        verdict = "met" if len(names) >= needed else "NOT met"
        listed = ", ".join(f"`{name}`" for name in names) or "none"
        on = f"on at least {needed} of {len(rows)} tasks"
        lines.append(f"- {what}, {on}: **{verdict}** ({len(names)}: {listed}).")
    return lines


_INTRODUCTION = """\
A small known world, with the true answer distribution of every question. Some two hundred residents have a
kind, a home and a clan; what they do follows the custom of one of these, and a custom is certain or has two
values with known probabilities. The backbone, of about a million parameters, is a Llama with attention
biases, which computes what a Qwen2 does; it was pretrained on text in which half of the customs are out of
date, so it answers above chance but is wrong about these; the training rows of a task show the customs of
today. Train, validation and test ask about different residents. In train the answers of a resident hang
together, as those of one annotator do (each has made up their mind, by Gumbel noise drawn once): over
residents they have the true probabilities, but who learns them by heart is too sure about everybody else.
In validation and test each answer is drawn anew. In `micro-boolq` it is the host whom the splits do not
share, and no answer depends on the host: more than half of its test questions stand in train with another
one, and an interval over hosts holds the customs fixed. `bara microworld build --out FOLDER` rebuilds the
backbone; with `--world N` it makes one that knows other customs and residents, about which runs with
`--set task.world=N` ask. Option letters are part of the option words (`A:rice`), which spares a small
model learning to bind the two."""
