"""Handlers of Pyro around model or guide in an ELBO: the loss by hand where they act, else refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pytest
import torch
from core_cases import bara_pair, make_batch, trainer, unlabelled
from pyro import poutine
from pyro.distributions import Gamma, Normal
from pyro.infer import SVI as STOCK
from pyro.infer import Importance, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.reparam import LocScaleReparam
from torch import Tensor
from torch.distributions import kl_divergence

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import adamw
from bara_pyro.core.prediction import predict
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError

R, N = 2, 4
ELBOS = (Trace_ELBO, TraceMeanField_ELBO, MeanFieldELBO)
Handler = Callable[[Any], Any]
FIXED = torch.linspace(0.2, 1.8, 5 * R).reshape(5, R)


@pytest.fixture
def pair() -> Any:
    return bara_pair(num_data=N, r=R, seed=0, scale=0.3, latent="phi", beta_phi=0.5)


def stock(elbo: Callable[[], Any], model: Any, guide: Any) -> float:
    """The loss by Pyro's own inference, of draws that are the same each time."""
    svi = STOCK(model, guide, pyro.optim.Adam({"lr": 1e-3}), elbo())
    pyro.set_rng_seed(3)
    return svi.evaluate_loss(make_batch())


class ByHand:
    """The parts of a loss from distributions and log-probabilities that no ELBO made."""

    def __init__(self, pair: Any, elbo: Callable[[], Any]) -> None:
        self.model, guide = pair
        with torch.no_grad(), pyro.poutine.block():
            posterior = guide.posterior(guide.sites["phi"].weight, R)
            pyro.set_rng_seed(3)
            self.phi = posterior.rsample()
            self.prior = Gamma(torch.ones(5, R), torch.ones(())).to_event(1)
            if elbo is Trace_ELBO:
                self.kl = float((posterior.log_prob(self.phi) - self.prior.log_prob(self.phi)).sum())
            else:
                self.kl = float(kl_divergence(posterior, self.prior).sum())

    def nll(self, phi: Tensor) -> Tensor:
        """`B`."""
        with torch.no_grad():
            log_probs = pyro.condition(self.model.forward, data={"phi": phi})(unlabelled())
        return -log_probs[torch.arange(N), make_batch().labels]


ROWS = torch.tensor([True, False, True, False]).unsqueeze(-1)
ACTING: dict[str, tuple[Handler, Callable[[ByHand], float]]] = {
    "none": (lambda m: m, lambda own: float(own.nll(own.phi).sum()) + 0.5 * own.kl),
    "scale": (
        lambda m: poutine.scale(m, 1000.0),
        lambda own: 1000 * (float(own.nll(own.phi).sum()) + 0.5 * own.kl),
    ),
    "condition": (
        lambda m: poutine.condition(m, data={"phi": FIXED}),
        lambda own: float(own.nll(FIXED).sum() - 0.5 * own.prior.log_prob(FIXED).sum()),
    ),
    "block": (lambda m: poutine.block(m, hide=["y"]), lambda own: 0.5 * own.kl),
    "mask": (
        lambda m: poutine.mask(poutine.block(m, hide=["phi"]), mask=ROWS),
        lambda own: float(own.nll(prior_draw())[ROWS.squeeze(-1)].sum()),
    ),
    "two": (
        lambda m: poutine.scale(poutine.condition(m, data={"phi": FIXED}), 3.0),
        lambda own: 3 * float(own.nll(FIXED).sum() - 0.5 * own.prior.log_prob(FIXED).sum()),
    ),
}


def prior_draw() -> Tensor:
    pyro.set_rng_seed(3)
    return Gamma(torch.ones(5, R), torch.ones(())).sample()


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("kind", ACTING)
def test_around_the_model_they_act(pair: Any, kind: str, elbo: Callable[[], Any]) -> None:
    model, guide = pair
    handler, by_hand = ACTING[kind]
    assert stock(elbo, handler(model), guide) == pytest.approx(by_hand(ByHand(pair, elbo)), rel=2e-5)


