"""Warn if a run has not learned, and say what to change."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bara_pyro.cli.terminal import remark
from bara_pyro.methods import METHODS
from bara_pyro.metrics import nll
from bara_pyro.metrics._inputs import correctness
from bara_pyro.runs.evaluation_files import log_probs_and_labels, read_predictions
from bara_pyro.runs.split_half import is_unstable, own_nlls
from bara_pyro.runs.stored import stored_lr, stored_step
from bara_pyro.runs.system import System
from bara_pyro.types import Json

FEWEST = 20  # rows; the scores of fewer say too little
NEAR = 0.05  # as a share of the guesser's NLL
GAP = 0.10  # between accuracy and mean confidence
Finding = Literal["guessing", "wrong", "underconfident"]


@dataclass(frozen=True)
class HeldOut:
    """The scores of held-out rows that show whether a run has learnt; shares from 0 to 1.

    `guess` is the NLL of answering with the frequencies of the classes in these rows, which is their entropy:
    no answer that ignores the question does better.
    """

    rows: int
    nll: float  # mean, nats
    guess: float  # nats
    accuracy: float
    majority: float  # share of the most frequent class
    confidence: float  # mean probability of the answer that is given


def held_out(log_probs: Tensor, labels: Tensor) -> HeldOut:
    """Return the scores of n rows, one or more, from log-probabilities (`n x C`) and their labels (`n`)."""
    shares = labels.bincount().double() / len(labels)
    confidence, correct = correctness(log_probs, labels)
    return HeldOut(
        rows=len(labels),
        nll=nll(log_probs, labels),
        guess=float(torch.special.entr(shares).sum()),
        accuracy=float(correct.mean()),
        majority=float(shares.max()),
        confidence=float(confidence.mean()),
    )


def finding(scores: HeldOut) -> Finding | None:
    """Return what shows that a run has not learnt; None if nothing does.

    - `guessing`: the NLL is at least 95 % of the guesser's.
    - `wrong`: so it is, and the mean confidence is 10 points or more above the accuracy.
    - `underconfident`: the accuracy is 10 points or more above the mean confidence, and by more than two
      standard errors.

    A run that is right more often than the majority class (by two standard errors) and too confident has
    learnt, whatever its NLL is: it needs calibration. Fewer than 20 rows, or rows of one class, show nothing.
    """
    if scores.rows < FEWEST or not scores.guess:
        return None
    by_chance = 2 * math.sqrt(scores.majority * (1 - scores.majority) / scores.rows)
    overconfident = scores.confidence > scores.accuracy and scores.accuracy > scores.majority + by_chance
    gap = scores.accuracy - scores.confidence
    if gap >= GAP and gap > 2 * math.sqrt(scores.accuracy * (1 - scores.accuracy) / scores.rows):
        return "underconfident"
    if overconfident or scores.nll < (1 - NEAR) * scores.guess:
        return None
    return "wrong" if -gap >= GAP else "guessing"


def warning(
    scores: HeldOut,
    steps: int | None = None,
    lr: float | None = None,
    *,
    given: bool = False,
    searched: bool = False,
    tempered: bool = False,
) -> str:
    """Return two sentences on a run that has not learnt, the figures and what to change; "" if it has.

    The message proposes twice as many steps, and three times the learning rate if that is too low, which
    helped on SmolLM2 (docs/calibrated.md). If the rate was `searched` by `--find-lr`, it is kept. `given` is
    whether the run started from a given adapter, which longer training would not change. A method that is
    `tempered` has no search.
    """
    problem = finding(scores)
    higher = f"--lr {3 * lr:g}" if lr else "a higher --lr"
    rate = "another --lr" if problem == "wrong" else higher
    options = f"--steps {2 * steps}" if steps else "--epochs"
    if searched and lr:
        options += f" --lr {lr:g}"  # found: with a length alone it would be the default
    longer = f"Train longer ({options})"
    if not searched:
        longer += f" or with {rate}" + ("" if tempered else ", or with --find-lr")
    near = f"within {100 * NEAR:.0f} % of" if scores.nll <= (1 + NEAR) * scores.guess else "worse than"
    guess = f"guessing by class frequency ({scores.guess:.3f})"
    if given and problem in ("guessing", "wrong"):
        return (
            f"Warning: the adapter does not know these rows: its NLL is {scores.nll:.3f} nats, its accuracy "
            f"{100 * scores.accuracy:.0f} %. Ask in its training format, and check the labels."
        )
    if given:
        return ""
    if problem == "underconfident":
        return (
            f"Warning: the run is underconfident: {100 * scores.accuracy:.0f} % of its answers are right, at "
            f"a mean confidence of {100 * scores.confidence:.0f} %. {longer}."
        )
    if problem is None:
        return ""
    return (
        f"Warning: the run has not learnt: its held-out NLL of {scores.nll:.3f} nats is {near} {guess}. "
        f"{longer}, and check the label column."
    )


def unstable_warning(out: Path, lr: float) -> str:
    """Return two sentences on a run that `is_unstable`, the figures and what to change; "" if it is not."""
    nlls = own_nlls(out) if is_unstable(out) else None
    if nlls is None:
        return ""
    own, most = nlls
    return (
        f"Warning: training was unstable: the run ends with an NLL of {own:.3f} nats on its own rows, and by "
        f"its fits to half of them it should be below {most:.3f}. Train again with --lr {lr / 3:.2g}."
    )


def warn_unlearnt(system: System, out: Path, report: Json) -> None:
    """Print a warning if the predictions or the log in a folder show that the run has not learnt.

    The number of draws is the largest of those that were evaluated.
    """
    if "classes" not in report:  # replies have no classes to guess
        return
    samples = max(report["metrics"], key=int)
    rows = [row for row in read_predictions(out) if row["label"] >= 0]
    if rows:
        scores = held_out(*log_probs_and_labels(rows, samples))
        given = system.config.adapter.start is not None
        lr, searched = stored_lr(out, system.config), bool(system.config.train.find_lr)
        tempered = METHODS[system.config.method.name].tempered
        steps = stored_step(out)  # calibration may have changed the number that was planned
        unlearnt = warning(scores, steps, lr, given=given, searched=searched, tempered=tempered)
        sentence = unlearnt or unstable_warning(out, lr)
        if sentence:
            remark(sentence)
