"""With B = 0 the answer does not depend on the latents, and the bound has a closed form."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from core_cases import (
    ROWS,
    backbone,
    bara_pair,
    gamma_priors,
    hooked_forward,
    lora_pair,
    make_batch,
    noise_level,
    plain_forward,
    quadrature_kl,
    randomise,
    seen,
    unlabelled,
)
from pyro import poutine
from pyro.distributions import Normal
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.data.types import Batch
from bara_pyro.errors import DataError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

N, R = 12, 3
PHI, THETA = (0.7, 1.3), (2.0, 0.5)  # Gamma (concentration, rate): unlike, so that a swap shows
PARTS = [[0, 1], [2, 3]]


def toy(arch: str = "qwen2", **options: object) -> tuple[BaRA, WeibullGuide]:
    """B = 0, and a guide that is not at its start; kappa stays inside its bounds."""
    fit = {"random_kappa": True, "max_kappa": KAPPA_MAX}
    settings = {"num_data": N, "r": R, "beta_theta": 1.0, **gamma_priors(phi=PHI, theta=THETA), **options}
    return bara_pair(arch, move=0.1, fit=fit, **settings)


def closed_form(model: BaRA, guide: WeibullGuide, batch: Batch) -> dict[str, float]:
    """Sums over the batch, each divergence by quadrature at the guide's parameters, token by token."""
    lm, paths = model.backbone.lm, [t.path for t in model.targets]
    inputs: dict[str, Tensor] = {}

    def record(path: str, x: Tensor) -> Tensor:
        inputs[path] = x
        return torch.zeros(())

    with torch.no_grad():
        log_probs = hooked_forward(batch, lm, paths, "lm_head", record)
        raw = guide.sites["phi"].weight
        phi = quadrature_kl(F.softplus(raw[:, :R]), noise_level(raw[:, R:]), *PHI)
        theta = 0.0
        for path in paths:
            weight = guide.sites[f"theta/{path}".replace(".", "/")].weight
            for row in range(len(batch)):
                length = int(batch.attention_mask[row].sum())
                used = 1 if path == "lm_head" else length
                for x in seen(model, inputs[path][row, -used:]):
                    kl = quadrature_kl(F.softplus(weight[:R] @ x), noise_level(weight[R:] @ x), *THETA)
                    theta += float(kl.sum())
    nll = -sum(log_probs.double()[row, label] for row, label in enumerate(batch.labels))
    return {"nll": float(nll), "phi": float(phi.sum()), "theta": theta}


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_loss_is_the_closed_form(arch: str, form: str) -> None:
    model, guide = toy(arch, form=form)
    batch = make_batch(pad=2)
    truth = closed_form(model, guide, batch)
    terms = MeanFieldELBO().terms(model, guide, batch)
    scale = N / len(ROWS)
    expected = scale * truth["nll"] + truth["phi"] + scale * truth["theta"]
    assert terms.loss.item() == pytest.approx(expected, rel=2e-6)
    assert terms.nll.item() == pytest.approx(scale * truth["nll"], rel=2e-6)
    assert terms.kl["phi"].item() == pytest.approx(truth["phi"], rel=5e-6)
    local = sum(v.item() for site, v in terms.kl.items() if site != "phi")
    assert local == pytest.approx(truth["theta"], rel=5e-6)
    # Every part is large enough to be missed.
    assert min(abs(v) for v in truth.values()) > 1e-3 * expected


