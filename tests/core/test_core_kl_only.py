"""With a constant likelihood, training drives the posterior to the prior."""

import pytest
import torch
from core_cases import bara_pair, make_batch, noise_level
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA


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
