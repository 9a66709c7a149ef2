"""A temperature without validation rows: rows are predicted before they are learnt, and learnt in the end."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from app_cases import questions
from fit_cases import assert_runs_come_back, tiny_run
from scipy.special import log_softmax, logsumexp
from torch.testing import assert_close

from bara_pyro.core.frozen import read
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.forward import FIRST, LAST, ForwardStep, forward_order
from bara_pyro.errors import BaraError, ConfigError
from bara_pyro.models.lora import LoRA
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.forward import DRAWS, FROM, order_of
from bara_pyro.runs.store import read_jsonl
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train

STEPS = 40


def calibrated(folder: Path, method: str = "bara-gate", **settings: object) -> RunConfig:
    own = {"adapter.calibrated": True, "train.steps": STEPS, **settings}
    return load_config(overrides=own, base=tiny_run(folder, {"name": method}))


def told(order: tuple[ForwardStep, ...]) -> list[int]:
    """Which rows are predicted, by going through training as the model does; none of them was seen before."""
    seen: set[int] = set()
    found = []
    for rows, new in order:
        assert not seen.intersection(rows[:new])
        assert new == 0 or seen.issuperset(rows[new:])
        found += rows[:new]
        seen.update(rows)
    return found


@pytest.mark.parametrize(("rows", "size", "steps"), [(80, 4, 200), (81, 4, 60), (7, 3, 5), (2, 4, 3)])
def test_every_row_is_predicted_before_it_is_learnt(rows: int, size: int, steps: int) -> None:
    order = forward_order(rows, size, 3, steps)
    assert len(order) == steps
    assert all(len(step.rows) == size for step in order)
    found = told(order)
    assert len(found) == len(set(found)) == rows - min(rows, max(size, round(FIRST * rows)))
    assert {row for step in order for row in step.rows} == set(range(rows))
    assert all(step.new == 0 for step in order[int(LAST * steps) :])
    assert order == forward_order.__wrapped__(rows, size, 3, steps)
    assert steps < 60 or order != forward_order(rows, size, 4, steps)


def test_rows_that_are_there_are_learnt_alike() -> None:
    """Each once before any of them twice: of those of the start none is learnt much more often."""
    order = forward_order(80, 4, 0, 400)
    late = {row for step in order for row in step.rows[: step.new]}
    counts = np.bincount([row for step in order for row in step.rows], minlength=80)
    early = counts[[row for row in range(80) if row not in late]]
    assert early.max() - early.min() <= 2
    assert counts.min() >= 2  # those that arrive last


@pytest.mark.parametrize("method", ["bara-gate", "lora", "mc_dropout"])
def test_a_run_comes_back_whenever_it_is_killed(tmp_path: Path, method: str) -> None:
    assert_runs_come_back(calibrated(tmp_path, method), tmp_path)
    whole, cut = (read_jsonl(tmp_path / name / "forward.jsonl") for name in ("whole", "cut"))
    assert [{**row, "seconds": 0} for row in whole] == [{**row, "seconds": 0} for row in cut]
    assert len(whole) == 24


def test_what_is_kept_is_said_before_the_step(tmp_path: Path) -> None:
    system = build_system(calibrated(tmp_path))
    order, split, seen = order_of(system), system.split("train"), {}

    def look(done: int, _: dict[str, float]) -> None:
        if done < STEPS and order[done].new:
            rows = order[done].rows[: order[done].new]
            drawn = predict(
                system.model, system.guide, split.batch(rows, system.answer_ids), samples=DRAWS, seed=0
            )
            seen.update({split.ids[row]: (drawn[:, i], split.labels[row]) for i, row in enumerate(rows)})

    train(system, tmp_path / "run", on_step=look)
    kept = read_jsonl(tmp_path / "run" / "forward.jsonl")
    assert len(kept) == len(seen) == 24
    for row in kept:
        drawn, label = seen[row["id"]]
        assert row["label"] == label
        assert_close(torch.tensor(row["log_probs"], dtype=torch.float64), drawn, rtol=0, atol=1e-6)


def test_the_temperature_is_the_best_for_these_predictions(tmp_path: Path) -> None:
    system = build_system(calibrated(tmp_path, **{"train.lr": 0.05}))
    train(system, tmp_path / "run")
    fitted = json.loads((tmp_path / "run" / "fitted.json").read_text())
    used = [r for r in read_jsonl(tmp_path / "run" / "forward.jsonl") if r["step"] >= FROM * STEPS]
    draws = np.array([row["log_probs"] for row in used]).transpose(1, 0, 2)
    labels = np.array([row["label"] for row in used])

    def nll_at(log_temperature: float) -> float:
        """In scipy."""
        members = log_softmax(draws / math.exp(log_temperature), axis=-1)
        mean = logsumexp(members, axis=0) - math.log(len(draws))
        return -mean[np.arange(len(labels)), labels].mean()

    best = math.log(fitted["calibrated_temperature"])
    assert fitted["calibrated_rows"] == len(used) == 20
    assert fitted["calibrated_nll_1"] == pytest.approx(nll_at(0.0), rel=1e-9)
    assert fitted["calibrated_nll_temperature"] == pytest.approx(nll_at(best), rel=1e-9)
    assert nll_at(best) <= min(nll_at(t) for t in np.linspace(-4.6, 4.6, 921)) + 1e-6
    assert abs(best) > 0.01
    # The run that is read back divides by it, and nothing else has changed.
    again = load_system(tmp_path / "run")
    assert float(read(again.model, "log_temperature")) == pytest.approx(best, rel=1e-6)
    test = again.split("test")
    warm = draw(again, test, 3)
    again.model.set_temperature(0.0)
    plain = draw(again, test, 3)
    assert_close(warm, (plain / math.exp(best)).log_softmax(-1), rtol=0, atol=1e-5)
    assert (warm - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        ("laplace", {}, "laplace fits what it predicts with afterwards"),
        ("temperature", {"task.validation_rows": 8}, "TemperedLoRA has one of its own"),
        ("lora", {"train.steps": 7}, r"steps=7 are too few .* give at least 8 \(--steps\)"),
        ("lora", {"train.batch_size": 2, "task.train_rows": 16}, "Of 16 training rows 10 would be predicted"),
    ],
)
def test_what_could_not_be_calibrated_is_refused_before_training(
    tmp_path: Path, method: str, settings: dict[str, object], says: str
) -> None:
    with pytest.raises(BaraError, match=says) as error:
        train(build_system(calibrated(tmp_path, method, **settings)), tmp_path / "run")
    assert ". " not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_replies_have_no_closed_set_of_answers(tmp_path: Path) -> None:
    backbone = build_system(calibrated(tmp_path)).backbone
    with pytest.raises(ConfigError, match="closed set of answers"):
        LoRA(backbone, len(questions()), likelihood=CompletionLikelihood(), calibrated=True)
