"""Divergences evaluated together, against a loop over the sites."""

from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints, kl_divergence
from torch.testing import assert_close

from bara_pyro.core.distributions import MeanWeibull, stacked
from bara_pyro.core.distributions.stacked import LatentPair, kind, kl_sums

R = 3
FAMILIES = {
    "weibull": lambda a, b: MeanWeibull(a, b, validate_args=False),
    "gamma": lambda a, b: dist.Gamma(a, b, validate_args=False),
    "lognormal": lambda a, b: dist.LogNormal(a.log(), b, validate_args=False),
}
SHAPES = [(2, 5), (2, 5), (2, 1), (4,), ()]
GAMMA = dist.Gamma(torch.tensor(0.7), torch.tensor(1.3))


def positive(*shape: int) -> Tensor:
    return (0.2 + torch.rand(*shape)).requires_grad_()


def pairs(family: str, prior: dist.TorchDistribution = GAMMA) -> tuple[list[LatentPair], list[Tensor]]:
    """A posterior a shape, some of them masked; and all parameters."""
    torch.manual_seed(5)
    out, parameters = [], []
    for shape in SHAPES:
        a, b = positive(*shape, R), positive(*shape, R)
        mask = torch.rand(shape) < 0.6 if shape and shape[0] == 2 else None
        p = prior.expand([*shape, R]).to_event(1)
        out.append(LatentPair(FAMILIES[family](a, b).to_event(1), p, mask))
        parameters += [a, b]
    return out, parameters


def sums(sites: list[LatentPair]) -> list[Tensor]:
    return [own for vector in kl_sums(sites) for own in vector.unbind()]


def one_by_one(sites: list[LatentPair]) -> list[Tensor]:
    found = []
    for q, p, mask in sites:
        kl = kl_divergence(q, p)
        found.append((kl if mask is None else kl * mask).sum())
    return found


@pytest.mark.parametrize("family", list(FAMILIES))
def test_sums_and_gradients_are_those_of_a_loop(family: str) -> None:
    sites, parameters = pairs(family)
    assert len({kind(site) for site in sites}) == 1
    found, truth = sums(sites), one_by_one(sites)
    for ours, theirs in zip(found, truth, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    weights = torch.arange(1.0, 1 + len(sites))
    ours, theirs = (
        torch.autograd.grad((torch.stack(own) * weights).sum(), parameters, retain_graph=True)
        for own in (found, truth)
    )
    assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert all(grad.abs().sum() > 0 for grad in ours)


def test_matrices_of_normals_with_means_of_their_own() -> None:
    def site() -> LatentPair:
        distribution = dist.Normal(torch.zeros(2, 4), positive(2, 4)).to_event(2)
        return LatentPair(
            distribution, dist.Normal(positive(2, 4), torch.full((2, 4), 0.3)).to_event(2), None
        )

    sites = [site(), site()]
    assert kind(sites[0]) == kind(sites[1]) is not None
    assert_close(sums(sites), one_by_one(sites))


def test_a_masked_infinity_does_not_count() -> None:
    (site, *_), _ = pairs("weibull")
    a, b = site.q.base_dist.mean.detach().clone(), site.q.base_dist.kappa
    hidden = site._replace(mask=torch.tensor([[True] * 5, [False] * 5]))
    finite = one_by_one([hidden])[0]
    a[1] = torch.inf
    found = sums([hidden._replace(q=MeanWeibull(a, b, validate_args=False).to_event(1))])[0]
    assert_close(found, finite)


def test_what_is_not_alike_is_not_taken_together() -> None:
    (site, *_), _ = pairs("weibull")
    other = dist.Gamma(torch.tensor(0.7), torch.tensor(1.3)).expand([2, 5, R]).to_event(1)
    kinds = [
        kind(site),
        kind(site._replace(p=other)),  # equal numbers, but nobody knows without a look at the device
        kind(site._replace(p=dist.Exponential(torch.tensor(1.0)).expand([2, 5, R]).to_event(1))),
        kind(pairs("gamma")[0][0]),
    ]
    assert None not in kinds
    assert len(set(kinds)) == 4
    wide = MeanWeibull(positive(2, 5, 4), positive(2, 5, 4)).to_event(1)
    assert kind(LatentPair(wide, GAMMA.expand([2, 5, 4]).to_event(1), None)) not in kinds


def test_distributions_that_are_not_entry_by_entry_are_taken_alone() -> None:
    eye = torch.eye(2)
    joint = dist.MultivariateNormal(torch.zeros(2), eye)
    assert kind(LatentPair(joint, joint, None)) is None
    mixed = dist.Normal(torch.zeros(2), torch.ones(2))
    assert (
        kind(LatentPair(mixed, mixed, None)) is None
    )  # no event: nothing says what belongs to a site's entry


def test_large_sums_are_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    sites, _ = pairs("weibull")
    assert kl_sums(sites)[0].dtype == torch.float32
    monkeypatch.setattr(stacked, "FLOAT64_SUM", 9)
    assert kl_sums(sites)[0].dtype == torch.float64
    assert_close(sums(sites)[1].float(), one_by_one(sites)[1])


class Shifted(dist.Exponential):
    """More than its parameters say: a shift that no constraint lists."""

    arg_constraints = {"rate": constraints.positive}  # noqa: RUF012

    def __init__(self, rate: Tensor, shift: float = 0.0, validate_args: bool | None = None) -> None:
        self.shift = shift
        super().__init__(rate, validate_args=validate_args)


class Doubled(dist.Gamma):
    """Its argument of the same name is another number."""

    def __init__(self, concentration: Tensor, rate: Tensor, validate_args: bool | None = None) -> None:
        super().__init__(concentration, 2 * rate, validate_args=validate_args)


@pytest.mark.parametrize(
    "distribution",
    [lambda: Shifted(torch.ones(2, 3), 3.0), lambda: Doubled(torch.ones(2, 3), torch.ones(2, 3))],
)
def test_distributions_of_ones_own_are_taken_as_they_are(
    distribution: Callable[[], dist.TorchDistribution],
) -> None:
    """Made again from their parameters they would be others, with another divergence."""
    prior = dist.Gamma(torch.tensor(1.0), torch.tensor(1.0)).expand([2, 3]).to_event(1)
    assert kind(LatentPair(distribution().to_event(1), prior, None)) is None
    assert kind(LatentPair(prior, distribution().to_event(1), None)) is None
    assert (
        kind(LatentPair(dist.Gamma(torch.ones(2, 3), torch.ones(2, 3)).to_event(1), prior, None)) is not None
    )
