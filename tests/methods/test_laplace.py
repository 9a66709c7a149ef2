"""Laplace-LoRA: evidence and linearised predictive against dense matrices."""

import math
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from core_cases import CONFIGS, backbone, make_batch
from laplace_cases import (
    HEAD,
    dense_covariance,
    dense_logits,
    fitted,
    halves,
    jacobians,
    plain_log_probs,
    weights_of,
)
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from bara_pyro.core.prediction import predict
from bara_pyro.guides.laplace import LaplaceGuide, _probit
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods.laplace import (
    HIGHEST,
    LOWEST,
    best_precision,
    effective_parameters,
    fit_laplace,
    log_evidence,
)
from bara_pyro.metrics import decompose, posterior_predictive
from bara_pyro.models.gaussian_lora import GaussianLoRA


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
    figures = fit_laplace(guide, halves())
    found = figures["prior_precision"]
    eigenvalues = torch.cat(
        [torch.linalg.eigvalsh(torch.kron(f.output, f.input)).clamp_min(0) for f in factors.values()]
    )
    grid = [found * 1.05**k for k in range(-60, 61)]
    values = [log_evidence(figures["log_likelihood"], eigenvalues, figures["squared_norm"], p) for p in grid]
    assert max(range(len(grid)), key=values.__getitem__) == 60
    assert figures["log_evidence"] == pytest.approx(values[60], rel=1e-6)


@pytest.mark.parametrize(("subset", "tokens"), [("all", "mean"), ("last", "sum")])
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


@pytest.mark.parametrize(
    ("answers", "subset"),
    [([7, 3, 50, 51, 4], "all"), ([50, 7], "last"), ([51, 4], "last"), ([51, 3, 7], "all")],
)
def test_other_answers_than_those_of_the_fit_have_the_dense_covariance(
    answers: list[int], subset: str
) -> None:
    """Of the answers 7, 3 and 50: the head's row of another one keeps its prior."""
    model, guide, factors, _ = fitted(subset=subset)
    other = replace(make_batch(), answer_ids=torch.tensor(answers), labels=None)
    log_probs, jacobian = jacobians(model, other)
    covariance = sum(
        jacobian[site] @ dense_covariance(guide, factors, make_batch(), site) @ jacobian[site].mT
        for site in factors
    )
    centring = torch.eye(len(answers)).double() - 1 / len(answers)
    mean, found = guide.linearised(other)
    assert_close(mean, log_probs @ centring, rtol=0, atol=1e-5)
    expected = centring @ covariance @ centring
    assert_close(found, expected, rtol=0, atol=1e-4 * expected.abs().max().item())
    for samples in (0, 2):
        assert predict(model, guide, other, samples=samples).exp().sum(-1).allclose(torch.ones(4).double())