def replayed(model: Any) -> Any:
    with torch.no_grad():
        return poutine.replay(model, trace=poutine.trace(model).get_trace(make_batch()))


def in_a_function(model: Any) -> Any:
    def run(batch: Batch) -> Tensor:
        return model(batch)

    return run


REFUSED: dict[str, Handler] = {
    "lift": lambda m: poutine.lift(m, prior={"adapters.lm_head.lora_B": Normal(0.0, 1.0)}),
    "reparam": lambda m: poutine.reparam(m, config={"phi": LocScaleReparam(0.5)}),
    "replay": replayed,
    "substitute": lambda m: poutine.substitute(m, data={"adapters.lm_head.lora_B": torch.zeros(())}),
    "do": lambda m: poutine.do(m, data={"phi": FIXED}),
    "do the answers": lambda m: poutine.do(m, data={"y": make_batch().labels.unsqueeze(-1)}),
    "labels by row": lambda m: poutine.condition(m, data={"y": make_batch().labels}),
    "function": in_a_function,
    "trace": poutine.trace,
    "other": lambda m: bara_pair(num_data=N, r=R, latent="phi")[0],
}


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_act_around_the_model_is_refused(pair: Any, kind: str, elbo: Callable[[], Any]) -> None:
    model, guide = pair
    handled = REFUSED[kind](model)
    with pytest.raises(ConfigError) as error:
        stock(elbo, handled, guide)
    assert len(str(error.value)) <= 220


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("by", ["lift", "substitute"])
def test_a_parameter_cannot_be_replaced_in_silence(pair: Any, by: str, part: int) -> None:
    """Its module would keep its own, in a bare forward and in NUTS as well."""
    name = ("adapters.lm_head.lora_B", "guide.sites.phi.weight")[part]
    value = torch.zeros(())
    handlers = {
        "lift": lambda f: poutine.lift(f, prior={name: Normal(value, 1.0)}),
        "substitute": lambda f: poutine.substitute(f, data={name: value}),
    }
    with pytest.raises(ConfigError, match="lift"):
        handlers[by](pair[part])(make_batch())


@pytest.mark.parametrize("shape", [(), (R,), (1, R), (5, 1)])
def test_one_value_may_stand_for_all_modules_or_units(pair: Any, shape: tuple[int, ...]) -> None:
    model, guide = pair
    fixed = torch.linspace(0.2, 1.8, max(1, torch.Size(shape).numel())).reshape(shape)
    found, expected = (
        stock(Trace_ELBO, poutine.condition(model, data={"phi": value}), guide)
        for value in (fixed, fixed.expand(5, R).clone())
    )
    assert found == pytest.approx(expected, rel=1e-6)


AROUND_GUIDES: dict[str, Handler] = {
    "scale": lambda g: poutine.scale(g, 10.0),
    "mask": lambda g: poutine.mask(g, mask=ROWS),
    "condition": lambda g: poutine.condition(g, data={"phi": FIXED}),
    "do": lambda g: poutine.do(g, data={"phi": FIXED}),
    "block": lambda g: poutine.block(g, hide=["phi"]),
    "lift": lambda g: poutine.lift(g, prior=Normal(0.0, 1.0)),
}


@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.parametrize("kind", AROUND_GUIDES)
def test_around_a_guide_of_ours_they_are_refused(pair: Any, kind: str, elbo: Callable[[], Any]) -> None:
    """They would act on the model's own sites, too, which run in the same pass."""
    model, guide = pair
    with pytest.raises(ConfigError, match="around the model"):
        stock(elbo, model, AROUND_GUIDES[kind](guide))


@pytest.mark.parametrize("kind", [*ACTING, *REFUSED])
def test_our_inference_takes_the_model_itself(pair: Any, kind: str) -> None:
    model, guide = pair
    handler = ACTING[kind][0] if kind in ACTING else REFUSED[kind]
    if kind == "none":
        trainer(pair)
        return
    with pytest.raises(ConfigError, match="another model"):
        SVI(handler(model), guide, adamw(model, guide, 1e-3))


