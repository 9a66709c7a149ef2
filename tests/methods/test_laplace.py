"""Laplace-LoRA: posterior, linearised predictive and evidence against dense matrices; runs that come back."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyro
import pytest
import torch
from core_cases import backbone, make_batch, make_lm, mean_forward, randomise
from fit_cases import assert_runs_come_back, tiny_run
from laplace_cases import (
    HEAD,
    dense_covariance,
    dense_logits,
    halves,
    jacobians,
    plain_log_probs,
    toy,
    weights_of,
)
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.architectures import empty_backbone
from bara_pyro.backbone import Backbone
from bara_pyro.distributions.kronecker import KroneckerNormal
from bara_pyro.elbo import MeanFieldELBO
from bara_pyro.errors import ConfigError
from bara_pyro.evidence import log_evidence
from bara_pyro.guides.laplace import LaplaceGuide
from bara_pyro.kfac import kfac
from bara_pyro.methods import build, method_config
from bara_pyro.metrics import decompose, posterior_predictive
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.prediction import predict
from bara_pyro.store import read_tensors
from bara_pyro.system import count_parameters

ADAPTER = {"r": 8, "lora_alpha": 16.0, "target_modules": None, "full_vocab": False}


def fitted(**options: object) -> tuple:
    """Model, guide, factors and figures of a fit of four rows, precision 2."""
    model, guide = toy(**options)
    factors, _ = kfac(model, guide, guide.adapters, halves(), tokens=guide.tokens)
    return model, guide, factors, guide.fit(halves(), prior_precision=2.0)


# The evidence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subset", ["all", "last"])
def test_the_evidence_is_that_of_the_assembled_matrix(subset: str) -> None:
    model, guide, factors, figures = fitted(subset=subset)
    occam, norm = 0.0, 0.0
    for site, weight in weights_of(model).items():
        if subset == "last" and HEAD not in site:
            assert site not in factors
            continue
        covariance = dense_covariance(guide, factors, make_batch(), site)
        occam += float(-torch.logdet(covariance) - len(covariance) * math.log(2.0))
        norm += float(weight.detach().double().square().sum())
    batch = make_batch()
    log_likelihood = float(jacobians(model, batch)[0][torch.arange(4), batch.labels].sum())
    expected = log_likelihood - 0.5 * (occam + 2.0 * norm)
    assert figures["squared_norm"] == pytest.approx(norm, rel=1e-6)
    assert figures["log_evidence"] == pytest.approx(expected, rel=1e-5)
    assert occam > 0.5  # there is something to get wrong


def test_the_precision_of_a_fit_is_the_best_one() -> None:
    _, guide, factors, _ = fitted()
    figures = guide.fit(halves())
    found = figures["prior_precision"]
    eigenvalues = torch.cat(
        [torch.linalg.eigvalsh(torch.kron(f.output, f.input)).clamp_min(0) for f in factors.values()]
    )
    grid = [found * 1.05**k for k in range(-60, 61)]
    values = [log_evidence(figures["log_likelihood"], eigenvalues, figures["squared_norm"], p) for p in grid]
    assert max(range(len(grid)), key=values.__getitem__) == 60
    assert figures["log_evidence"] == pytest.approx(values[60], rel=1e-6)
    assert guide.fit(halves(), optimiser="adam")["log_evidence"] <= figures["log_evidence"] + 1e-9


# The linearised predictive --------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["mean", "sum"])
@pytest.mark.parametrize("subset", ["all", "last"])
def test_the_logits_have_the_dense_covariance(subset: str, tokens: str) -> None:
    model, guide, factors, figures = fitted(subset=subset, tokens=tokens)
    mean, covariance = dense_logits(model, guide, factors, make_batch())
    own = guide.linearised(make_batch(pad=2))
    assert_close(own[0], mean, rtol=0, atol=1e-5)
    assert_close(own[1], covariance, rtol=0, atol=1e-4 * covariance.abs().max().item())
    assert figures["mean_logit_variance"] == pytest.approx(
        float(covariance.diagonal(dim1=-2, dim2=-1).mean()), rel=1e-4
    )
    assert covariance.diagonal(dim1=-2, dim2=-1).min() > 1e-3


def test_the_predictive_is_that_of_the_linear_model() -> None:
    """Weights drawn from dense Gaussians, put through logits that are linear in them."""
    model, guide, factors, _ = fitted(logit_samples=200_000)
    batch, draws = make_batch(), 20_000
    log_probs, jacobian = jacobians(model, batch)
    logits = log_probs.expand(draws, -1, -1)
    for site in factors:
        law = MultivariateNormal(
            torch.zeros(jacobian[site].shape[-1]).double(), dense_covariance(guide, factors, batch, site)
        )
        logits = logits + torch.einsum("sp,ncp->snc", law.sample((draws,)), jacobian[site])
    seen = logits.softmax(-1)
    own = posterior_predictive(predict(model, guide, batch, samples=10)).exp()
    error = (seen.mean(0) - own) / (seen.std(0) / draws**0.5)
    assert error.abs().max() < 4.5
    point = predict(model, guide, batch, samples=0)[0].exp()
    assert (own - point).abs().max() > 0.02


def test_draws_are_groups_of_one_average() -> None:
    model, guide, _, _ = fitted(logit_samples=4000)
    batch = make_batch()
    one, four = (predict(model, guide, batch, samples=s) for s in (1, 4))
    assert one.shape == (1, 4, 3)
    assert four.shape == (4, 4, 3)
    assert_close(posterior_predictive(four), one[0], rtol=0, atol=1e-12)  # 4000 is divisible by both
    epistemic = [decompose(predict(model, guide, batch, samples=s)).epistemic for s in (1, 2, 10, 1000)]
    assert epistemic[0].abs().max() < 1e-12
    for less, more in pairwise(epistemic):
        assert (less < more).all()
    # Ten groups cannot show it all, but most of it.
    assert (epistemic[2] > 0.7 * epistemic[3]).all()


def test_without_draws_it_is_the_trained_lora() -> None:
    model, guide, _, _ = fitted()
    batch = make_batch()
    weights = weights_of(model)
    expected = plain_log_probs(model, weights, batch).double()
    assert_close(predict(model, guide, batch, samples=0)[0], expected.detach(), rtol=0, atol=1e-5)


def test_probit() -> None:
    model, guide, factors, _ = fitted(mode="probit")
    batch = make_batch()
    mean, covariance = dense_logits(model, guide, factors, batch)
    scaled = mean / torch.sqrt(1 + math.pi * covariance.diagonal(dim1=-2, dim2=-1) / 8)
    own = predict(model, guide, batch, samples=3)
    assert_close(own, scaled.log_softmax(-1).expand(3, -1, -1), rtol=0, atol=1e-4)


def test_a_row_is_answered_alike_in_any_company() -> None:
    model, guide, _, _ = fitted()
    together = predict(model, guide, make_batch(pad=3, pad_id=7), samples=4)
    for row in range(4):
        alone = predict(model, guide, make_batch(choose=[row]), samples=4)
        assert_close(together[:, row], alone[:, 0], rtol=0, atol=2e-5)
    again = predict(model, guide, make_batch(choose=[3, 1]), samples=4, memory_budget=1)
    assert_close(again, together[:, [3, 1]], rtol=0, atol=2e-5)
    other = predict(model, guide, make_batch(), samples=4, seed=1)
    assert (other - together).abs().max() > 1e-3  # the noise does follow the seed
    before = torch.get_rng_state()
    predict(model, guide, make_batch(), samples=4)
    assert torch.equal(before, torch.get_rng_state())


# The posterior of the weights -----------------------------------------------------------------------------


def law_of(rows: Tensor | None) -> tuple[KroneckerNormal, Tensor]:
    """A law over 3 x 2 matrices (at two rows of it only, or all) and its dense covariance."""
    m = 3 if rows is None else len(rows)
    left, right = torch.randn(m, 5).double(), torch.randn(2, 4).double()
    left, right = left @ left.T, right @ right.T
    (f, u), (g, v) = torch.linalg.eigh(left), torch.linalg.eigh(right)
    law = KroneckerNormal(u, f, v, g, torch.tensor(0.7).double(), rows=rows, size=3)
    curvature = torch.kron(left, right)
    if rows is not None:
        entries = (rows[:, None] * 2 + torch.arange(2)).flatten()
        whole = torch.zeros(6, 6).double()
        whole[entries[:, None], entries] = curvature
        curvature = whole
    return law, torch.linalg.inv(curvature + 0.7 * torch.eye(6).double())


@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0])])
def test_the_law_of_a_matrix(rows: Tensor | None) -> None:
    law, covariance = law_of(rows)
    dense = MultivariateNormal(torch.zeros(6).double(), covariance)
    value = torch.randn(4, 3, 2).double()
    assert_close(law.log_prob(value), dense.log_prob(value.flatten(1)))
    draws = law.expand([5]).sample((8000,))
    assert draws.shape == (8000, 5, 3, 2)
    seen = draws.flatten(0, 1).flatten(1).T.cov()
    spread = covariance.diagonal().sqrt()
    assert ((seen - covariance) / (spread * spread[:, None])).abs().max() < 5 * (2 / 40_000) ** 0.5
    assert not law.mean.any()


def test_sampled_weights_through_the_network() -> None:
    model, guide, factors, _ = fitted(mode="sampled")
    batch, draws = make_batch(), 1000
    own = predict(model, guide, batch, samples=draws).exp()
    weights = weights_of(model)
    laws = {
        site: MultivariateNormal(
            torch.zeros(weight.numel()).double(), dense_covariance(guide, factors, batch, site)
        )
        for site, weight in weights.items()
    }
    seen = []
    with torch.no_grad():
        for _ in range(200):
            drawn = {s: w + laws[s].sample().reshape(w.shape).float() for s, w in weights.items()}
            seen.append(plain_log_probs(model, drawn, batch).double().exp())
    theirs = torch.stack(seen)
    error = (own.mean(0) - theirs.mean(0)) / (own.var(0) / draws + theirs.var(0) / 200).sqrt()
    assert error.abs().max() < 4.5
    assert own.std(0).min() > 0.01


def test_every_matrix_has_its_own_dense_law() -> None:
    model, guide, factors, _ = fitted(mode="sampled")
    for site, weight in weights_of(model).items():
        covariance = dense_covariance(guide, factors, make_batch(), site)
        value = torch.randn(weight.shape)
        expected = MultivariateNormal(torch.zeros(weight.numel()).double(), covariance).log_prob(
            value.flatten().double()
        )
        assert guide.law(site).log_prob(value).item() == pytest.approx(float(expected), rel=1e-4)


def test_the_last_layer_alone_is_random() -> None:
    model, guide, _, _ = fitted(mode="sampled", subset="last")
    for site in model.latents.global_sites:
        drawn = guide.law(site).sample((2,))
        assert bool(drawn.any()) == (HEAD in site)


def test_stock_inference_runs() -> None:
    model, guide = toy()
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    losses = [svi.step(make_batch()) for _ in range(8)]
    assert losses[-1] < losses[0]
    pyro.clear_param_store()
    model, guide, _, _ = fitted(mode="sampled")
    unlabelled = replace(make_batch(), labels=None)
    ours = predict(model, guide, make_batch(), samples=600).exp()
    stock = Predictive(model, guide=guide, num_samples=600, parallel=True, return_sites=("_RETURN",))
    theirs = stock(unlabelled)["_RETURN"].double().exp().reshape(600, 4, 3)
    error = (ours.mean(0) - theirs.mean(0)) / ((ours.var(0) + theirs.var(0)) / 600).sqrt()
    assert error.abs().max() < 4.5
    one = Predictive(model, guide=guide, num_samples=2, return_sites=("_RETURN",))(unlabelled)["_RETURN"]
    assert not torch.equal(one[0], one[1])


# Training, files, sizes -----------------------------------------------------------------------------------


def test_before_the_fit_it_is_a_point() -> None:
    model, guide = toy()
    batch = make_batch()
    point = mean_forward(model, guide, batch).double()
    assert_close(predict(model, guide, batch, samples=5), point.expand(5, -1, -1), rtol=0, atol=1e-6)
    assert not list(guide.parameters())
    with pytest.raises(ConfigError, match="call fit first"):
        guide.linearised(batch)


@pytest.mark.parametrize("base", ["mle", "map"])
def test_the_objective_of_training(base: str) -> None:
    config = method_config({"name": "laplace", "base": base, "prior_scale": 0.5})
    model, guide = build(config, backbone(), 12, {**ADAPTER, "r": 2})
    randomise(model)
    batch = make_batch()
    weights = weights_of(model)
    log_probs = mean_forward(model, guide, batch)
    truth = 3 * F.nll_loss(log_probs, batch.labels, reduction="sum").double()
    if base == "map":
        for w in weights.values():
            truth = truth - torch.distributions.Normal(0, 0.5).log_prob(w).double().sum()
    loss = MeanFieldELBO().terms(model, guide, batch).loss
    assert loss.item() == pytest.approx(truth.item(), rel=1e-5)


def test_parameters_of_a_published_architecture() -> None:
    model, guide = build(method_config("laplace"), empty_backbone("qwen2.5-7b"), 1, ADAPTER)
    assert count_parameters(model) + count_parameters(guide) == 3_768_320
    assert not list(guide.parameters())
    # 85 factors of side 3584 (57 inputs, 28 outputs), 28 of 512, small ones; 12 bytes an entry.
    with pytest.raises(ConfigError, match=r"13\.2 GB.*max_gigabytes=1:.*subset=last"):
        LaplaceGuide(model, max_gigabytes=1.0).check_size(4)
    guide.check_size(4)
    LaplaceGuide(model, subset="last", max_gigabytes=0.2).check_size(4)


@pytest.mark.parametrize("settings", [{}, {"predictive": "sampled"}, {"subset": "last", "base": "map"}])
def test_runs_come_back(settings: dict, tmp_path: Path) -> None:
    config = tiny_run(tmp_path, {"name": "laplace", "logit_samples": 100, **settings})
    system = assert_runs_come_back(config, tmp_path)
    figures = json.loads((tmp_path / "whole" / "fitted.json").read_text())
    assert figures["prior_precision"] == float(system.guide.posterior.precision)
    assert {"log_evidence", "mean_logit_variance", "effective_parameters", "fit_seconds"} <= figures.keys()
    stored, _ = read_tensors(tmp_path / "whole" / "guide.safetensors")
    for name, value in system.guide.named_parameters():
        assert torch.equal(stored[name], value)
    assert count_parameters(system.guide) == 0


def test_factors_that_are_too_large_are_refused_before_training(tmp_path: Path) -> None:
    from bara_pyro.system import build_system
    from bara_pyro.train import train

    system = build_system(tiny_run(tmp_path, {"name": "laplace", "max_gigabytes": 1e-6}))
    with pytest.raises(ConfigError, match="choose subset=last"):
        train(system, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mistakes_are_named() -> None:
    model, guide, _, _ = fitted()
    batch = make_batch()
    with pytest.raises(ConfigError, match=r"answer tokens \[7, 3, 50\], the batch has \[7, 3, 51\]"):
        predict(model, guide, replace(batch, answer_ids=torch.tensor([7, 3, 51])), samples=2)
    with pytest.raises(ConfigError, match="add it to target_modules"):
        toy(targets=["q_proj"], subset="last")
    with pytest.raises(ConfigError, match="random='AB' without flipout"):
        LaplaceGuide(GaussianLoRA(backbone(), 4, r=2))
    for name in ("subset", "mode", "tokens"):
        with pytest.raises(ConfigError, match="choose one of"):
            toy(**{name: "other"})


def test_bfloat16_backbone() -> None:
    frozen = Backbone(make_lm("qwen2", torch.bfloat16))
    model = randomise(GaussianLoRA(frozen, 4, r=2, random="AB", beta=0.0), 0.3)
    guide = LaplaceGuide(model)
    figures = guide.fit(halves())
    assert all(map(math.isfinite, figures.values()))
    assert predict(model, guide, make_batch(), samples=2).isfinite().all()
    assert figures["mean_logit_variance"] > 0
