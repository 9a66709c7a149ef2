import math

import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from bara_pyro.core.distributions import MeanWeibull, has_analytic_kl
from bara_pyro.core.priors import PRIORS, make_prior, register_prior
from bara_pyro.errors import ConfigError

TRUTHS = {
    "gamma": ({"concentration": 0.5, "rate": 2.0}, stats.gamma(0.5, scale=0.5)),
    "exponential": ({"rate": 2.0}, stats.expon(scale=0.5)),
    "halfnormal": ({"scale": 2.0}, stats.halfnorm(scale=2.0)),
    "halfcauchy": ({"scale": 2.0}, stats.halfcauchy(scale=2.0)),
    "inversegamma": ({"concentration": 3.0, "rate": 2.0}, stats.invgamma(3.0, scale=2.0)),
    "lognormal": ({"loc": -1.0, "scale": 0.5}, stats.lognorm(0.5, scale=math.exp(-1.0))),
}
DEFAULTS = {
    "gamma": stats.gamma(1.0),
    "exponential": stats.expon(),
    "halfnormal": stats.halfnorm(),
    "halfcauchy": stats.halfcauchy(),
    "inversegamma": stats.invgamma(2.0),
    "lognormal": stats.lognorm(1.0),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_densities(name):
    hyper, truth = TRUTHS[name]
    t = torch.tensor([0.01, 0.3, 1.0, 4.0])
    expected = torch.tensor(truth.logpdf(t.numpy()), dtype=torch.float32)
    torch.testing.assert_close(make_prior(name, **hyper).log_prob(t), expected, rtol=1e-4, atol=1e-5)
    expected = torch.tensor(DEFAULTS[name].logpdf(t.numpy()), dtype=torch.float32)
    torch.testing.assert_close(make_prior(name).log_prob(t), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TRUTHS)
def test_shapes(name):
    prior = make_prior(name)
    assert (prior.batch_shape, prior.event_shape) == ((), ())
    assert prior.expand([4, 3]).to_event(1).sample((2,)).shape == (2, 4, 3)


def test_every_prior_is_tested():
    assert set(PRIORS) == set(TRUTHS) == set(DEFAULTS)


class Cut(dist.Gamma):
    """A Gamma distribution that ends at 2."""

    def log_prob(self, value):
        return super().log_prob(value).masked_fill(value > 2, -math.inf)


def test_another_density_has_not_its_parents_divergence():
    one = torch.ones(3)
    assert has_analytic_kl(MeanWeibull(one, 0.5 * one), dist.Gamma(one, one))
    assert not has_analytic_kl(MeanWeibull(one, 0.5 * one), Cut(one, one))
    assert not has_analytic_kl(Cut(one, one).to_event(1), dist.Gamma(one, one).to_event(1))
    renamed = type("Renamed", (dist.Gamma,), {})  # the same distribution under another name
    assert has_analytic_kl(MeanWeibull(one, 0.5 * one), renamed(one, one))


def test_a_prior_of_negative_gates_or_of_wrong_parameters_is_refused(monkeypatch):
    monkeypatch.setattr(PRIORS, "_items", dict(PRIORS))
    register_prior("normal")(lambda scale=1.0: dist.Normal(torch.zeros_like(scale), scale))
    with pytest.raises(ConfigError, match="'normal' has a density at -1, but gates are positive"):
        make_prior("normal")
    register_prior("called")(lambda shape=1.0, rate=1.0: dist.Gamma(shape, rate))
    with pytest.raises(ConfigError, match=r"'called''s Gamma needs a positive concentration, not -1\.0"):
        make_prior("called", shape=-1.0)
    scale = torch.distributions.transforms.AffineTransform(0.0, 2.0)
    register_prior("scaled")(lambda rate=1.0: dist.TransformedDistribution(dist.Exponential(rate), [scale]))
    assert make_prior("scaled", rate=0.5).log_prob(torch.tensor(1.0)).isfinite()


def test_priors_of_ones_own_that_are_none_of_gates(monkeypatch):
    monkeypatch.setattr(PRIORS, "_items", dict(PRIORS))
    register_prior("nodefault")(lambda scale: dist.HalfNormal(scale))  # noqa: PLW0108  the class has defaults
    with pytest.raises(
        ConfigError, match=r"'nodefault' has no default for 'scale': add one, such as scale=1\.0"
    ):
        make_prior("nodefault")
    assert make_prior("nodefault", scale=2.0).scale == 2.0
    shift = torch.distributions.transforms.AffineTransform(0.5, 1.0)
    register_prior("shifted")(lambda rate=1.0: dist.TransformedDistribution(dist.Exponential(rate), [shift]))
    with pytest.raises(ConfigError, match=r"'shifted' has no density at 0\.001"):
        make_prior("shifted")
    register_prior("unit")(lambda high=1.0: dist.Uniform(0.0, high))
    with pytest.raises(ConfigError, match="'unit' has no density at 1000"):
        make_prior("unit")


def test_unknown_prior():
    said = r"^Unknown prior 'gama' \(gamma\?\): choose one of exponential, gamma, .*\.$"
    with pytest.raises(ConfigError, match=said):
        make_prior("gama")


def test_unknown_hyper_parameter():
    with pytest.raises(ConfigError, match=r"'gamma'.*'rat' \(rate\?\): choose one of concentration, rate\.$"):
        make_prior("gamma", rat=1.0)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("gamma", "rate", 0.0), ("lognormal", "scale", -1.0), ("halfnormal", "scale", 1e-60)],  # 0 in float32
)
def test_not_positive(name, key, value):
    with pytest.raises(ConfigError, match=rf"^Prior '{name}' needs a positive {key}, not {value}\.$"):
        make_prior(name, **{key: value})


@pytest.mark.parametrize("value", ["1", None, True, math.nan, math.inf])
def test_not_a_number(value):
    with pytest.raises(ConfigError, match="finite number for rate"):
        make_prior("gamma", rate=value)


def test_location_may_be_negative():
    assert make_prior("lognormal", loc=-3).loc == -3.0


def test_registering_one_takes_three_lines(monkeypatch):
    monkeypatch.setattr(PRIORS, "_items", dict(PRIORS))

    @register_prior("weibull")
    def weibull(scale=1.0, concentration=1.0):
        return dist.Weibull(scale, concentration)

    assert make_prior("weibull", scale=2).mean == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="positive concentration"):
        make_prior("weibull", concentration=-1.0)


def test_parameters_live_on_the_device_asked_for():
    assert make_prior("gamma", device="meta").rate.device.type == "meta"


def test_registering_one_without_a_name_is_refused() -> None:
    before = dict(PRIORS)
    with pytest.raises(ConfigError, match="needs a name"):

        @register_prior
        def nameless(rate=1.0): ...

    assert before == PRIORS
