"""Pyro's own SVI on the same model and guide: the same training, through the parameter store."""

import math
from collections.abc import Callable

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, make_batch, randomise
from pyro.infer import SVI as STOCK
from pyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.svi import SVI
from bara_pyro.errors import ConfigError
from bara_pyro.guides.contextual import ContextualGuide
from bara_pyro.guides.fvae import FVAEGuide
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.clora import CLoRA
from bara_pyro.models.fvae import FVAE
from bara_pyro.models.gaussian_lora import GaussianLoRA

N = 4


def fresh(form: str) -> tuple[BaRA, WeibullGuide]:
    pyro.clear_param_store()
    return bara_pair(num_data=N, seed=3, scale=0.1, form=form, beta_theta=1.0)


def fvae_pair() -> tuple:
    model = FVAE(backbone(), N, r=2)
    return model, FVAEGuide(model)


def clora_pair() -> tuple:
    model = randomise(CLoRA(backbone(), N, r=2))
    return model, ContextualGuide(model)


def blob_pair() -> tuple:
    model = randomise(GaussianLoRA(backbone(), N, r=2, random="A", prior_scale=0.2))
    return model, NormalGuide(model)


def named(pair: tuple[BaRA, WeibullGuide]) -> dict[str, torch.Tensor]:
    parts = zip(("model", "guide"), pair, strict=True)
    return {f"{part}.{n}": p.detach().clone() for part, module in parts for n, p in module.named_parameters()}


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_same_draws_same_path(form: str) -> None:
    # Ours divides the loss by N, which Adam cancels but for its epsilon.
    batch, steps, lr = make_batch(), 20, 0.02
    ours = fresh(form)
    start = named(ours)
    svi = SVI(*ours, torch.optim.Adam(parameters(*ours), lr=lr, eps=1e-4))
    pyro.set_rng_seed(1)
    losses = [svi.step(batch) for _ in range(steps)]
    stock = fresh(form)
    svi = STOCK(*stock, pyro.optim.Adam({"lr": lr, "eps": 1e-4 * N}), TraceMeanField_ELBO())
    pyro.set_rng_seed(1)
    stock_losses = [svi.step(batch) for _ in range(steps)]

    assert losses == pytest.approx(stock_losses, rel=2e-3)
    end, other = named(ours), named(stock)
    for name, value in end.items():
        assert_close(value, other[name], rtol=0, atol=2e-3, msg=name)
        moved = (value - start[name]).abs()
        rows = moved[batch.answer_ids] if name == "model.adapters.lm_head.lora_B" else moved
        assert (rows > 0).all(), name  # all of it was trained


@pytest.mark.parametrize(("form", "elbo"), [("gate", TraceMeanField_ELBO), ("additive", MeanFieldELBO)])
def test_an_elbo_as_a_loss_module_with_a_torch_optimiser(form: str, elbo: type) -> None:
    """`TraceMeanField_ELBO()(model, guide)` has the loss and the parameters of this package's bound."""
    batch, pair = make_batch(), fresh(form)
    module = elbo()(*pair)
    assert {*module.parameters()} == {*parameters(*pair)}
    optim = torch.optim.Adam(module.parameters(), lr=0.02)
    losses = []
    for step in range(30):
        pyro.set_rng_seed(step)
        loss = module(batch)
        pyro.set_rng_seed(step)
        with torch.no_grad():
            assert_close(loss, MeanFieldELBO().terms(*pair, batch).loss, rtol=1e-5, atol=0)
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    assert sum(losses[-8:]) < sum(losses[:8])


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_an_elbo_of_pyros_in_our_svi_takes_the_same_steps(form: str) -> None:
    parts = [make_batch(choose=rows) for rows in ([0], [1, 2, 3])]
    paths, ends = [], []
    for elbo in (MeanFieldELBO(), TraceMeanField_ELBO()):
        pair = fresh(form)
        svi = SVI(*pair, torch.optim.SGD(parameters(*pair), lr=0.1), elbo, clip_norm=0.5)
        pyro.set_rng_seed(1)
        paths.append([svi.step(*parts) for _ in range(10)])
        ends.append(named(pair))
    assert paths[0] == pytest.approx(paths[1], rel=1e-5)
    for name, value in ends[0].items():
        assert_close(value, ends[1][name], rtol=0, atol=1e-5, msg=name)
    assert svi.last.keys() == {"loss", "nll", "grad_norm"}
    assert math.isnan(svi.last["nll"])
    assert svi.last["loss"] * N == pytest.approx(paths[1][-1])


def test_the_one_draw_elbo_of_pyro_in_our_svi_estimates_the_same_bound() -> None:
    batch, pair = make_batch(), fresh("gate")
    optim = torch.optim.Adam(parameters(*pair), lr=0.02)
    drawn = []
    for elbo in (MeanFieldELBO(), Trace_ELBO()):
        svi = SVI(*pair, optim, elbo)
        pyro.set_rng_seed(2)
        drawn.append(torch.tensor([svi.evaluate_loss(batch) for _ in range(120)]))
    errors = [values.std() / len(values) ** 0.5 for values in drawn]
    assert (drawn[0].mean() - drawn[1].mean()).abs() < 4 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    assert drawn[1].std() > 2 * drawn[0].std()  # its KL is estimated from the draw
    before = drawn[1].mean()
    for _ in range(40):
        svi.step(batch)
    assert sum(svi.evaluate_loss(batch) for _ in range(30)) / 30 < before


