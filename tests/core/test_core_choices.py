"""Every prior with every guide family, every option of a guide; unknown names."""

import math

import pytest
import torch
from core_cases import bara_pair, make_batch, trainer

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.priors import PRIORS
from bara_pyro.errors import ConfigError, MissingKLError
from bara_pyro.guides.families import FAMILIES

GUIDES = {name: FAMILIES[name] for name in FAMILIES if name != "weibull-coupled"}  # needs both gates
LAWS = {"weibull": "MeanWeibull", "gamma": "Gamma", "lognormal": "LogNormal"}
LAWS |= {"halfcauchy": "HalfCauchy", "inversegamma": "InverseGamma"}
# Pairs whose divergence has no closed form here.
SAMPLED = {
    *((guide, "halfcauchy") for guide in ("weibull", "gamma", "lognormal")),
    *((guide, "inversegamma") for guide in ("weibull", "gamma")),
}


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("site", ["phi", "theta"])
def test_every_pair_trains(prior: str, guide: str, site: str) -> None:
    pair = bara_pair(guide=GUIDES[guide], form="gate", **{f"{site}_prior": {"name": prior}})
    if (guide, prior) in SAMPLED:
        name = "'phi'" if site == "phi" else "'theta/model.layers.0.self_attn.q_proj'"
        # The distributions themselves are named, not what `to_event` makes of them.
        distributions = rf"KL\({LAWS[guide]} \|\| {LAWS[prior]}\)"
        with pytest.raises(MissingKLError, match=rf"{name}.*{distributions}"):
            trainer(pair).step(make_batch())
    svi = trainer(pair, loss=MeanFieldELBO(sampled_kl=(guide, prior) in SAMPLED))
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
    svi = trainer(bara_pair("gpt2", GUIDES[guide], form=form, latent=latent))
    assert all(math.isfinite(svi.step(make_batch())) for _ in range(2))
    parts = {"loss", "nll", "grad_norm", *(f"kl_{name}" for name in latent.split("*"))}
    assert set(svi.last) == parts


OPTIONS = [
    *({"shape": "k"}, {"shape_width": "scalar"}, {"activation": "relu"}, {"activation": "topk", "top_k": 2}),
    {"init_kappa": 0.05},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("guide", ["weibull", "gamma", "lognormal"])
def test_every_option_of_a_guide_trains(options: dict, guide: str) -> None:
    svi = trainer(bara_pair(guide=GUIDES[guide], fit=options))
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
        bara_pair(**options)


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
        bara_pair(fit=options)


def test_num_data_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="num_data=0"):
        bara_pair(num_data=0)
