"""Importance weights: densities written out, the evidence by quadrature, bounds that hold, Pareto's k."""

import math

import pytest
import torch
from core_cases import ROWS
from gate_cases import ONE_TOKEN
from posterior_cases import KAPPA, MEAN, PATH, Grid, one_gate, weibull
from scipy import stats
from torch.testing import assert_close

from bara_pyro.core.modules import module_key
from bara_pyro.diagnostics.posterior.importance import (
    importance_estimate,
    log_weights,
    summarise,
)
from bara_pyro.diagnostics.posterior.joint import draw_latents, evaluate_latents
from bara_pyro.errors import ConfigError, DataError, TrainingError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.lora import LoRA

THETA = f"theta/{PATH}"


def test_densities_written_out() -> None:
    model, batch = one_gate()
    drawn = draw_latents(model, weibull(model, 1.3, 0.6), batch, 60, seed=1)  # more than fit one forward
    grid = Grid(model, batch)
    phi = drawn.values["phi"].flatten()
    assert drawn.values["phi"].shape == (60, 1, 1)
    distribution = stats.weibull_min(1 / 0.6, scale=1.3 / math.gamma(1.6))
    assert_close(drawn.log_posterior, torch.as_tensor(distribution.logpdf(phi.double())), rtol=0, atol=1e-4)
    assert_close(drawn.log_prior, -phi.double(), rtol=0, atol=1e-5)  # Gamma(1, 1)
    grid.u = phi.double().log()
    assert_close(drawn.log_probs, grid.log_probs.repeat(1, 3, 1), rtol=0, atol=1e-5)
    assert_close(drawn.log_likelihood, grid.log_likelihood(), rtol=0, atol=1e-4)
    again = evaluate_latents(model, batch, drawn.values)
    for field in ("log_probs", "log_prior", "log_likelihood"):
        assert_close(getattr(again, field), getattr(drawn, field), rtol=0, atol=1e-4)
    assert not again.log_posterior.any()


def test_densities_of_local_gates() -> None:
    # Padding has no density: the rows are of different length, in one batch.
    model, batch = one_gate(repeats=1, latent="phi*theta")
    torch.manual_seed(0)
    drawn = draw_latents(model, GammaGuide(model), batch, 5)
    theta, mask = drawn.values[THETA], batch.attention_mask
    assert theta.shape == (5, *mask.shape, 1)
    prior = -drawn.values["phi"].flatten(1).sum(1) - (theta[..., 0] * mask).sum((1, 2))
    assert_close(drawn.log_prior, prior.double(), rtol=0, atol=1e-4)
    prior_itself = draw_latents(model, PriorGuide(model), batch, 5)
    assert_close(prior_itself.log_posterior, prior_itself.log_prior, rtol=0, atol=1e-6)


def test_evidence_and_elbo_by_quadrature() -> None:
    model, batch = one_gate()
    grid = Grid(model, batch)
    found = importance_estimate(model, weibull(model), batch, samples=800)
    assert found.k_hat < 0.7
    assert found.reliable
    assert abs(found.evidence - grid.log_evidence) < 4 * found.evidence_error
    assert abs(found.elbo - grid.elbo(MEAN, KAPPA)) < 4 * found.elbo_error
    assert found.evidence_error < 0.05
    assert found.gap > 0
    assert found.elbo != float(found.log_weights.mean())  # draws of its own
    assert found.elbo <= grid.log_evidence + 3 * found.elbo_error
    prior = importance_estimate(model, PriorGuide(model), batch, samples=1500)  # plain Monte Carlo
    assert abs(prior.evidence - grid.log_evidence) < 4 * prior.evidence_error


def test_a_wrong_density_breaks_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = one_gate()
    guide = weibull(model)
    family = guide.family

    class Wrong(type(family(torch.ones(1), torch.ones(1)))):
        def expand(self, shape: torch.Size, _instance: object = None) -> "Wrong":
            return Wrong(self.mean.expand(shape), self.kappa.expand(shape))

        def log_prob(self, value: torch.Tensor) -> torch.Tensor:
            return super().log_prob(value) - 2  # not normalised

    monkeypatch.setattr(guide, "family", Wrong)
    found = importance_estimate(model, guide, batch, samples=500)
    assert found.elbo > Grid(model, batch).log_evidence + 3 * found.elbo_error


