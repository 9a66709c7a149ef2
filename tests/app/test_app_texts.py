"""Answers scored as whole texts: trained on, predicted and evaluated in the user's words."""

import math
from pathlib import Path

import numpy as np
import pytest
from app_cases import Bara, Place, assert_answers, assert_one_sentence, questions, write_rows
from scipy.special import log_softmax

from bara_pyro.cli.running import run
from bara_pyro.data import task_from_rows
from bara_pyro.data.labels import unlisted
from bara_pyro.errors import DataError
from bara_pyro.runs.evaluate import draw, untrained_scores
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.predict import predict
from bara_pyro.runs.system import build_system
from bara_pyro.untrusted.files import read_json, read_jsonl

LONG = {"yes": "yes yes", "no": "no yes no"}  # words that the tokenizer knows


def own_options() -> list[dict]:
    """Questions whose options are their own, two or three of them, the right one always the long one."""
    rows = []
    for number, row in enumerate(questions()):
        choices = ["no", "yes yes no", "no no"][: 2 + number % 2]
        rows.append({"question": row["question"], "choices": choices, "answer": "yes yes no"})
    return rows


@pytest.fixture(scope="module")
def scored(place: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    rows = write_rows(
        folder / "likely.jsonl", [{"text": r["question"], "label": LONG[r["answer"]]} for r in questions()]
    )
    config = Place(place.backbone, rows).config(task__labels="texts", train__steps=4, predict__samples=[0, 2])
    run(config, folder / "run")
    return folder / "run", rows


def test_predictions_speak_the_users_labels(scored: tuple[Path, Path], tmp_path: Path, bara: Bara) -> None:
    folder, rows = scored
    stored = read_json(folder / "bara_config.json")
    assert stored["labels"] == stored["names"] == ["no yes no", "yes yes"]
    out = tmp_path / "answers.jsonl"
    assert bara("predict", folder, "--input", rows, "--output", out, "--samples", 2).code == 0
    found = read_jsonl(out)
    assert len(found) == 40
    assert_answers(found, ["no yes no", "yes yes"])
    result = bara("evaluate", folder)
    assert result.code == 0
    assert "bara inspect" not in result.out + result.err  # which needs answers of one token
    assert_one_sentence(bara("inspect", folder), "--labels letters")
    evaluated = read_jsonl(next(folder.glob("evaluation/*/predictions.jsonl")))
    # To the rounding of float32: where a tensor begins in memory decides in which order some sums are made.
    for again, before in zip(evaluated, read_jsonl(folder / "predictions.jsonl"), strict=True):
        assert (again["id"], again["answer"]) == (before["id"], before["answer"])
        for samples, probs in before["probs"].items():
            assert again["probs"][samples] == pytest.approx(probs, abs=1e-6)


@pytest.mark.parametrize("score", ["sum", "mean"])
def test_options_of_each_row_are_learnt(place: Place, tmp_path: Path, score: str) -> None:
    task = task_from_rows(own_options())
    config = place.config(
        task__labels="texts", task__text_score=score, train__steps=40, train__lr=0.01, method__name="lora"
    )
    system = build_system(config, task=task)
    before = untrained_scores(system)["nll"]
    run(system.config, tmp_path / "run", system=system)
    after = read_json(tmp_path / "run" / "metrics.json")["metrics"]["0"]
    assert after["nll"] < before / 2
    assert after["acc"] == 100
    read = load_system(tmp_path / "run", with_rows=False)
    answers = predict(read, own_options()).rows
    assert {row["label"] for row in answers} == {"yes yes no"}
    assert list(answers[0]["probs"]) == ["no", "yes yes no", "(C)"]
    assert answers[0]["probs"]["(C)"] == 0


def test_the_noise_of_distance_has_the_scale_of_the_options_that_rows_list(
    place: Place, tmp_path: Path
) -> None:
    config = place.config(task__labels="texts", train__steps=2, adapter__distance_aware=True)
    system = build_system(config, task=task_from_rows(own_options()))
    run(system.config, tmp_path / "run", system=system)
    split = system.split("train")
    squares = [
        np.var(scores[:offered])
        for scores, offered in zip(draw(system, split, 0)[0].numpy(), split.offered, strict=True)
    ]
    scale = read_json(tmp_path / "run" / "fitted.json")["distance_scale"]
    assert scale == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-4)


