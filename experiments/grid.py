"""What comparisons with a tuned grid share: rows of real tasks, a grid of settings, scores of a run.

A score is a line of a compressed file, written as it comes: what is stored is not run again.
"""

import gzip
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite
from pathlib import Path
from typing import Any

from torch import Tensor, tensor

import bara_pyro as bp
from bara_pyro.atomic import write_jsonl
from bara_pyro.errors import TrainingError
from bara_pyro.posthoc.temperature import best_common_log_temperature, nll_at, predictive_at
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.ownership import discard
from bara_pyro.runs.system import System
from bara_pyro.runs.train import train
from experiments.engine.results import write_compressed

Settings = dict[str, Any]
Row = dict[str, Any]

RATES = (0.0003, 0.0006, 0.001, 0.0018, 0.003, 0.005, 0.009, 0.016)
LENGTHS = (0.5, 1, 2)  # of the default number of steps
TEST, DRAWS = 300, 10
UPPER: Settings = {
    "backbone.name": "runs/smollm2",
    "adapter.top_layers": 2,
    "adapter.target_modules": "all-linear",
}
DIVERGED: dict[str, float] = {"nll": inf}  # the scores of a run whose training diverged
TEXTS: Settings = {"task.labels": "texts"}


def tagged_packages(packages: Path, facet: str, tags: Sequence[str]) -> list[Row]:
    """Return the descriptions in Debian's index with one of these tags of a facet, as many of each."""
    tags_of: defaultdict[str, set[str]] = defaultdict(set)
    for entry in packages.read_text().split("\n\n"):
        text = re.search(r"^Description: (.*)", entry, re.MULTILINE)
        tags_of[text[1] if text else ""] |= {*re.findall(rf"\b{facet}::([\w-]+)", entry)}
    own = {text: [tag for tag in tags if tag in known] for text, known in tags_of.items()}
    rows = [{"text": text, "label": one[0]} for text, one in sorted(own.items()) if text and len(one) == 1]
    random.Random(0).shuffle(rows)
    of_tag = [[row for row in rows if row["label"] == tag] for tag in tags]
    least = min(map(len, of_tag))
    return [row for some in of_tag for row in some[:least]]


def write_parts(folder: Path, name: str, rows: list[Row], cut: int) -> None:
    """Write shuffled rows: the first `cut` to draw from, and the next ones for the test."""
    random.Random(1).shuffle(rows)
    for part, some in (("", rows[:cut]), ("-test", rows[cut : cut + TEST])):
        write_jsonl(folder / f"{name}{part}.jsonl", some)


def file_settings(folder: Path, name: str) -> Settings:
    """Return the settings of a task whose rows `write_parts` wrote."""
    return {"task.name": str(folder / f"{name}.jsonl"), "task.test_file": folder / f"{name}-test.jsonl"}


def drawn_rows(rows: int, validation: int, seed: int) -> Settings:
    """Return the settings of so many training rows, and of those for validation beside them."""
    return {
        "task.train_rows": rows + validation,
        "task.train_rows_seed": seed,
        "task.validation_rows": validation,
    }


def grid(steps: int, lengths: Sequence[float] = LENGTHS) -> dict[str, Settings]:
    """Return the name of each setting of the grid -> its settings, without split-half calibration."""
    return {
        f"{lr:g}, {length:g}": {
            "adapter.calibrated": False,
            "train.lr": lr,
            "train.steps": round(steps * length),
        }
        for length in lengths
        for lr in RATES
    }


def chosen_of(rows: Iterable[Row]) -> Row:
    """Return the score of a grid with the lowest NLL on validation rows."""
    return min((row for row in rows if isfinite(row["nll"])), key=lambda row: float(row["validation_nll"]))


@dataclass(frozen=True)
class RunDraws:
    """Draws of a trained run on two splits, each with its labels, and the CPU seconds of its training."""

    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    seconds: float

    def log_temperature(self, *, tuned: bool) -> float:
        """Return the ln T that suits the validation rows best; 0 if the run is not tuned."""
        return best_common_log_temperature(*self.validation) if tuned else 0.0

    def scores(self, ln_t: float) -> dict[str, float]:
        """Return the scores of the average over draws at a log-temperature."""
        drawn, labels = self.test
        found = bp.metrics.evaluate(predictive_at(drawn, ln_t), labels)
        return {
            **{name: found[name] for name in ("nll", "acc", "ece")},
            "validation_nll": nll_at(*self.validation, ln_t),
            "temperature": exp(ln_t),
            "seconds": self.seconds,
        }


def trained(system: System, folder: Path) -> RunDraws | None:
    """Train in a folder, which is emptied, and draw; return None if the training diverges."""
    discard(folder)
    began = time.process_time()
    try:
        train(system, folder)
    except TrainingError:
        return None
    seconds = time.process_time() - began
    known, test = system.split("validation"), system.split("test")
    test = test.take(range(min(TEST, len(test))))
    known_drawn, test_drawn = (draw(system, one, DRAWS) for one in (known, test))
    return RunDraws((known_drawn, tensor(known.labels)), (test_drawn, tensor(test.labels)), seconds)


def stored(path: Path) -> list[Row]:
    """Return the scores in a file, none if it is missing."""
    text = gzip.decompress(path.read_bytes()).decode() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def store(path: Path, rows: Iterable[Row]) -> None:
    """Write scores; the same scores are the same bytes."""
    write_compressed(path, "".join(json.dumps(row) + "\n" for row in rows))


def keep(path: Path, place: Mapping[str, str], scores: Mapping[str, Any]) -> None:
    """Add a score to a file, and print its NLL; `place` names the run."""
    store(path, [*stored(path), {**place, **scores}])
    print(f"{' | '.join(place.values())}: {scores['nll']:.3f}", flush=True)
