"""Whether a run has learnt, by the scores of held-out rows whose truth is known."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from app_cases import Bara, assert_one_sentence

from bara_pyro.cli import learning
from bara_pyro.cli.learning import HeldOut, finding, unstable_warning, warning
from bara_pyro.cli.learning import held_out as scores_of
from bara_pyro.runs import split_half

ROWS = 2000
SHARE = 0.7  # of the class 1


def held_out(probabilities: list[list[float]], labels: list[int]) -> HeldOut:
    return scores_of(torch.tensor(probabilities, dtype=torch.float64).log(), torch.tensor(labels))


def labels(rows: int = ROWS) -> list[int]:
    return [int(i < SHARE * rows) for i in range(rows)]


def sigmoid(logit: float) -> list[float]:
    p = 1 / (1 + math.exp(-logit))
    return [1 - p, p]


def learner(sharpness: float, slope: float = 3.0) -> HeldOut:
    """Rows whose logits are the truth's, times `sharpness`: below 1 the answers are too unsure."""
    random.seed(0)
    logits = [slope * random.gauss(0, 1) for _ in range(ROWS)]
    drawn = [int(random.random() < sigmoid(logit)[1]) for logit in logits]
    return held_out([sigmoid(sharpness * logit) for logit in logits], drawn)


def test_a_guesser_has_the_entropy_of_the_classes() -> None:
    scores = held_out([[1 - SHARE, SHARE]] * ROWS, labels())
    entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    assert scores.nll == pytest.approx(entropy)
    assert scores.guess == pytest.approx(entropy)
    assert (scores.accuracy, scores.majority) == (SHARE, SHARE)
    assert scores.confidence == pytest.approx(SHARE)
    assert finding(scores) == "guessing"


def test_a_uniform_guess_of_three_classes() -> None:
    scores = held_out([[1 / 3] * 3] * 300, [i % 3 for i in range(300)])
    assert scores.nll == pytest.approx(math.log(3))
    assert finding(scores) == "guessing"


def test_noise_that_is_sure_of_itself_is_wrong() -> None:
    random.seed(1)
    scores = held_out([sigmoid(random.choice((-4, 4))) for _ in range(ROWS)], labels())
    assert finding(scores) == "wrong"


def test_a_learner_is_left_alone() -> None:
    scores = learner(1)
    assert scores.nll < 0.7 * scores.guess
    assert scores.accuracy == pytest.approx(scores.confidence, abs=0.03)
    assert finding(scores) is None
    assert warning(scores) == ""


def test_a_learner_that_is_too_sure_has_learnt() -> None:
    scores = learner(8)
    assert scores.nll > scores.guess
    assert scores.accuracy > 0.8
    assert finding(scores) is None


def test_a_learner_that_is_too_unsure_is_underconfident() -> None:
    scores = learner(0.15)
    assert scores.accuracy == learner(1).accuracy
    assert finding(scores) == "underconfident"


def test_few_rows_and_one_class_show_nothing() -> None:
    assert finding(held_out([[0.45, 0.55]] * 19, labels(19))) is None
    assert finding(held_out([[0.45, 0.55]] * 20, labels(20))) == "guessing"
    assert finding(held_out([[0.5, 0.5]] * 20, [1] * 20)) is None


def test_a_right_answer_of_probability_zero() -> None:
    scores = held_out([[1.0, 0.0]] * 40, [0, 1] * 20)
    assert scores.nll == math.inf
    assert finding(scores) == "wrong"


@pytest.mark.parametrize(
    ("scores", "figures", "fix"),
    [
        (HeldOut(100, 0.69, 0.693, 0.5, 0.5, 0.52), ("0.690", "within 5 %", "0.693"), "--lr 0.003"),
        (HeldOut(100, 1.9, 0.693, 0.5, 0.5, 0.9), ("1.900", "worse", "0.693"), "another --lr"),
        (HeldOut(100, 0.5, 0.693, 0.91, 0.5, 0.62), ("91 %", "62 %"), "--lr 0.003"),
    ],
)
def test_figures_and_a_remedy_are_named(scores: HeldOut, figures: tuple[str, ...], fix: str) -> None:
    told = warning(scores, 100, 1e-3)
    assert told.startswith("Warning: ")
    assert all(part in told for part in (*figures, fix, "--steps 200", "--find-lr"))
    searched = warning(scores, 100, 3e-3, searched=True)
    assert all(part in searched for part in (*figures, "(--steps 200 --lr 0.003)"))
    assert "find-lr" not in searched + warning(scores, 100, 1e-3, tempered=True)
    assert "--steps" not in warning(scores)
    assert "0.003" not in warning(scores)
    if finding(scores) != "underconfident":  # longer training would not change a given adapter
        assert "Train longer" not in warning(scores, 100, given=True)


@pytest.mark.parametrize(("nlls", "parts"), [
    ((0.774, 0.775), ()),
    ((0.776, 0.775), ("--lr 0.001", "0.776", "0.775")),
    (None, ()),
])  # fmt: skip
def test_a_run_that_fits_its_own_rows_worse_than_its_fits_to_half_of_them(
    nlls: tuple[float, float] | None, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (learning, split_half):
        monkeypatch.setattr(module, "own_nlls", lambda out: nlls)
    said = unstable_warning(Path("run"), 3e-3)
    assert bool(said) is bool(parts)
    assert all(part in said for part in parts)


def test_training_says_so_and_what_comes_next(
    bara: Bara, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", "micro-wgs", "--method", "lora", "--steps", 1, "--limit", 40)
    result = bara(*words, "--out", "my run")
    assert result.code == 0, result.err
    assert "Warning: the run has not learnt" in result.err
    assert "--steps 2)" in result.err
    assert result.out.splitlines()[-1] == "Next: bara predict 'my run' --input FILE"
    assert "params" not in result.out
    monkeypatch.setattr(learning, "stored_step", lambda out: 3)  # calibration had it trained longer
    again = bara("evaluate", "my run", "--verbose")
    assert "Warning: " in again.err
    assert "--steps 6)" in again.err
    assert "params" in again.out
    assert again.out.splitlines()[-1] == "Next: bara inspect 'my run'"
    as_json = bara("evaluate", "my run", "--overwrite", "--json")
    assert "Next" not in json.loads(as_json.out)
    assert_one_sentence(bara("evaluate", "my run", "--verbose", "--json"), "--verbose", "--json")
