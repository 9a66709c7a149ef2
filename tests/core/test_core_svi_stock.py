"""Pyro's own SVI on the same model and guide: the same training, through the parameter store."""

from collections.abc import Callable

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, make_batch, randomise
from pyro.infer import SVI as STOCK
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.testing import assert_close

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.core.svi import SVI
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
    batch, steps, lr = make_batch(), 40, 0.02
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


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO, MeanFieldELBO])
@pytest.mark.parametrize("made", [lambda: fresh("gate"), fvae_pair, clora_pair, blob_pair])
def test_what_is_frozen_stays_as_it_is(made: Callable, elbo: type) -> None:
    """Pyro's store would switch `requires_grad` on again, and train what a person has fixed."""
    for part in range(2):
        pyro.clear_param_store()
        pair = made()
        pair[part].requires_grad_(False)
        start = named(pair)
        svi = STOCK(*pair, pyro.optim.Adam({"lr": 0.05}), elbo())
        for _ in range(3):
            svi.step(make_batch())
        moved = {name for name, value in named(pair).items() if not torch.equal(value, start[name])}
        assert not any(p.requires_grad for p in pair[part].parameters())
        assert all(name.startswith(("guide", "model")[part]) for name in moved)  # the other part alone
        assert moved or not list(pair[1 - part].parameters())
        assert len(pyro.get_param_store()) == len(parameters(*pair))