@pytest.mark.parametrize("latent", ["phi", "theta"])
def test_one_kind_of_latent_alone(latent: str) -> None:
    model, guide = toy()
    truth = closed_form(model, guide, make_batch())
    alone, small = toy(latent=latent)
    with torch.no_grad():
        for name, weight in small.named_parameters():
            weight.copy_(guide.get_parameter(name))
    expected = N / 4 * truth["nll"] + (truth["phi"] if latent == "phi" else N / 4 * truth["theta"])
    assert MeanFieldELBO().terms(alone, small, make_batch()).loss.item() == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(
    "weights", [(1.0, 1.0), (0.25, 1.0), (1.0, 1e-5), (3.0, 0.5), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
)
def test_the_weights_enter_linearly(weights: tuple[float, float]) -> None:
    model, guide = toy()
    truth = closed_form(model, guide, make_batch())
    model.beta_phi, model.beta_theta = weights
    loss = MeanFieldELBO().terms(model, guide, make_batch()).loss.item()
    expected = N / 4 * truth["nll"] + weights[0] * truth["phi"] + weights[1] * N / 4 * truth["theta"]
    assert loss == pytest.approx(expected, rel=2e-6)


def test_the_reported_divergences_do_not_carry_their_weights() -> None:
    model, guide = toy()
    plain = MeanFieldELBO().terms(model, guide, make_batch()).kl
    model.beta_phi, model.beta_theta = 0.1, 1e-5
    weighted = MeanFieldELBO().terms(model, guide, make_batch()).kl
    assert plain == weighted


@pytest.mark.parametrize("make", [toy, partial(lora_pair, num_data=N)], ids=["bara", "lora"])
def test_minibatches_average_to_the_whole(make: Callable) -> None:
    pair, elbo = make(), MeanFieldELBO()
    whole = elbo.terms(*pair, make_batch()).loss.item()
    parts = [elbo.terms(*pair, make_batch(choose=rows)).loss.item() for rows in PARTS]
    assert sum(parts) / 2 == pytest.approx(whole, rel=2e-6)
    assert abs(parts[0] - parts[1]) > 1e-2 * whole


def test_lora_without_latents_is_the_cross_entropy() -> None:
    batch = make_batch()
    with torch.no_grad():
        nll = F.nll_loss(plain_forward(batch, backbone().lm), batch.labels).item()
    loss = MeanFieldELBO().terms(*lora_pair(num_data=N, scale=0.0), batch).loss
    assert loss.item() == pytest.approx(N * nll, rel=2e-6)


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
def test_padding_costs_nothing(arch: str) -> None:
    model, guide = toy(arch)
    elbo = MeanFieldELBO()
    plain = elbo.terms(model, guide, make_batch())
    padded = elbo.terms(model, guide, make_batch(pad=5, pad_id=7))
    assert padded.loss.item() == pytest.approx(plain.loss.item(), rel=2e-6)
    for site, kl in plain.kl.items():
        assert padded.kl[site].item() == pytest.approx(kl.item(), rel=1e-5), site


def test_the_divergences_have_no_variance() -> None:
    model, guide = toy()
    elbo = MeanFieldELBO()
    first, second = (elbo.terms(model, guide, make_batch()) for _ in range(2))
    assert first.kl == second.kl
    assert torch.equal(first.loss, second.loss)
    # Where the answer does depend on the draws, the sites whose input does not are still exact.
    randomise(model)
    first, second = (elbo.terms(model, guide, make_batch()) for _ in range(2))
    fixed = {"phi", *(f"theta/model.layers.0.self_attn.{name}_proj" for name in "qv")}
    for site in first.kl:
        assert torch.equal(first.kl[site], second.kl[site]) == (site in fixed), site


def test_delta_posteriors_give_the_map_objective() -> None:
    # -log Gamma(1, b) at the mean of the gate: b m - log b.
    model, _ = toy(phi_prior={"name": "gamma", "rate": 1.5}, latent="phi")
    guide = DeltaGuide(model)
    with torch.no_grad():
        guide.sites["phi"].weight.normal_()
        mean = F.softplus(guide.sites["phi"].weight.double())
    batch = make_batch()
    terms = MeanFieldELBO().terms(model, guide, batch)
    expected = (1.5 * mean - torch.tensor(1.5).double().log()).sum()
    assert terms.kl["phi"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_batches_without_labels_are_refused() -> None:
    with pytest.raises(DataError, match="no labels"):
        MeanFieldELBO().terms(*toy(), unlabelled())


def test_rows_with_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose rows count differently: the weighted mean of the bounds of its rows."""
    weights = torch.tensor([0.5, 2.0, 0.1, 1.5])
    model, guide = toy(latent="theta")
    alone = [MeanFieldELBO().terms(model, guide, make_batch(choose=[row])).loss for row in range(len(ROWS))]
    monkeypatch.setattr(model, "outside", lambda: poutine.scale(scale=weights[:, None]), raising=False)
    terms = MeanFieldELBO().terms(model, guide, make_batch())
    assert terms.loss.item() == pytest.approx(float((weights * torch.stack(alone)).mean().detach()), rel=1e-5)


def test_the_sum_of_many_terms_keeps_its_digits() -> None:
    """Above a million terms a sum is float64."""
    values = torch.full((3_000_000,), 0.1)
    q, p = Normal(values, 1.0), Normal(torch.zeros_like(values), 1.0)
    nodes = {"z": {"type": "sample", "fn": q, "scale": 2.0, "mask": None, "value": values}}
    posterior, prior = (Trace() for _ in range(2))
    posterior.nodes.update({name: {**node} for name, node in nodes.items()})
    prior.nodes.update({name: {**node, "fn": p} for name, node in nodes.items()})
    terms = MeanFieldELBO()._terms(prior, posterior)
    assert terms.loss.dtype == torch.float64
    assert terms.loss.item() == 2 * kl_divergence(q, p).double().sum().item()


def fit(model: BaRA, guide: WeibullGuide, rows: tuple, steps: int) -> dict[str, float]:
    """Minimise the bound over the guide alone: B stays 0."""
    batch = make_batch(rows=rows)
    optim = torch.optim.Adam(guide.parameters(), lr=0.05, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LinearLR(optim, 1.0, 0.02, steps)
    for _ in range(steps):
        optim.zero_grad()
        terms = MeanFieldELBO().terms(model, guide, batch)
        terms.loss.backward()
        optim.step()
        schedule.step()
    return {site: kl.item() for site, kl in terms.kl.items()}


@pytest.mark.parametrize(("rate", "max_kappa"), [(0.5, KAPPA_MAX), (2.0, 1.0)])
@pytest.mark.slow
def test_phi_goes_to_its_prior(rate: float, max_kappa: float) -> None:
    prior = {"name": "gamma", "rate": rate}
    model, guide = bara_pair(fit={"max_kappa": max_kappa}, latent="phi", phi_prior=prior)
    start = MeanFieldELBO().terms(model, guide, make_batch()).kl["phi"].item()
    kl = fit(model, guide, ((5,),), 300)
    raw = guide.sites["phi"].weight
    assert start > 1
    assert abs(kl["phi"]) < 1e-4
    kappa = noise_level(raw[:, 3:]).clamp_max(max_kappa)
    assert_close(F.softplus(raw[:, :3]), torch.full((5, 3), 1 / rate), rtol=0.01, atol=0)
    assert_close(kappa, torch.ones(5, 3), rtol=0.01, atol=0)


@pytest.mark.slow
def test_theta_goes_to_its_prior() -> None:
    # Few tokens: a map linear in the input can then give every one of them the same posterior.
    prior = {"name": "gamma", "rate": 2.0}
    model, guide = bara_pair(latent="theta", beta_theta=1.0, theta_prior=prior)
    rows = ((5, 7), (11, 12))
    start = MeanFieldELBO().terms(model, guide, make_batch(rows=rows)).kl
    end = fit(model, guide, rows, 300)
    for site, kl in end.items():
        assert start[site].item() > 1, site
        assert abs(kl) < 5e-4, site
