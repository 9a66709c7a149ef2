"""Every prior with every guide family, every option of a guide; unknown names."""

import math

import pytest
import torch
from core_cases import bara_pair, make_batch, trainer
from pyro.distributions import Normal, validation_enabled

from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.priors import PRIORS, make_prior
from bara_pyro.errors import ConfigError, MissingKLError, TrainingError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import FAMILIES, register_guide

GUIDES = {name: FAMILIES[name] for name in FAMILIES if name != "weibull-coupled"}  # needs both gates
ONE = torch.ones(1)
# Pairs whose divergence has no closed form here.
SAMPLED = {
    *((guide, "halfcauchy") for guide in ("weibull", "gamma", "lognormal")),
    *((guide, "inversegamma") for guide in ("weibull", "gamma")),
}


# Every prior with every guide, on one kind of latent; every prior and every guide on both.
PAIRS = [
    (prior, guide, ("phi", "theta")[(row + column) % 2])
    for row, prior in enumerate(PRIORS)
    for column, guide in enumerate(GUIDES)
]


@pytest.mark.parametrize(("prior", "guide", "site"), PAIRS)
def test_every_pair_trains(prior: str, guide: str, site: str) -> None:
    pair = bara_pair(guide=GUIDES[guide], form="gate", **{f"{site}_prior": {"name": prior}})
    if (guide, prior) in SAMPLED:
        name = "'phi'" if site == "phi" else "'theta/model.layers.0.self_attn.q_proj'"
        # The distributions themselves are named, not what `to_event` makes of them.
        q, p = (type(one).__name__ for one in (pair[1].family(ONE, ONE), make_prior(prior)))
        with pytest.raises(MissingKLError, match=rf"{name}.*KL\({q} \|\| {p}\)"):
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
        ({"shape": "lambda"}, "shape 'lambda': choose one of k, kappa"),
        ({"shape_width": "matrix"}, "shape_width 'matrix': choose one of scalar, vector"),
        ({"activation": "gelu"}, "activation 'gelu' .*: choose one of relu, softplus, topk"),
        ({"activation": "topk", "top_k": 4}, "top_k=4 must lie between 1 and the rank 3"),
        ({"activation": "topk", "top_k": 0}, "top_k=0 must lie between 1 and the rank 3"),
        ({"init_kappa": 0.0}, r"init_kappa=0.0 and max_kappa=1.0 must lie in \[0.01, 5.0\]"),
        ({"max_kappa": 5.5}, "max_kappa=5.5 must lie in"),
        ({"init_kappa": 0.6, "max_kappa": 0.5}, r"\], and init_kappa must not exceed max_kappa\.$"),
    ],
)
def test_unknown_settings_of_the_guide(options: dict, known: str) -> None:
    with pytest.raises(ConfigError, match=known):
        bara_pair(fit=options)


@pytest.mark.parametrize("guide", FAMILIES)
def test_weights_that_diverged_are_an_error_of_training(guide: str) -> None:
    """One that keeps the last good state, and not one of the distribution that got them."""
    pair = bara_pair(guide=FAMILIES[guide])
    for weight in pair[1].parameters():
        weight.data.fill_(math.nan)
    with validation_enabled(), pytest.raises(TrainingError, match="KL of phi"):
        trainer(pair).step(make_batch())


def test_a_family_beyond_the_support_of_the_prior_is_named_as_a_cause() -> None:
    normal = type("Own", (AmortizedGuide,), {"family": lambda self, mean, kappa: Normal(mean, kappa)})
    svi = trainer(bara_pair(guide=normal))
    words = r"\(KL of phi and \d more\): .* draws only values that the prior allows\.$"
    with pytest.raises(TrainingError, match=words) as caught:
        svi.step(make_batch())
    assert len(str(caught.value)) <= 200


def test_a_family_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FAMILIES, "_items", dict(FAMILIES._items))
    own = type("Own", (GUIDES["weibull"],), {})
    assert register_guide("own")(own) is own
    assert FAMILIES["own"] is own


def test_num_data_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="num_data=0"):
        bara_pair(num_data=0)