@pytest.mark.parametrize("elbo", [RenyiELBO, TraceGraph_ELBO])
def test_other_elbos_of_pyros_work_in_its_svi_only(elbo: type) -> None:
    pair = fresh("gate")
    assert math.isfinite(STOCK(*pair, pyro.optim.Adam({"lr": 0.01}), elbo()).step(make_batch()))
    with pytest.raises(ConfigError, match=f"The loss is a {elbo.__name__}"):
        SVI(*pair, torch.optim.Adam(parameters(*pair)), elbo())
    with pytest.raises(AttributeError, match="differentiable_loss"):
        elbo()(*pair)(make_batch())


@pytest.mark.slow
def test_other_draws_same_posterior() -> None:
    # From two ends, with other noise: the averaged iterates of q(phi) meet.
    batch, tails = make_batch(), []
    for start, seed in ((0.0, 1), (0.4, 2)):
        pyro.clear_param_store()
        model, guide = bara_pair(r=2, seed=3, scale=0.2, latent="phi", target_modules=["lm_head"])
        with torch.no_grad():
            guide.sites["phi"].weight.add_(start)
        if seed == 1:
            svi = SVI(model, guide, torch.optim.Adam(guide.parameters(), lr=0.05))
        else:
            # B stays as it is.
            rates = pyro.optim.Adam(lambda name: {"lr": 0.05 if name.startswith("guide") else 0.0})
            svi = STOCK(model, guide, rates, TraceMeanField_ELBO())
        pyro.set_rng_seed(seed)
        path = []
        for _ in range(500):
            svi.step(batch)
            path.append(guide.sites["phi"].weight.detach().clone())
        tails.append(torch.stack(path[100:]).reshape(8, 50, -1))  # blocks: neighbours are correlated
    means = [tail.mean((0, 1)) for tail in tails]
    errors = [tail.mean(1).std(0) / 8**0.5 for tail in tails]
    gap = (means[0] - means[1]).abs() / (errors[0] ** 2 + errors[1] ** 2).sqrt()
    assert gap.max() < 5, (means, errors)  # 7 degrees of freedom each, 4 numbers
    assert (means[0] - 0.0).abs().max() > 0.1  # and it is not where the first began
    assert max(float(error.max()) for error in errors) < 0.1


def test_the_store_holds_what_is_trained_and_nothing_of_the_backbone() -> None:
    pair = fresh("gate")
    svi = STOCK(*pair, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    svi.step(make_batch())
    store = pyro.get_param_store()
    assert len(store) == len(parameters(*pair))
    held = {store._params[name].data_ptr() for name in store.keys()}  # noqa: SIM118 - not a dict
    assert held == {p.data_ptr() for p in parameters(*pair)}
    assert not held & {p.data_ptr() for p in backbone().lm.parameters()}


@pytest.mark.parametrize("shared", ["model", "nothing"])
def test_a_second_pair_is_not_fitted_in_the_place_of_the_first(shared: str) -> None:
    """Pyro would train the first pair's parameters, which the store holds by the same names."""
    model, guide = fresh("gate")
    batch = make_batch()
    STOCK(model, guide, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO()).step(batch)
    other = model if shared == "model" else bara_pair(num_data=N, form="gate")[0]
    pair = other, WeibullGuide(other)
    start = named(pair)
    svi = STOCK(*pair, pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    with pytest.raises(ConfigError, match="clear_param_store"):
        svi.step(batch)
    predictive = pyro.infer.Predictive(*pair[:1], guide=pair[1], num_samples=1)
    assert predictive(batch)["y"].shape[1] == len(batch)  # it reads the pair's own parameters
    SVI(*pair, torch.optim.SGD(parameters(*pair), lr=0.0)).step(batch)
    pyro.clear_param_store()
    svi.step(batch)
    moved = {name for name, value in named(pair).items() if not torch.equal(value, start[name])}
    assert any(name.startswith("guide") for name in moved)


@pytest.mark.parametrize(
    ("made", "elbo"),
    [
        *((lambda: fresh("gate"), elbo) for elbo in (TraceMeanField_ELBO, Trace_ELBO, MeanFieldELBO)),
        *((fvae_pair, TraceMeanField_ELBO), (clora_pair, Trace_ELBO), (blob_pair, MeanFieldELBO)),
    ],
)
def test_what_is_frozen_stays_as_it_is(made: Callable, elbo: type) -> None:
    """Pyro's store would switch `requires_grad` on again, and train what a person has fixed."""
    for part in range(2):
        pyro.clear_param_store()
        pair = made()
        pair[part].requires_grad_(False)
        start = named(pair)
        svi = STOCK(*pair, pyro.optim.Adam({"lr": 0.05}), elbo())
        for _ in range(2):
            svi.step(make_batch())
        moved = {name for name, value in named(pair).items() if not torch.equal(value, start[name])}
        assert not any(p.requires_grad for p in pair[part].parameters())
        assert all(name.startswith(("guide", "model")[part]) for name in moved)  # the other part alone
        assert moved or not list(pair[1 - part].parameters())
        assert len(pyro.get_param_store()) == len(parameters(*pair))
