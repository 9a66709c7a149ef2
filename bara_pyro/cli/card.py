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
        "## Tasks",
        "",
        "Scores on the test split: accuracy and ECE (15 bins) in percent, NLL in nats, mean ± standard",
        "deviation over seeds for LoRA. Constant: a guess that always gives the most frequent answer. Bayes:",
        "the true probabilities. Way: how far the model without training is on the way from a uniform guess",
        f"to Bayes. {recipe}",
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
        "## Questions",
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
The microworld is a small artificial world that comes with the package. The true probability of every answer
is known, so you can see how far a method's probabilities are from the truth. It needs no download, and
training takes a minute.

Some two hundred residents each have a kind, a home and a clan. What a resident does follows a custom of one
of these. Some customs are certain; others have two outcomes with known probabilities.

- **The language model** has about a million parameters and computes what a Qwen2 does. Half of the customs
  in its pretraining text are out of date, so it answers above chance and is wrong about these. The training
  rows of a task show the customs of today.
- **Train, validation and test** ask about different residents. In `micro-boolq` the hosts differ, and no
  answer depends on the host.
- **Training rows invite overconfidence.** All answers about a resident were drawn once, as if one
  annotator had decided them. A model that memorises them is too confident about other residents. In
  validation and test, each answer is drawn anew.
- **Option letters are part of the words** (`A:rice`), so a small model need not learn to connect the two.

`bara microworld build --out FOLDER` rebuilds the language model. With `--world N` it builds one for other
customs and residents, and `--set task.world=N` asks about them."""
