"""Priors given as distributions or functions: the same as by name, with hyper-parameters that learn."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from core_cases import bara_pair, make_batch
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.optimizers import parameters
from bara_pyro.errors import ConfigError


def loss(**options):
    """The loss of a program and its guide with the noise of seed 0."""
    pair = bara_pair(seed=0, **options)
    torch.manual_seed(0)
    return MeanFieldELBO().terms(*pair, make_batch())


def test_a_distribution_is_the_prior_of_its_name() -> None:
    named = {"name": "gamma", "concentration": 0.5, "rate": 2.0}
    expected = loss(phi_prior=named, theta_prior="lognormal").loss
    given = dist.Gamma(torch.tensor(0.5), 2.0)
    assert_close(loss(phi_prior=given, theta_prior=dist.LogNormal(0.0, 1.0)).loss, expected)
    assert_close(loss(phi_prior=lambda: given, theta_prior="lognormal").loss, expected)


def test_every_module_may_have_a_prior_of_its_own() -> None:
    modules = len(bara_pair()[0].targets)
    whole = [loss(phi_prior=dist.Gamma(1.0, rate)).kl["phi"] for rate in (1.0, 2.0)]
    rates = torch.ones(modules, 1)
    rates[0] = 2.0
    mixed = loss(phi_prior=dist.Gamma(1.0, rates)).kl["phi"]
    assert_close(modules * (mixed - whole[0]), whole[1] - whole[0])  # every module starts with one posterior


def test_hyper_parameters_have_the_gradient_of_the_closed_form() -> None:
    """d KL / d a = psi(a) - log(b) - E[log Phi], and E[log Phi] = log(scale) - gamma / k of a Weibull."""
    a, b = (torch.tensor(value, requires_grad=True) for value in (0.7, 1.3))
    model, guide = bara_pair(latent="phi", phi_prior=lambda: dist.Gamma(a, b))
    MeanFieldELBO().terms(model, guide, make_batch()).loss.backward()
    q = guide.get_posterior("phi", model.phi_prior)
    with torch.no_grad():
        mean, kappa = q.base_dist.mean.double(), q.base_dist.kappa.double()
        log_mean = mean.log() - torch.lgamma(1 + kappa) - 0.5772156649015329 * kappa
        expected_a = (torch.digamma(a) - b.log() - log_mean).sum()
        expected_b = (mean - a / b).sum()
    assert_close(a.grad.double(), expected_a, rtol=1e-5, atol=1e-5)
    assert_close(b.grad.double(), expected_b, rtol=1e-5, atol=1e-5)


def test_a_hyper_parameter_in_the_optimiser_is_trained_by_svi() -> None:
    """By gradient descent with the closed form; the guide keeps its place, as its own rate is 0."""
    a, b = torch.tensor(0.7, requires_grad=True), 1.3
    model, guide = bara_pair(latent="phi", phi_prior=lambda: dist.Gamma(a, b))
    q = guide.get_posterior("phi", model.phi_prior)
    mean, kappa = q.base_dist.mean.detach().double(), q.base_dist.kappa.detach().double()
    log_mean = mean.log() - torch.lgamma(1 + kappa) - 0.5772156649015329 * kappa
    rates = [{"params": [a], "lr": 0.1}, {"params": parameters(model, guide), "lr": 0.0}]
    svi = bp.SVI(model, guide, torch.optim.SGD(rates))
    expected = a.detach().double()
    for _ in range(3):
        svi.step(make_batch())
        gradient = (torch.digamma(expected) - math.log(b) - log_mean).sum() / model.num_data
        expected = expected - 0.1 * gradient
        assert_close(a.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_a_hyper_prior_may_be_sampled_around_the_program() -> None:
    drawn = {}
    model, _ = bara_pair(latent="phi", phi_prior=lambda: dist.Gamma(drawn["a"], 1.0))

    def program(batch):
        drawn["a"] = pyro.sample("a", dist.Gamma(2.0, 1.0))
        return model(batch)

    trace = poutine.trace(poutine.condition(program, {"a": torch.tensor(3.0)})).get_trace(make_batch())
    trace.compute_log_prob()
    phi = trace.nodes["phi"]
    assert_close(phi["log_prob_sum"], torch.distributions.Gamma(3.0, 1.0).log_prob(phi["value"]).sum())


@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, MeanFieldELBO])
def test_a_hyper_prior_is_fitted_beside_the_guide(elbo: type) -> None:
    """The loss is that of the plain program under Gamma(a, 1), less log p(a), and so is its gradient."""
    pyro.clear_param_store()
    a, batch = torch.tensor(0.7, requires_grad=True), make_batch()
    plain = bara_pair(phi_prior=lambda: dist.Gamma(a, 1.0))
    torch.manual_seed(0)
    expected = TraceMeanField_ELBO().differentiable_loss(*plain, batch) - dist.Gamma(2.0, 1.0).log_prob(a)
    [gradient] = torch.autograd.grad(expected, [a])

    pyro.clear_param_store()  # which holds the plain program's parameters
    drawn: dict[str, torch.Tensor] = {}
    model, guide = bara_pair(phi_prior=lambda: dist.Gamma(drawn["a"], 1.0))

    def program(batch):
        drawn["a"] = pyro.sample("a", dist.Gamma(2.0, 1.0))
        return model(batch)

    def posterior(batch):
        drawn["a"] = pyro.sample("a", dist.Delta(pyro.param("a_loc", torch.tensor(0.7))))
        return guide(batch)

    torch.manual_seed(0)
    loss = elbo().differentiable_loss(program, posterior, batch)
    assert_close(loss, expected, rtol=1e-5, atol=0)
    [found] = torch.autograd.grad(loss, [pyro.param("a_loc")])
    assert_close(found, gradient, rtol=1e-4, atol=0)
    assert SVI(program, posterior, pyro.optim.Adam({"lr": 0.1}), elbo()).step(batch) > 0
    assert pyro.param("a_loc").item() != pytest.approx(0.7)


@pytest.mark.parametrize("gate", ["phi", "theta"])
def test_each_draw_has_its_own_hyper_parameter(gate: str) -> None:
    """Also with as many draws as rows, where a value per draw would broadcast to the rows."""
    a = torch.tensor([0.5, 1.0, 2.0, 4.0])
    drawn = a.reshape(4, 1, 1)  # as a sample statement around the program draws it, left of rows and tokens
    batch, given = make_batch(), {f"{gate}_prior": lambda: dist.Gamma(drawn.unsqueeze(-1), 1.0)}
    assert len(batch) == len(a)
    with pyro.plate("draws", 4, dim=-3):
        nodes = poutine.trace(bara_pair(**given)[0]).get_trace(batch).nodes
    sites = [node for name, node in nodes.items() if name.startswith(gate)]
    assert sites
    for node in sites:
        each = [
            torch.distributions.Gamma(one, 1.0).log_prob(v) for one, v in zip(a, node["value"], strict=True)
        ]
        assert_close(node["fn"].log_prob(node["value"]), torch.stack(each).sum(-1))


@pytest.mark.parametrize("gate", ["phi", "theta"])
@pytest.mark.parametrize("shape", [(4, 1, 1), (7,), (7, 1), (2, 1, 1, 1)])
def test_a_prior_that_does_not_fit_draws_modules_and_r_is_refused(gate: str, shape: tuple[int, ...]) -> None:
    model, _ = bara_pair(**{f"{gate}_prior": lambda: dist.Gamma(torch.ones(shape), 1.0)})
    words = f"^The batch shape {re.escape(str(shape))} of the prior .*unsqueeze"
    with pyro.plate("draws", 4, dim=-3), pytest.raises(ConfigError, match=words):
        model(make_batch())


def test_a_hyper_prior_inside_the_program_is_refused() -> None:
    with pytest.raises(ConfigError, match="in a function that calls the model"):
        loss(phi_prior=lambda: dist.Gamma(pyro.sample("a", dist.Gamma(2.0, 1.0)), 1.0))


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (dist.Normal(0.0, 1.0), "density at -1"),
        (dist.Beta(1.0, 1.0), "no density at 1000"),
        (3.0, "not 3.0"),
        (dist.HalfCauchy, "HalfCauchy.*without arguments .*'scale'"),
        (lambda batch: dist.Gamma(1.0, 1.0), "without arguments .*'batch'"),
    ],
)
def test_what_is_no_prior_of_gates_is_refused(prior: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bara_pair(theta_prior=prior)


@pytest.mark.parametrize("phi_prior", [lambda: dist.Gamma(torch.ones(3), 1.0).to_event(1), None])
def test_a_prior_is_that_of_one_gate(phi_prior: object) -> None:
    """One with an event of r gates would be expanded to r by r."""
    with pytest.raises(ConfigError, match=r"^The prior .* event shape \(3,\)"):
        loss(phi_prior=phi_prior or dist.Gamma(torch.ones(3), 1.0).to_event(1))
    loss(phi_prior=dist.Gamma(torch.ones(3), 1.0))


@pytest.mark.parametrize(
    ("returned", "words"), [(3.0, r"returned 3\.0"), (dist.Normal(0.0, 1.0), "density at -1")]
)
def test_a_function_that_returns_no_prior_of_gates_is_refused(returned: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loss(phi_prior=lambda: returned)
