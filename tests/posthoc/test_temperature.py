"""Temperature scaling: the fitted T is the best one, and nothing but confidence changes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from core_cases import backbone, make_batch, randomise
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import N, R
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.lora import LoRA
from bara_pyro.posthoc.corrections import Corrections, require_temperature
from bara_pyro.posthoc.temperature import (
    COLDEST,
    HOTTEST,
    Temperature,
    best_common_log_temperature,
    best_log_temperature,
)
from bara_pyro.runs.config import RunConfig, load_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.folder import load_system
from bara_pyro.runs.system import build_system
from bara_pyro.runs.train import train


def nll_at(logits: Tensor, labels: Tensor, log_temperature: float) -> float:
    """In scipy."""
    scaled = log_softmax(logits.double().numpy() / math.exp(log_temperature), axis=-1)
    return -scaled[np.arange(len(labels)), labels.numpy()].mean()


def rows(factor: float, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Logits that are `factor` times those the labels are drawn from."""
    logits = 1.5 * torch.randn(count, 4, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    return factor * logits, labels


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_best_temperature_is_that_of_a_grid_and_the_true_one(factor: float) -> None:
    logits, labels = rows(factor)
    found = best_log_temperature(logits, labels)
    truth = minimize_scalar(lambda t: nll_at(logits, labels, t), bounds=(-4, 4), method="bounded").x
    assert found == pytest.approx(truth, abs=1e-4)
    grid = np.linspace(-4, 4, 401)
    assert nll_at(logits, labels, found) <= min(nll_at(logits, labels, t) for t in grid)
    # The variance of the estimate of 1/T is 1 / (n Var z), at most some 5 percent here.
    assert found == pytest.approx(math.log(factor), abs=0.1)
    # Log-probabilities are logits too.
    assert best_log_temperature(logits.log_softmax(-1), labels) == pytest.approx(found, abs=1e-9)


def test_rows_that_want_no_finite_temperature() -> None:
    logits = torch.eye(3, dtype=torch.float64)
    right, wrong = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    assert math.exp(best_log_temperature(logits, right)) == pytest.approx(COLDEST)
    assert math.exp(best_log_temperature(logits, wrong)) == pytest.approx(HOTTEST)
    impossible = torch.tensor([[0.0, -torch.inf, -1.0]] * 2 + [[-1.0, -torch.inf, 0.0]], dtype=torch.float64)
    assert math.isfinite(best_log_temperature(impossible, torch.tensor([0, 0, 0])))


def at(temperature: float, model: AdaptedLM) -> Corrections:
    own = Corrections(model, calibrated=True)
    require_temperature(own).set(math.log(temperature))
    return own


@pytest.mark.parametrize("program", ["lora", "ensemble"])
def test_the_logits_of_every_draw_are_divided(program: str) -> None:
    torch.manual_seed(3)
    model = randomise(
        LoRA(backbone(), N, r=R) if program == "lora" else Ensemble(backbone(), N, r=R, members=2)
    )
    guide = DeltaGuide(model) if program == "lora" else EnsembleGuide(model)
    plain = predict(model, guide, make_batch(), samples=1)
    assert_close(at(1.0, model).predict(model, guide, make_batch(), samples=1), plain, rtol=0, atol=0)
    warm = at(2.5, model).predict(model, guide, make_batch(), samples=1)
    assert len(warm) == len(plain) == (1 if program == "lora" else 2)
    assert_close(warm, (plain / 2.5).log_softmax(-1))
    assert (warm - plain).abs().max() > 0.1


def test_what_is_not_offered_stays_impossible() -> None:
    warm = Temperature()
    warm.set(math.log(3.0))
    told = torch.tensor([[-0.1, -2.3, -math.inf]]).double().log_softmax(-1)
    assert_close(warm.correct(told)[0, :2], (told[0, :2] / 3).log_softmax(-1))
    assert warm.correct(told)[0, 2] == -math.inf


def test_what_has_no_temperature_or_no_number_is_refused() -> None:
    model = LoRA(backbone(), N, r=R)
    with pytest.raises(ConfigError, match="with calibrated=True"):
        require_temperature(Corrections(model))
    with pytest.raises(ConfigError, match="must be finite"):
        at(math.inf, model)
    replies = LoRA(backbone(), N, r=R, likelihood=CompletionLikelihood())
    with pytest.raises(ConfigError, match=r"closed set of answers, .*CompletionLikelihood"):
        Corrections(replies, calibrated=True)


def mixture_nll(draws: Tensor, labels: Tensor, log_temperature: float) -> float:
    """In scipy."""
    members = log_softmax(draws.double().numpy() / math.exp(log_temperature), axis=-1)
    mean = logsumexp(members, axis=0) - math.log(len(draws))
    return -mean[np.arange(len(labels)), labels.numpy()].mean()


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_members_have_the_temperature_under_which_their_average_is_best(factor: float) -> None:
    logits, labels = rows(factor)
    draws = logits + factor * torch.randn(3, *logits.shape, dtype=torch.float64)
    found = best_common_log_temperature(draws, labels)
    grid = np.linspace(-4, 4, 801)
    lowest = grid[np.argmin([mixture_nll(draws, labels, t) for t in grid])]
    assert found == pytest.approx(lowest, abs=0.01)
    assert mixture_nll(draws, labels, found) <= min(mixture_nll(draws, labels, t) for t in grid)
    # An average is less sure than its members: each by itself wants to be cooled less.
    assert found < min(best_log_temperature(own, labels) for own in draws) - 0.01
    assert best_common_log_temperature(draws[:1], labels) == best_log_temperature(draws[0], labels)


def test_an_ensemble_is_trained_as_without_and_finds_its_temperature(tmp_path: Path) -> None:
    config = validated(tiny_run(tmp_path, {"name": "ensemble_temperature", "members": 2}))
    system = assert_runs_come_back(config, tmp_path)
    fitted = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    plain = build_system(validated(tiny_run(tmp_path, {"name": "ensemble", "members": 2})))
    train(plain, tmp_path / "plain")
    split = plain.split("validation")
    before, labels = draw(plain, split, 1), torch.tensor(split.labels)
    grid = np.linspace(-4.5, 4.5, 901)
    best = min(mixture_nll(before, labels, t) for t in grid)
    assert fitted["nll_1"] == pytest.approx(mixture_nll(before, labels, 0.0), rel=1e-6)
    own = mixture_nll(before, labels, math.log(fitted["temperature"]))
    assert fitted["nll_temperature"] == pytest.approx(own, rel=1e-6)
    assert fitted["nll_temperature"] <= best + 1e-9
    assert fitted["validation_rows"] == 12
    test = system.split("test")
    scaled = draw(load_system(tmp_path / "whole"), test, 1)
    expected = (draw(plain, test, 1) / fitted["temperature"]).log_softmax(-1)
    assert_close(scaled, expected, rtol=0, atol=1e-5)


def validated(config: RunConfig) -> RunConfig:
    return load_config(overrides={"task.validation_rows": 12}, base=config)


def test_a_run_finds_the_best_temperature_and_comes_back(tmp_path: Path) -> None:
    config = validated(tiny_run(tmp_path, {"name": "temperature"}))
    system = assert_runs_come_back(config, tmp_path)
    fitted = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    assert fitted["validation_rows"] == 12
    found = fitted["temperature"]
    assert abs(found - 1) > 0.01
    lora = build_system(validated(tiny_run(tmp_path, {"name": "lora"})))
    train(lora, tmp_path / "lora")
    split = lora.split("validation")
    before, labels = draw(lora, split, 0)[0], torch.tensor(split.labels)
    assert fitted["nll_1"] == pytest.approx(nll_at(before, labels, 0.0), rel=1e-6)
    assert fitted["nll_temperature"] == pytest.approx(nll_at(before, labels, math.log(found)), rel=1e-6)
    grid = np.linspace(-4.5, 4.5, 901)
    assert fitted["nll_temperature"] <= min(nll_at(before, labels, t) for t in grid) + 1e-9
    test = system.split("test")
    plain, scaled = draw(lora, test, 0)[0], draw(load_system(tmp_path / "whole"), test, 0)[0]
    assert_close(scaled, (plain / found).log_softmax(-1), rtol=0, atol=1e-5)
    assert torch.equal(scaled.argmax(-1), plain.argmax(-1))


def test_no_validation_rows_is_said_before_training(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, {"name": "temperature"})
    steps = []
    with pytest.raises(DataError, match="--validation-rows") as error:
        train(build_system(config), tmp_path / "run", on_step=lambda step, _: steps.append(step))
    assert "rows.jsonl" in str(error.value) or "'rows'" in str(error.value)
    assert str(error.value).endswith(".")
    assert not steps
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answers", [1, 3])
def test_rows_that_say_nothing_leave_it_at_one(answers: int) -> None:
    alike, labels = torch.full((2, 5, answers), -math.log(answers)), torch.zeros(5, dtype=torch.long)
    assert best_log_temperature(alike[0], labels) == 0
    assert best_common_log_temperature(alike, labels) == 0
