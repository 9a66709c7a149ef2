"""Every prior with every guide family, every option of a guide; unknown names."""

import math

import pytest
import torch
from core_cases import backbone, make_batch

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.priors import PRIORS
from bara_pyro.core.svi import SVI, adamw
from bara_pyro.errors import ConfigError, MissingKLError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.lognormal import LogNormalGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

GUIDES = {"weibull": WeibullGuide, "gamma": GammaGuide, "lognormal": LogNormalGuide, "delta": DeltaGuide}
NAMES = ["gamma", "exponential", "halfnormal", "halfcauchy", "inversegamma", "lognormal"]
# Pairs whose divergence has no closed form here.
SAMPLED = {
    *((guide, "halfcauchy") for guide in ("weibull", "gamma", "lognormal")),
    *((guide, "inversegamma") for guide in ("weibull", "gamma")),
}


def setting(prior: str, guide: str, site: str) -> tuple[BaRA, AmortizedGuide]:
    model = BaRA(backbone(), 4, r=3, form="gate", **{f"{site}_prior": {"name": prior}})
    return model, GUIDES[guide](model)


def test_the_list_of_priors_is_complete() -> None:
    assert set(NAMES) <= set(PRIORS)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", NAMES)
@pytest.mark.parametrize("site", ["phi", "theta"])
def test_every_pair_trains(prior: str, guide: str, site: str) -> None:
    pair = setting(prior, guide, site)
    optim = adamw(*pair, 1e-2)
    if (guide, prior) in SAMPLED:
        name = "'phi'" if site == "phi" else "'theta/model.layers.0.self_attn.q_proj'"
        with pytest.raises(MissingKLError, match=name):
            SVI(*pair, optim).step(make_batch())
    svi = SVI(*pair, optim, MeanFieldELBO(sampled_kl=(guide, prior) in SAMPLED))
    before = [p.detach().clone() for p in svi.parameters]
    losses = [svi.step(make_batch()) for _ in range(3)]
    assert all(map(math.isfinite, losses))
    assert all(p.isfinite().all() for p in svi.parameters)
    # All move, in the second step at the latest (A waits for B to leave 0).
    assert not any(torch.equal(p, q) for p, q in zip(svi.parameters, before, strict=True))


@pytest.mark.parametrize("form", ["additive", "gate"])
@pytest.mark.parametrize("latent", ["phi*theta", "phi", "theta"])
@pytest.mark.parametrize("guide", GUIDES)
def test_every_decomposition_trains(form: str, latent: str, guide: str) -> None:
    model = BaRA(backbone("gpt2"), 4, r=3, form=form, latent=latent)
    fitted = GUIDES[guide](model)
    svi = SVI(model, fitted, adamw(model, fitted, 1e-2))
    assert all(math.isfinite(svi.step(make_batch())) for _ in range(2))
    parts = {"loss", "nll", "grad_norm", *(f"kl_{name}" for name in latent.split("*"))}
    assert set(svi.last) == parts


@pytest.mark.parametrize(
    "options",
    [
        {"shape": "k"},
        {"shape_width": "scalar"},
        {"activation": "relu"},
        {"activation": "topk", "top_k": 2},
        {"init_kappa": 0.05},
    ],
)
@pytest.mark.parametrize("guide", ["weibull", "gamma", "lognormal"])
def test_every_option_of_a_guide_trains(options: dict, guide: str) -> None:
    model = BaRA(backbone(), 4, r=3)
    fitted = GUIDES[guide](model, **options)
    svi = SVI(model, fitted, adamw(model, fitted, 1e-2))
    assert all(math.isfinite(svi.step(make_batch())) for _ in range(3))


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"form": "add"}, "additive, gate"),
        ({"latent": "psi"}, r"phi, phi\*theta, theta"),
        ({"phi_prior": {"name": "gama"}}, "exponential, gamma, halfcauchy"),
        ({"theta_prior": {"name": "gamma", "shape": 1.0}}, "concentration, rate"),
        ({"beta_theta": -1.0}, "must not be negative"),
        ({"r": 0}, "at least 1"),
    ],
)
def test_unknown_settings_of_the_program(options: dict, known: str) -> None:
    with pytest.raises(ConfigError, match=known):
        BaRA(backbone(), 4, **{"r": 3, **options})


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"shape": "lambda"}, "k, kappa"),
        ({"shape_width": "matrix"}, "scalar, vector"),
        ({"activation": "gelu"}, "relu, softplus, topk"),
        ({"activation": "topk", "top_k": 4}, "between 1 and the rank 3"),
        ({"init_kappa": 0.0}, "must lie in"),
    ],
)
def test_unknown_settings_of_the_guide(options: dict, known: str) -> None:
    with pytest.raises(ConfigError, match=known):
        WeibullGuide(BaRA(backbone(), 4, r=3), **options)


def test_num_data_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="num_data=0"):
        BaRA(backbone(), 0)
