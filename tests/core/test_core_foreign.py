"""Stock guides of Pyro fit the objective that the program states: its weights, its mask, its Jacobians."""

import math
from collections.abc import Callable

import pyro
import pytest
import torch
from core_cases import bara_pair, make_batch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal, init_to_mean
from torch import Tensor

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.errors import ConfigError
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.models.bara import BaRA

R, N = 2, 4
ELBOS = (TraceMeanField_ELBO, Trace_ELBO, MeanFieldELBO)


@pytest.fixture(autouse=True)
def _empty_store() -> None:
    pyro.clear_param_store()


def toy(beta: float = 1.0) -> BaRA:
    return bara_pair(num_data=N, r=R, seed=0, scale=0.3, beta_phi=beta, beta_theta=beta)[0]


def loss_and_draws(elbo: Callable, beta: float, pad: int) -> tuple[float, dict[str, Tensor]]:
    """The loss of one seeded draw of `AutoNormal`, and its draws on the real line."""
    model, batch = toy(beta), make_batch(pad=pad)
    guide = AutoNormal(model, init_loc_fn=init_to_mean, init_scale=0.3)
    guide(batch)
    torch.manual_seed(5)
    loss = elbo().loss(model, guide, batch)
    torch.manual_seed(5)
    nodes = pyro.poutine.trace(guide).get_trace(batch).nodes
    ends = "_unconstrained"
    return loss, {n.removesuffix(ends): v["value"].detach() for n, v in nodes.items() if n.endswith(ends)}


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize(("beta", "pad"), [(1.0, 0), (1e-6, 0), (0.5, 6)])
def test_the_loss_is_the_one_written_by_hand(elbo: Callable, beta: float, pad: int) -> None:
    loss, draws = loss_and_draws(elbo, beta, pad)
    model, batch = toy(beta), make_batch(pad=pad)
    divergence = 0.0
    for name, u in draws.items():
        # The Gamma(1, 1) prior of t = exp(u) has log-density -t, and u = log t the Jacobian 1 / t.
        each = -((u / 0.3) ** 2) / 2 - math.log(0.3 * math.sqrt(2 * math.pi)) - u + u.exp()
        mask = torch.ones(())
        if name not in ("phi", "theta/lm_head"):
            mask = batch.attention_mask.unsqueeze(-1)
        divergence += float((each * mask).sum())
    values = {name: u.exp() for name, u in draws.items()}
    with torch.no_grad():
        log_probs = pyro.poutine.condition(model.forward, data=values)(batch)
    nll = -float(log_probs[torch.arange(N), batch.labels].sum())
    assert loss == pytest.approx(nll + beta * divergence, rel=1e-5)
    assert divergence > 10


def test_a_point_guide_is_weighted_too() -> None:
    for beta in (1.0, 1e-6):
        model, batch = toy(beta), make_batch()
        guide = AutoDelta(model, init_loc_fn=init_to_mean)
        guide(batch)
        with torch.no_grad():
            log_probs = pyro.poutine.condition(model.forward, data=dict(guide(batch)))(batch)
        nll = -float(log_probs[torch.arange(N), batch.labels].sum())
        tokens = int(batch.attention_mask.sum()) * (len(model.targets) - 1) + N
        gates = len(model.targets) * R + tokens * R  # each at the prior's mean 1, of log-density -1
        assert Trace_ELBO().loss(model, guide, batch) == pytest.approx(nll + beta * gates, rel=1e-5)
        pyro.clear_param_store()


def test_one_site_for_all_latents_is_refused() -> None:
    batch = make_batch()
    tempered, _ = bara_pair(latent="phi", beta_phi=0.5)
    with pytest.raises(ConfigError, match="AutoNormal"):
        Trace_ELBO().loss(tempered, AutoDiagonalNormal(tempered), batch)
    pyro.clear_param_store()
    plain, _ = bara_pair(latent="phi")
    assert math.isfinite(Trace_ELBO().loss(plain, AutoDiagonalNormal(plain), batch))


def test_own_guides_never_notice() -> None:
    model, batch = toy(0.5), make_batch()
    torch.manual_seed(1)
    stock = TraceMeanField_ELBO().loss(model, PriorGuide(model), batch)
    torch.manual_seed(1)
    assert MeanFieldELBO().loss(model, PriorGuide(model), batch) == pytest.approx(stock, rel=1e-5)