def test_a_temperature_of_texts_is_the_best_on_validation_rows(place: Place, tmp_path: Path) -> None:
    """A grid is searched with the scores that LoRA, trained alike, gives the same rows."""
    rows = Place(place.backbone, write_rows(tmp_path / "own.jsonl", own_options()))
    options = {"task__labels": "texts", "task__validation_rows": 12, "train__steps": 8, "train__lr": 0.01}
    run(rows.config(method__name="temperature", **options), tmp_path / "run")
    fitted = read_json(tmp_path / "run" / "fitted.json")
    run(rows.config(method__name="lora", **options), tmp_path / "plain")
    plain = load_system(tmp_path / "plain")
    split = plain.split("validation")
    scores, labels = draw(plain, split, 0)[0].numpy(), np.array(split.labels)

    def nll_at(log_temperature: float) -> float:
        scaled = log_softmax(scores / math.exp(log_temperature), axis=-1)
        return -scaled[np.arange(len(labels)), labels].mean()

    assert fitted["nll_1"] == pytest.approx(nll_at(0.0), rel=1e-4)
    assert fitted["nll_temperature"] == pytest.approx(nll_at(math.log(fitted["temperature"])), rel=1e-4)
    assert fitted["nll_temperature"] <= min(nll_at(t) for t in np.linspace(-4.6, 4.6, 921)) + 1e-6
    assert abs(fitted["temperature"] - 1) > 0.01


def test_an_option_that_is_not_listed_is_not_scored() -> None:
    """The prompt of a row whose options are scored does not list them."""
    example = task_from_rows(own_options()).train[0]
    assert "A) no" in example.question
    assert unlisted(example).question == example.question.split("\n")[0] + "\nAnswer:"


def test_more_classes_than_letters(place: Place, tmp_path: Path) -> None:
    """Forty classes of several tokens each."""
    rows = [
        {"text": f"yes {'no ' * (i % 3)}", "label": f"{'yes ' * (1 + i % 8)}{'no ' * (i // 8)}"}
        for i in range(40)
    ]
    task = task_from_rows(rows * 4, [row | {"text": f"no {row['text']}"} for row in rows])
    system = build_system(place.config(task__labels="texts", train__steps=2, predict__samples=[0]), task=task)
    assert len(system.task.labels) == 40
    run(system.config, tmp_path / "run", system=system)
    assert len(read_jsonl(tmp_path / "run" / "predictions.jsonl")[0]["probs"]["0"]) == 40


def test_texts_that_are_not_known_are_refused(place: Place) -> None:
    with pytest.raises(DataError, match="has no texts of its answers"):
        build_system(place.config(task__labels="texts", task__name="micro-arcc"))


def test_one_pass_wants_answers_of_one_token(place: Place, tmp_path: Path, bara: Bara) -> None:
    arguments = [*place.arguments(tmp_path / "run"), "--labels", "texts", "--one-pass"]
    assert_one_sentence(bara(*arguments), "(--one-pass) needs answers of one token", "(--labels letters)")


def test_texts_that_the_tokenizer_cannot_read_are_refused(place: Place) -> None:
    rows = [{"text": f"yes {i}", "label": "yes" if i % 2 else "żółw"} for i in range(40)]
    with pytest.raises(DataError, match="cannot read the answer 'żółw'"):
        build_system(place.config(task__labels="texts"), task=task_from_rows(rows))


def test_diagnostics_of_answer_tokens_are_refused(
    scored: tuple[Path, Path], tmp_path: Path, bara: Bara
) -> None:
    found = bara("inspect", scored[0], "--out", tmp_path / "out")
    assert_one_sentence(found, "answers of one token each")
    assert not (tmp_path / "out").exists()
