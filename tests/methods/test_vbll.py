"""The Bayesian last layer: its predictions, whose its rows are, what it refuses, its runs."""

from dataclasses import replace

import pytest
import torch
from core_cases import ANSWERS, backbone, make_batch, randomise
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import UNLABELLED, N, assert_stock_draws_agree, losses_of_both, made
from torch.testing import assert_close
from vbll_cases import BOTH, factors, log_probs_at, logits_and_features, moved, toy

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.prediction import predict
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.models.vbll import VBLL
from bara_pyro.runs.folder import load_system


@pytest.mark.parametrize("method", BOTH)
def test_no_draws_are_the_mean_and_draws_have_the_distribution_of_the_logits(method: str) -> None:
    model, guide = toy(method)
    batch = make_batch(pad=1)
    found = predict(model, guide, batch, samples=0)[0]
    assert_close(found, log_probs_at(model, batch, guide.mean[:3]).detach().double(), rtol=0, atol=2e-5)
    draws = predict(model, guide, batch, samples=4000)
    _, phi = logits_and_features(model, batch)
    spread = (torch.tensor(phi) @ factors(guide).detach().double()).square().sum(-1)  # answers x rows
    for a, b in ((0, 1), (0, 2), (1, 2)):
        gap = draws[..., a] - draws[..., b]
        variance = spread[a] + spread[b]
        assert ((gap.mean(0) - (found[:, a] - found[:, b])).abs() < 4.5 * (variance / 4000).sqrt()).all()
        assert ((gap.var(0) / variance - 1).abs() < 4.5 * (2 / 4000) ** 0.5).all()


def test_all_draws_share_one_run_of_the_language_model() -> None:
    model, guide = toy()
    seen: list[int] = []
    layer = model.backbone.lm.model.layers[0]
    handle = layer.register_forward_hook(lambda layer, args, output: seen.append(len(args[0])))
    try:
        draws = predict(model, guide, make_batch(), samples=7)
    finally:
        handle.remove()
    assert set(seen) == {4}
    alone = predict(model, guide, make_batch(), samples=7, memory_budget=1)
    assert_close(draws, alone, rtol=0, atol=1e-5)


def test_stock_prediction_and_training_agree() -> None:
    pair = toy()
    assert_stock_draws_agree(pair, parallel=True)

    def make() -> tuple[VBLL, VBLLGuide]:
        model, guide = made("vbll")
        return randomise(model, 0.05), guide

    ours, theirs = losses_of_both(make)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_full_vocabulary_and_answers_alone_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for off in (set(), {"answer_rows"}):
        torch.manual_seed(0)
        shared = backbone()
        monkeypatch.setattr(shared, "shortcuts", shared.shortcuts - off)
        model = randomise(VBLL(shared, N, r=3))
        found.append(predict(model, moved(VBLLGuide(model)), make_batch(), samples=3))
    assert_close(*found, rtol=0, atol=1e-5)


def test_a_bent_logit_is_bent_before_the_rows() -> None:
    """z is linear in w, whatever the architecture does to its own logits."""
    model, guide = toy()
    frozen = model.backbone
    plain = predict(model, guide, make_batch(), samples=0)[0]
    try:
        frozen._cap = 2.0
        bent = predict(model, guide, make_batch(), samples=0)[0]
        zero = predict(*at_zero(model), make_batch(), samples=0)[0]
    finally:
        frozen._cap = None
    moved_by = (bent - zero) - (bent - zero)[:, :1]
    unbent = predict(*at_zero(model), make_batch(), samples=0)[0]
    truth = (plain - unbent) - (plain - unbent)[:, :1]
    assert_close(moved_by, truth, rtol=0, atol=1e-5)


def at_zero(model: VBLL) -> tuple[VBLL, VBLLGuide]:
    """The same program with a posterior whose mean is 0."""
    return model, VBLLGuide(model)


def test_rows_belong_to_tokens_once_they_are_trained() -> None:
    model, guide = toy()
    model.set_tokens(ANSWERS)
    whole = predict(model, guide, UNLABELLED, samples=0)[0]
    found = predict(model, guide, replace(UNLABELLED, answer_ids=ANSWERS[[2, 0]]), samples=0)[0]
    assert_close(found, whole[:, [2, 0]].log_softmax(-1), rtol=0, atol=1e-5)
    foreign = replace(UNLABELLED, answer_ids=torch.tensor([7, 8, 9, 11]))
    with pytest.raises(ConfigError, match=r"answer tokens \[7, 3, 50\], not for \[7, 8, 9, 11\]"):
        predict(model, guide, foreign, samples=0)


def test_an_answer_that_was_not_trained_has_the_prior() -> None:
    """Its logits are the language model's, and their variance that of the prior: of a row nobody trained."""
    model, guide = VBLL(backbone(), N, answers=4), None
    guide = VBLLGuide(model)
    with torch.no_grad():
        guide.mean[:3].normal_()
    model.set_tokens(ANSWERS)
    asked = replace(UNLABELLED, answer_ids=torch.tensor([8, 7]))
    found = predict(model, guide, asked, samples=0)[0]
    logits, phi = logits_and_features(model, asked)
    logits = torch.tensor(logits).double()
    expected = logits[:, 0] - logits[:, 1] - torch.tensor(phi).double() @ guide.mean[0].detach().double()
    assert_close(found[:, 0] - found[:, 1], expected, rtol=0, atol=1e-4)
    draws = predict(model, guide, asked, samples=4000)
    variance = 2 * model.prior_scale**2 * torch.tensor(phi).double().square().sum(-1)
    spread = (draws[..., 0] - draws[..., 1]).var(0) / variance
    assert ((spread - 1).abs() < 4.5 * (2 / 4000) ** 0.5).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"3 answers, .* rows for only 2: set method\.answers=3"):
        predict(*made("vbll", answers=2), make_batch(), samples=0)
    with pytest.raises(ConfigError, match=r"5 answers of width 16 take 0\.0 GB"):
        VBLLGuide(made("vbll")[0], max_gigabytes=1e-6)
    with pytest.raises(BackboneError, match="target_modules names only the output"):
        VBLL(backbone(), N, target_modules=["lm_head"])
    for settings in ({"answers": 1}, {"prior_scale": 0.0}, {"beta": -1.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(settings))}="):
            VBLL(backbone(), N, **settings)


def test_the_posterior_starts_at_the_prior_and_training_at_the_language_model() -> None:
    for method in BOTH:
        model, guide = made(method)
        assert [t.path for t in model.targets if t.is_head] == []
        terms = MeanFieldELBO().terms(model, guide, make_batch())
        assert terms.kl["last_layer"].item() == pytest.approx(0.0, abs=1e-4)
        plain = log_probs_at(model, make_batch(), torch.zeros(3, 16)).detach().double()
        assert_close(predict(model, guide, make_batch(), samples=0)[0], plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize("method", BOTH)
def test_runs_come_back_and_remember_their_answers(method: str, tmp_path) -> None:
    system = assert_runs_come_back(tiny_run(tmp_path, {"name": method}), tmp_path)
    stored = load_system(tmp_path / "whole")
    assert stored.model.tokens[:2].tolist() == system.answer_ids.tolist()
    assert stored.model.tokens[2:].tolist() == [-1] * 3
    assert {p.dtype for p in parameters(stored.model, stored.guide)} == {torch.float32}
