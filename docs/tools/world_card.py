"""The microworld's card: what each task is, how the backbone does, and whether that is as required.

    python -m docs.tools.world_card

An interrupted card continues where it stopped.
"""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bara_pyro.atomic import write_text
from bara_pyro.cli.running import run
from bara_pyro.cli.terminal import say
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone
from bara_pyro.microworld import TASKS
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import truth_scores, untrained_scores
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import assemble, build_system

MAX_WAY = 70.0  # zero-shot may go this far, in percent, from chance to Bayes
MIN_GAIN, MIN_GAIN_TASKS = 8.0, 4  # LoRA-MLE must gain this many points of accuracy on so many tasks
MIN_ECE, MIN_ECE_TASKS = 8.0, 3  # and must be this badly calibrated on so many
STEPS = 3000  # training steps of each run that the card reports
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


def main() -> None:
    """Measure every task before training, by LoRA and by the truth, and write the card."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/microworld.md"))
    parser.add_argument("--model", default="microworld", help="or the folder of a rebuilt one")
    parser.add_argument("--runs", type=Path, default=Path("runs/card"), help="folder for the card's runs")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of LoRA")
    parser.add_argument("--world", type=int, default=0, help="seed of the model's world")
    given = parser.parse_args()
    backbone = load_backbone(given.model)

    def lora(task: str, seed: int) -> Scores:
        settings = {"method": "lora", "backbone.name": given.model, "task.name": task, "seed": seed}
        settings |= {"train.steps": STEPS, "task.world": given.world, "predict.samples": [0]}
        config = load_config(overrides=settings)
        system = build_system(config, backbone)
        return run(config, given.runs / f"{task}-{seed}", resume=True, system=system)["metrics"]["0"]

    train = load_config().train
    recipe = (
        f"It trains for {STEPS:,} steps of {train.batch_size} rows at a learning rate of {train.peak_lr:g} "
        "with r = 8; only the number of steps differs from its defaults."
    )
    write_card(given.out, measure(backbone, lora, given.seeds, given.world), recipe)
    say(f"Written to {given.out}")


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
        "# The microworld",
        "",
        _INTRODUCTION,
        "",
        "## Tasks",
        "",
        "| task | modelled on | answers | train / validation / test rows | a question asks |",
        "|---|---|---:|---|---|",
        *(_about(row.name) for row in rows),
        "",
        "## Scores",
        "",
        f"{_SCORES} {recipe}",
        "",
        "| task | majority class acc | untrained acc | true acc | LoRA acc | LoRA ECE | LoRA NLL |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *map(_line, rows),
        "",
        "## Is the difficulty right?",
        "",
        _DIFFICULTY,
        "",
        *_requirements([row for row in rows if row.lora]),
        "",
    ]
    write_text(path, "\n".join(lines))


def _about(name: str) -> str:
    spec = TASKS[name]
    sizes = " / ".join(map(str, spec.sizes))
    return f"| `{name}` | {spec.mimics} | {len(spec.labels)} | {sizes} | {spec.description} |"


def _line(row: CardRow) -> str:
    cells = [f"{share:.1f}" for share in (row.constant, row.zero_shot["acc"], row.bayes["acc"])]
    lora = [_spread(row, key, digits) for key, digits in (("acc", 1), ("ece", 1), ("nll", 3))]
    return f"| {' | '.join([f'`{row.name}`', *cells, *lora])} |"


def _spread(row: CardRow, key: str, digits: int) -> str:
    values = [scores[key] for scores in row.lora]
    if not values:
        return "–"
    deviation = np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def _requirements(rows: Sequence[CardRow]) -> list[str]:
    """Return one line per requirement with its result."""
    checks = (
        (
            f"untrained accuracy above a uniform guess, at most {MAX_WAY:.0f} % of the way to the true one",
            [row.name for row in rows if 0 < row.way <= MAX_WAY],
            len(rows),
        ),
        (
            f"LoRA at least {MIN_GAIN:.0f} points more accurate than untrained",
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
        on = f"on at least {needed} of {len(rows)} tasks"
        lines.append(f"- {what}, {on}: **{verdict}**, on {len(names)}.")
    return lines


_INTRODUCTION = """\
The microworld is a small artificial world that comes with the package. The true probability of every answer
is known, so you can see how far a method's probabilities are from the truth: `bara train` prints this
distance as KL. It needs no download, and training takes a minute or two.

A question looks like this, with its true probabilities:

    in autumn keso builds what ? A:towers B:walls C:boats D:barns Answer :
    A 0.8   B 0   C 0.2   D 0

Keso is one of about two hundred residents. Each resident has a kind (such as farmer), a home (such as the
marsh) and a clan. **Customs** of the kind, the home or the clan decide what a resident does. Some customs are
certain; others have two outcomes with known probabilities.

- **The language model** has about a million parameters and the architecture of Qwen2. Half of the customs in
  its pretraining text are out of date, so before training it answers better than chance but is wrong about
  the customs that changed. The training rows of a task show the current customs.
- **Train, validation and test** ask about different residents. In `micro-boolq` a passage describes a guest
  and names a host; the hosts differ between the splits, and no answer depends on the host.
- **Training rows invite overconfidence.** All answers about a resident were drawn once, as if one
  annotator had decided them. A model that memorises them is too confident about other residents. In
  validation and test, each answer is drawn anew.
- **Option letters are part of the words** (`A:rice`), so a small model need not learn to connect the two.

A **world** is one set of residents and customs; studies repeat their comparisons in several worlds.
`bara microworld build --out FOLDER` rebuilds the language model. With `--world N` it builds one for another
world, and `--set task.world=N` asks about it."""

_SCORES = """\
Scores on the test rows: accuracy and ECE (15 bins) in percent, NLL in nats. "Majority class" always gives the
most frequent answer, "untrained" is the language model before fine-tuning, and "true" answers with the true
probabilities: the highest accuracy that is possible. LoRA: mean ± standard deviation over seeds."""

_DIFFICULTY = """\
The language model has to know something before training, and LoRA has to learn from the rows and be
overconfident; otherwise there is nothing to compare. The world was built to meet these requirements.
This favours methods that calibrate; [real tasks](results/real_contrast.md) are the check."""


if __name__ == "__main__":
    main()