def test_evidence_with_local_gates_by_quadrature() -> None:
    # One token a row: the row's answer depends on phi * theta alone, and a sum of logarithms on one grid.
    model, batch = one_gate(ONE_TOKEN, repeats=1, scale=0.1, latent="phi*theta", target_modules=["lm_head"])
    grid = Grid(model, batch, ONE_TOKEN, points=400)
    likelihood = grid.row_likelihood(batch.labels)
    step = float(grid.u[1] - grid.u[0])
    terms = []
    for u, log_prior in zip(grid.u.tolist(), grid.log_prior.tolist(), strict=True):
        place = ((grid.u + u - grid.u[0]) / step).round().long()
        inside = likelihood[place.clamp(0, len(grid.u) - 1)]
        rows = torch.trapezoid(grid.log_prior[:, None].exp() * inside.exp(), grid.u, dim=0)
        terms.append(log_prior + float(rows.log().sum()))
    exact = math.log(grid.integrate(torch.tensor(terms, dtype=torch.float64).exp()))
    flat = WeibullGuide(model, init_kappa=0.9)
    with torch.no_grad():
        for weight in flat.parameters():
            weight.zero_()
    for guide in (PriorGuide(model), flat):
        found = importance_estimate(model, guide, batch, samples=2000)
        assert abs(found.evidence - exact) < 4 * found.evidence_error + 0.01, type(guide).__name__
        assert found.evidence_error < 0.1
        assert found.elbo < exact


@pytest.mark.parametrize("rate", [1.25, 10.0])
def test_pareto_k_of_exponentials(rate: float) -> None:
    # p = Exp(1), q = Exp(rate): the weights' tail is P(w > t) ~ t^(-rate / (rate - 1)).
    torch.manual_seed(0)
    z = torch.empty(20_000, dtype=torch.float64).exponential_(rate)
    found = summarise((rate - 1) * z - math.log(rate))
    assert abs(found.k_hat - (rate - 1) / rate) < 3 * (1 + 0.9) / math.sqrt(3 * math.sqrt(20_000))
    assert found.reliable == (rate == 1.25)
    kl = math.log(rate) + 1 / rate - 1
    assert abs(found.elbo + kl) < 4 * found.elbo_error
    if found.reliable:
        assert abs(found.evidence) < 4 * found.evidence_error


def test_equal_weights_and_the_bootstrap() -> None:
    flat = summarise(torch.full((50,), -3.0, dtype=torch.float64))
    assert flat.evidence == pytest.approx(-3.0)
    assert flat.evidence_error == pytest.approx(0, abs=1e-9)
    assert flat.effective == pytest.approx(50)
    torch.manual_seed(0)
    weights = 0.5 * torch.randn(2000, dtype=torch.float64)
    found = summarise(weights, resamples=400)
    delta = float(weights.exp().std() / weights.exp().mean()) / math.sqrt(2000)
    assert found.evidence_error == pytest.approx(delta, rel=0.15)
    with pytest.raises(ConfigError, match="samples is 1"):
        summarise(weights[:1])


def test_what_cannot_be_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = one_gate()
    with pytest.raises(ConfigError, match="DeltaGuide is a point estimate"):
        log_weights(model, DeltaGuide(model), batch)
    with pytest.raises(ConfigError, match="was made for another model"):
        log_weights(model, WeibullGuide(one_gate()[0]), batch)
    with pytest.raises(ConfigError, match="samples is 0"):
        log_weights(model, WeibullGuide(model), batch, samples=0)
    lora = LoRA(model.backbone, len(batch))
    with pytest.raises(ConfigError, match="LoRA has no latents"):
        log_weights(lora, PriorGuide(lora), batch)
    guide = WeibullGuide(model)
    with torch.no_grad():
        guide.sites[module_key("phi")].weight.fill_(math.nan)
    with pytest.raises(TrainingError, match="20 of 20 importance weights are not finite"):
        log_weights(model, guide, batch, samples=20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_data": 24}, "num_data=24 for 12 rows would count each row 2 times"),
        ({"beta_phi": 0.5}, "'phi' has KL weight 0.5"),
        ({"beta_theta": 0.0, "latent": "phi*theta"}, f"'{THETA}' has KL weight 0"),
    ],
)
def test_another_posterior_is_refused(options: dict, said: str) -> None:
    model, batch = one_gate(ROWS, **options)
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        log_weights(model, WeibullGuide(model), batch)


def test_labels_are_needed() -> None:
    model, batch = one_gate()
    unlabelled = type(batch)(batch.input_ids, batch.attention_mask, batch.answer_ids)
    with pytest.raises(DataError, match="no labels"):
        log_weights(model, WeibullGuide(model), unlabelled)