def test_the_predictive_is_that_of_the_linear_model() -> None:
    """Weights drawn from dense Gaussians, put through logits that are linear in them."""
    model, guide, factors, _ = fitted(logit_samples=200_000)
    batch, draws = make_batch(), 20_000
    log_probs, jacobian = jacobians(model, batch)
    logits = log_probs.expand(draws, -1, -1)
    for site in factors:
        distribution = MultivariateNormal(
            torch.zeros(jacobian[site].shape[-1]).double(), dense_covariance(guide, factors, batch, site)
        )
        logits = logits + torch.einsum("sp,ncp->snc", distribution.sample((draws,)), jacobian[site])
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
    """One over a sum over the other answers, each difference of two logits shrunk by its own variance."""
    model, guide, factors, _ = fitted(mode="probit")
    batch = make_batch()
    mean, covariance = dense_logits(model, guide, factors, batch)
    expected = torch.zeros_like(mean)
    for row, k in product(range(len(mean)), range(mean.shape[1])):
        total = 0.0
        for j in range(mean.shape[1]):
            c = covariance[row]
            variance = float(c[k, k] + c[j, j] - 2 * c[k, j])
            total += math.exp(float(mean[row, j] - mean[row, k]) / math.sqrt(1 + math.pi / 8 * variance))
        expected[row, k] = 1 / total
    expected /= expected.sum(-1, keepdim=True)
    own = predict(model, guide, batch, samples=3)
    assert_close(own.exp(), expected.expand(3, -1, -1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("mean", "variance"), [(4.0, 16.0), (-1.0, 4.0)])
def test_probit_of_two_answers_is_near_the_integral(mean: float, variance: float) -> None:
    """Whatever the centring of the logits, of which the difference alone counts."""

    def weighed(z: float) -> float:
        return expit(z) * norm.pdf(z, mean, math.sqrt(variance))

    truth = quad(weighed, mean - 12 * math.sqrt(variance), mean + 12 * math.sqrt(variance))[0]
    for own in (
        [[variance / 4, -variance / 4], [-variance / 4, variance / 4]],
        [[variance, 0.0], [0.0, 0.0]],
    ):
        centre = torch.tensor([[mean / 2, -mean / 2]], dtype=torch.float64)
        found = _probit(centre, torch.tensor([own], dtype=torch.float64)).exp()[0]
        assert found.sum() == pytest.approx(1)
        assert float(found[0]) == pytest.approx(truth, abs=0.02)


def test_memory_of_a_kept_graph_grows_with_the_layers() -> None:
    config = CONFIGS["qwen2"].to_dict() | {"num_hidden_layers": 6, "layer_types": None}
    deep = Backbone(AutoModelForCausalLM.from_config(type(CONFIGS["qwen2"])(**config)))
    for lm, copies in ((backbone(), 4), (deep, 6)):
        assert LaplaceGuide(GaussianLoRA(lm, 4, random="AB", flipout=False, prior_scale=1.0)).copies == copies


CURVATURE = torch.tensor([[6.0, 2.0], [2.0, 1.5]], dtype=torch.float64)
CENTRE = torch.tensor([0.8, -1.1], dtype=torch.float64)  # where the likelihood is largest
PEAK = -3.0  # its logarithm there


def quadrature(precision: float, log_likelihood) -> float:
    """log of the integral of likelihood times prior over two weights, by the trapezoid rule."""
    line = torch.linspace(-9, 9, 301, dtype=torch.float64)
    theta = torch.cartesian_prod(line, line)
    log_prior = -0.5 * precision * theta.square().sum(-1) + math.log(precision / (2 * math.pi))
    step = 2 * math.log(float(line[1] - line[0]))
    return float((log_likelihood(theta) + log_prior).logsumexp(0)) + step


def gaussian(theta: Tensor) -> Tensor:
    d = theta - CENTRE
    return PEAK - 0.5 * torch.einsum("...i,ij,...j->...", d, CURVATURE, d)


@pytest.mark.parametrize("precision", [0.3, 7.0])
def test_exact_for_a_gaussian_likelihood(precision: float) -> None:
    """At the posterior's mode the approximation is the integral itself."""
    mode = torch.linalg.solve(CURVATURE + precision * torch.eye(2), CURVATURE @ CENTRE)
    eigenvalues = torch.linalg.eigvalsh(CURVATURE)
    ours = log_evidence(float(gaussian(mode)), eigenvalues, float(mode.square().sum()), precision)
    assert ours == pytest.approx(quadrature(precision, gaussian), abs=1e-6)


def spectrum() -> Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.randn(300, dtype=torch.float64).exp() ** 3, torch.zeros(50).double()])


@pytest.mark.parametrize("norm", [0.01, 500.0])
def test_the_precision_found_has_the_greatest_evidence(norm: float) -> None:
    mu = spectrum()
    found = best_precision(mu, norm)
    top = log_evidence(0.0, mu, norm, found)
    grid = torch.logspace(-6, 9, 3001, dtype=torch.float64).tolist()
    values = [log_evidence(0.0, mu, norm, precision) for precision in grid]
    best = grid[max(range(len(grid)), key=values.__getitem__)]
    assert top >= max(values)
    assert found == pytest.approx(best, rel=0.013)  # the grid's spacing
    # MacKay's fixed point: lambda = gamma / |theta|^2.
    assert effective_parameters(mu, found) == pytest.approx(found * norm, rel=1e-8)


def test_precisions_beyond_the_range_stop_at_its_end() -> None:
    assert best_precision(spectrum(), 0.0) == pytest.approx(HIGHEST, rel=1e-6)
    assert best_precision(torch.zeros(3).double(), 1.0) == pytest.approx(LOWEST, rel=1e-6)
