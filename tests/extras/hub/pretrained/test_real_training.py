"""A real language model learns a question in English, about words that it has not been trained on.

Needs a folder that `bara backbone get smollm2` wrote, named by BARA_SMOLLM2; `.ci/run` sees to that. Two
minutes of one core. The rows are made here, so that nothing but the model has to be fetched.
"""

import math
import os
from itertools import product
from pathlib import Path

import pytest
import torch
from app_cases import write_rows
from torch import Tensor

from bara_pyro.metrics import posterior_predictive
from bara_pyro.runs.config import load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

# Half of the words to train on, the other half to test on: only who knows English can do the second.
WORDS = {
    "positive": ("wonderful excellent superb charming", "brilliant delightful great lovely"),
    "negative": ("terrible awful dreadful boring", "horrible disappointing bad tedious"),
}
THINGS = ("film", "book", "meal", "concert", "hotel", "lecture")
SAID = ("The {thing} was {word}.", "What a {word} {thing}!")


def rows(half: int) -> list[dict[str, str]]:
    return [
        {"text": sentence.format(thing=thing, word=word), "label": label}
        for label, halves in WORDS.items()
        for word, thing, sentence in product(halves[half].split(), THINGS, SAID)
    ]


@pytest.mark.slow
def test_training_lowers_the_nll_of_words_not_trained_on(tmp_path: Path) -> None:
    folder = Path(os.environ.get("BARA_SMOLLM2") or "/nowhere")
    if not (folder / "config.json").is_file():
        pytest.skip("BARA_SMOLLM2 names no folder that `bara backbone get smollm2` wrote")
    files = [
        write_rows(tmp_path / f"{name}.jsonl", rows(half)) for half, name in enumerate(("train", "test"))
    ]
    task = {"task.name": str(files[0]), "task.test_file": str(files[1]), "task.labels": "letters"}
    # bfloat16 where the processor multiplies in it: elsewhere that takes many times as long.
    dtype = "bfloat16" if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else "float32"
    lm = {"backbone.name": str(folder), "backbone.dtype": dtype}
    training = {"method.name": "bara-gate", "train.steps": 100, "train.lr": 1e-3}
    system = build_system(load_config(overrides={**lm, **task, **training}))
    test = system.split("test")

    def nll(samples: int) -> Tensor:
        """Return what each of the words costs, in nats, its rows' probabilities averaged over the draws."""
        log_probs = posterior_predictive(draw(system, test, samples))
        costs = -log_probs[torch.arange(len(test)), torch.tensor(test.labels)]
        return costs.view(-1, len(THINGS) * len(SAID)).mean(-1)

    untrained = nll(0)
    train(system, tmp_path / "run")
    trained = nll(4)
    gain = untrained - trained
    # Words are drawn, the two labels are not: the spread within a label is what chance leaves.
    error = float(gain.view(len(WORDS), -1).var(1).mean() / len(gain)) ** 0.5
    print(f"NLL {untrained.mean():.3f} before, {trained.mean():.3f} after, error of the gain {error:.3f}")
    assert gain.mean() > 4 * error
    assert trained.mean() < 0.7 * math.log(2)  # and better than who does not know
    read = load_system(tmp_path / "run")
    assert torch.equal(draw(read, read.split("test"), 2), draw(system, test, 2))