def test_the_optimiser_takes_the_model_itself(pair: Any) -> None:
    with pytest.raises(ConfigError, match=r"pyro\.infer\.SVI"):
        adamw(in_a_function(pair[0]), pair[1], 1e-3)


@pytest.mark.parametrize("kind", AROUND_GUIDES)
def test_our_inference_takes_the_guide_itself(pair: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match="SiteGuide"):
        SVI(pair[0], AROUND_GUIDES[kind](pair[1]), adamw(*pair, 1e-3))


@pytest.mark.parametrize("kind", ["scale", "condition", "block"])
def test_around_a_whole_step_they_act_as_around_the_model(pair: Any, kind: str) -> None:
    """What latents are set to counts under the prior, not under the posterior that they might have had."""
    around: dict[str, Callable[[], Any]] = {
        "scale": partial(poutine.scale, scale=1000.0),
        "condition": partial(poutine.condition, data={"phi": FIXED}),
        "block": poutine.block,
    }
    kinds = {"block": "none"}  # nothing is outside to hide from
    expected = ACTING[kinds.get(kind, kind)][1](ByHand(pair, MeanFieldELBO))
    svi = trainer(pair)
    pyro.set_rng_seed(3)
    with around[kind]():
        assert svi.evaluate_loss(make_batch()) == pytest.approx(expected, rel=2e-5)
    with poutine.do(data={"phi": FIXED}), pytest.raises(ConfigError, match="condition"):
        svi.evaluate_loss(make_batch())


@pytest.mark.slow
def test_vectorised_particles_are_draws_of_one_loss() -> None:
    pair = bara_pair(num_data=N, r=R, seed=0, scale=0.3, beta_theta=1.0, move=0.1)
    means = {}
    for name, elbo in {
        "mean field": partial(TraceMeanField_ELBO, vectorize_particles=True),
        "ours": partial(MeanFieldELBO, vectorize_particles=True),
        "one by one": MeanFieldELBO,
    }.items():
        means[name] = stock(partial(elbo, num_particles=400), *pair)
    assert means["mean field"] == pytest.approx(means["ours"], rel=1e-5)
    assert means["ours"] == pytest.approx(means["one by one"], rel=2e-3)
    scaled = stock(
        partial(MeanFieldELBO, vectorize_particles=True, num_particles=400),
        poutine.scale(pair[0], 10.0),
        pair[1],
    )
    assert scaled == pytest.approx(10 * means["ours"], rel=1e-5)


def test_who_replays_the_model_weighs_latents_alone_in_the_guide(pair: Any) -> None:
    """`Importance` takes the density of a guide's trace from the model's: the answers must stay in it."""
    model, guide = pair
    pyro.set_rng_seed(4)
    found = Importance(model, guide, num_samples=1).run(make_batch())
    trace = found.exec_traces[0]
    phi = trace.nodes["phi"]["value"].reshape(5, R)
    own = ByHand(pair, Trace_ELBO)
    with torch.no_grad():
        posterior = guide.posterior(guide.sites["phi"].weight, R)
        gap = (own.prior.log_prob(phi) - posterior.log_prob(phi)).sum()
    expected = float(0.5 * gap - own.nll(phi).sum())
    assert float(found.log_weights[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_condition_inside_predictive_acts_or_is_refused(pair: Any, parallel: bool) -> None:
    """Beside a guide Predictive conditions on its draws, and those would win."""
    model, guide = pair
    fixed = poutine.condition(model, data={"phi": FIXED})
    how = {"num_samples": 3, "parallel": parallel, "return_sites": ("_RETURN",)}
    found = Predictive(fixed, **how)(unlabelled())["_RETURN"].reshape(-1, N, 3)
    with torch.no_grad():
        truth = pyro.condition(model.forward, data={"phi": FIXED})(unlabelled())
    torch.testing.assert_close(found, truth.expand_as(found), rtol=0, atol=2e-5)
    assert (predict(*pair, unlabelled(), samples=3) - truth).abs().max() > 0.01
    with pytest.raises(ConfigError, match="Two poutine"):
        Predictive(fixed, guide=guide, **how)(unlabelled())
