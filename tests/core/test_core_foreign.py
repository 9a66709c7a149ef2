"""Stock guides of Pyro fit the objective that the program states: its weights, its mask, its Jacobians."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pyro
import pytest
import torch
from core_cases import bara_pair, make_batch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO, config_enumerate, infer_discrete
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalMessenger,
    init_to_mean,
)
from torch import Tensor

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.latents import Site
from bara_pyro.data.types import Batch
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


def minibatches(guide: Callable, rows: int = N, choose: tuple[int, ...] = (0, 1)) -> float:
    """A step of a guide on some of the rows, after one on all where the program is of so many."""
    model = bara_pair(num_data=rows, r=R, seed=0, scale=0.3, beta_theta=1.0)[0]
    svi = pyro.infer.SVI(model, guide(model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    if rows == N:
        svi.step(make_batch())
    return svi.step(make_batch(choose=list(choose)))


def listed(model: BaRA) -> AutoGuideList:
    guide = AutoGuideList(model)
    guide.append(AutoDelta(pyro.poutine.block(model, expose=["phi"])))
    guide.append(AutoNormal(pyro.poutine.block(model, hide=["phi"])))
    return guide


def by_hand(model: BaRA, shape: Callable[[Batch, Site], tuple[int, ...]], **declared: int) -> Callable:
    """A guide of a person, whose parameters have that shape."""

    def guide(batch: Batch) -> None:
        with pyro.plate("modules", len(model.targets), dim=-1):
            pyro.sample("phi", dist.LogNormal(torch.zeros(R), 0.1).to_event(1))
        rows, width = batch.input_ids.shape
        with pyro.plate("data", model.num_data, subsample=torch.arange(rows), dim=-2):
            tokens = pyro.plate("tokens", width, dim=-1)
            for name, site in model.latents.local_sites.items():
                head = name.endswith("lm_head")
                size = [(1 if head else width) if n < 0 else n for n in shape(batch, site)]
                with nullcontext() if head else tokens:
                    loc = pyro.param(f"loc/{name}", torch.zeros(*size, *site.shape), **declared)
                    distribution = dist.LogNormal(loc, 0.1).expand([rows, 1 if head else width, R])
                    pyro.sample(name, distribution.to_event(1))

    return guide


POSITION = {
    "normal": AutoNormal,
    "delta": AutoDelta,
    "list": listed,
    "messenger": AutoNormalMessenger,
    "by hand": lambda model: by_hand(model, lambda batch, site: (len(batch), -1)),
    "declared": lambda model: by_hand(model, lambda batch, site: (model.num_data, -1), event_dim=1),
    **{kind.__name__: kind for kind in (AutoDiagonalNormal, AutoMultivariateNormal)},
    **{kind.__name__: kind for kind in (AutoLowRankMultivariateNormal, AutoIAFNormal)},
    "laplace": AutoLaplaceApproximation,
}


@pytest.mark.parametrize("kind", POSITION)
def test_parameters_of_rows_by_their_place_are_refused_on_other_rows(kind: str) -> None:
    """Of a minibatch they would be of random rows, or of whichever stand there next."""
    with pytest.raises(ConfigError, match="use"):
        minibatches(POSITION[kind], rows=10)


@pytest.mark.parametrize(
    ("kind", "choose"),
    [
        *((kind, (1, 0, 2, 3)) for kind in ("normal", "delta", "list", "messenger", "by hand")),
        *((kind, rows) for kind in ("normal", "delta", "list") for rows in ((0, 1), (0, 2, 3, 3))),
    ],
)
def test_all_rows_are_to_be_the_same_ones_always(kind: str, choose: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="latent='phi'"):
        minibatches(POSITION[kind], choose=choose)
    pyro.clear_param_store()
    assert math.isfinite(minibatches(POSITION[kind], choose=(0, 1, 2, 3)))


@pytest.mark.parametrize(
    "kind",
    [
        lambda model: by_hand(model, lambda batch, site: ()),
        lambda model: by_hand(model, lambda batch, site: (1, 1), event_dim=1),
        partial(AutoNormalMessenger, amortized_plates=("data", "tokens")),
    ],
)
def test_parameters_that_rows_share_take_any(kind: Callable) -> None:
    assert math.isfinite(minibatches(kind, rows=10))
    pyro.clear_param_store()
    assert math.isfinite(minibatches(kind, choose=(3, 1)))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_program_is_replayed_against_its_own_draws(beta: float) -> None:
    """With weights that are its own: also those of a guide of ours, and values without any."""
    model, batch = toy(beta), make_batch(pad=2)
    for drawn in (model, PriorGuide(model)):
        with torch.no_grad():
            trace = poutine.trace(drawn).get_trace(batch)
            again = poutine.trace(poutine.replay(model, trace=trace)).get_trace(batch)
            values = {name: trace.nodes[name]["value"] for name in model.latents.sites}
            known = poutine.trace(poutine.condition(model, data=values)).get_trace(batch)
        assert float(again.log_prob_sum()) == pytest.approx(float(known.log_prob_sum()), rel=1e-6)
    pyro.clear_param_store()
    with torch.no_grad():
        set_to = config_enumerate(poutine.condition(model, data=values))
        best = infer_discrete(set_to, first_available_dim=-4, temperature=0)
        y = poutine.trace(best).get_trace(batch.unlabelled()).nodes["y"]
    assert torch.equal(y["value"], y["fn"].logits.argmax(-1))


@pytest.mark.parametrize("around", [partial(poutine.scale, scale=10.0), partial(poutine.mask, mask=False)])
@pytest.mark.parametrize("elbo", ELBOS)
def test_weights_around_a_stock_guide_are_refused(around: Callable, elbo: Callable) -> None:
    """The program's own take their place."""
    model, _ = bara_pair(num_data=N, r=R, seed=0, latent="phi", beta_phi=0.5)
    guide = AutoNormal(model)
    plain = elbo().loss(model, guide, make_batch())
    with pytest.raises(ConfigError, match="its own weight or mask"):
        elbo().loss(model, around(guide), make_batch())
    torch.manual_seed(1)
    once = elbo().loss(model, guide, make_batch())
    torch.manual_seed(1)
    assert elbo().loss(poutine.scale(model, 10.0), guide, make_batch()) == pytest.approx(10 * once, rel=1e-5)
    torch.manual_seed(1)
    with poutine.scale(scale=10.0):
        assert elbo().loss(model, guide, make_batch()) == pytest.approx(10 * once, rel=1e-5)
    assert math.isfinite(plain)
