"""Noise by address: the generator, the distribution of its numbers, its coordinates."""

import numpy as np
import pytest
import scipy.stats as st
import torch
from core_cases import make_batch
from pyro import distributions as dist
from scipy.spatial.transform import Rotation
from scipy.special import gamma
from torch import Tensor

from bara_pyro.core import noise
from bara_pyro.core.distributions import MeanWeibull
from bara_pyro.core.distributions.normal import KroneckerNormal
from bara_pyro.core.from_uniform import Uniform, from_uniform
from bara_pyro.core.noise import GOLDEN, CounterNoise, mix, uniform
from bara_pyro.core.posterior import addresses_of
from bara_pyro.errors import ConfigError

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """The output function of SplitMix64 in Python's own integers (Steele, Lea and Flood, 2014)."""
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def addresses(
    seed: int = 0, draws: int = 40, rows: int = 30, start: int = 0, repeats: int = 1, width: int = 64
) -> CounterNoise:
    numbers, ids = torch.arange(start, start + draws), tuple(map(str, range(rows)))
    return CounterNoise(seed, numbers, ids, torch.arange(width).expand(rows, -1), repeats)


def unit(shape: tuple[int, ...]) -> dist.TorchDistribution:
    return dist.Uniform(torch.zeros(()), torch.ones(())).expand(shape).to_event(1)


def test_the_generator_is_splitmix64() -> None:
    # The published first outputs of the stream that starts at 0, then states with all their bits.
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    states = torch.randint(-(2**63), 2**63 - 1, (200,), generator=torch.Generator().manual_seed(0))
    found = [value & MASK for value in mix(torch.cat([torch.arange(1, 4) * GOLDEN, states])).tolist()]
    assert found == known + [splitmix64(value & MASK) for value in states.tolist()]


def test_uniform_numbers_are_the_halves_of_a_stream() -> None:
    key, golden = 12345, 0x9E3779B97F4A7C15
    found = uniform(torch.tensor([key]), 5)[0].tolist()
    words = [splitmix64((key + i * golden) & MASK) for i in (1, 2, 3)]
    halves = [half for word in words for half in (word & 0xFFFFFFFF, word >> 32)]
    assert found == [(half >> 9) / 2**23 + 2**-24 for half in halves[:5]]


def test_the_ends_of_the_interval_are_never_reached() -> None:
    ends = torch.tensor([0.5, 2**23 - 0.5]) * 2.0**-23
    assert ends[0] > 0
    assert ends[1] < 1
    assert torch.erfinv(2 * ends - 1).isfinite().all()
    assert (-ends.log()).log().isfinite().all()


def test_uniformity_and_independence_across_every_coordinate() -> None:
    """A million numbers: distribution, bits, neighbours along draw, row, position, unit, site, seed."""
    numbers = addresses().draw_local("theta/a", unit((40, 30, 64, 13)))
    assert st.kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-3
    whole = (numbers.double() * 2**23).long()
    for bit in range(23):
        ones = int((whole >> bit & 1).sum())
        assert st.binomtest(ones, whole.numel()).pvalue > 1e-4
    centred = (numbers.double() - 0.5) * 12**0.5  # mean 0, variance 1
    others = {
        "site": addresses().draw_local("theta/b", unit((40, 30, 64, 13))),
        "seed": addresses(seed=1).draw_local("theta/a", unit((40, 30, 64, 13))),
    }
    pairs = {name: (centred, (other.double() - 0.5) * 12**0.5) for name, other in others.items()}
    for dim, name in enumerate(("draw", "row", "position", "unit")):
        for lag in (1, 2):
            size = centred.shape[dim] - lag
            pairs[f"{name} {lag}"] = (centred.narrow(dim, 0, size), centred.narrow(dim, lag, size))
    for name, (one, two) in pairs.items():
        product = one * two
        assert abs(product.mean()) < 4 / product.numel() ** 0.5, name
        assert abs((one.square() * two.square()).mean() - 1) < 4 * 1.5 / product.numel() ** 0.5, name


def test_no_streams_overlap() -> None:
    """Of 2^20 addresses no two have one 64-bit state: by chance they would with probability 3e-8."""
    a = addresses(draws=64, rows=64)
    keys = mix(mix(mix(5 + a.draws * GOLDEN)[:, None, None] + a.rows[:, None]) + a.positions * GOLDEN)
    states = keys.unsqueeze(-1) + torch.arange(1, 5) * GOLDEN
    assert states.unique().numel() == 64 * 64 * 64 * 4


def test_a_draw_depends_on_its_address_alone() -> None:
    whole = addresses(width=9).draw_local("theta", unit((40, 30, 9, 8)))
    later = addresses(draws=10, start=7, width=9).draw_local("theta", unit((10, 30, 9, 8)))
    assert torch.equal(later, whole[7:17])
    narrow = addresses(width=4).draw_local("theta", unit((40, 30, 4, 3)))
    assert torch.equal(narrow, whole[:, :, :4, :3])
    last = addresses(width=9).draw_local("theta", unit((40, 30, 2, 8)))  # of a layer that sees two columns
    assert torch.equal(last, whole[:, :, -2:])
    a = CounterNoise(0, torch.arange(40), ("5", "2"), torch.arange(9).expand(2, -1))
    assert torch.equal(a.draw_local("theta", unit((40, 2, 9, 8))), whole[:, [5, 2]])


def test_noise_made_ahead_is_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of neighbours of one shape at once: whatever is asked for, in whatever order, widths and streams."""
    sites = {"a": (3,), "b": (3,), "c": (5,), "d": (3,), "e": (3,), "f": (3,)}
    distribution_by_attempts = (
        dist.Gamma(torch.full((), 0.7), torch.ones(())).expand((40, 30, 8, 3)).to_event(1)
    )
    asked = [*((name, 8) for name in "abced"), ("f", 1), ("f", 8), ("f", 8), ("other", 2), ("b", 8)]
    numbers, ids, places = torch.arange(40), tuple(map(str, range(30))), torch.arange(8).expand(30, -1)
    one, ahead = CounterNoise(2, numbers, ids, places), CounterNoise(2, numbers, ids, places, sites=sites)
    for name, width in asked:
        distribution = unit((40, 30, width, *sites.get(name, (3,))))
        assert torch.equal(ahead.draw_local(name, distribution), one.draw_local(name, distribution)), name
    for name in ("d", "e"):
        assert torch.equal(
            ahead.draw_local(name, distribution_by_attempts), one.draw_local(name, distribution_by_attempts)
        )
    calls = []
    monkeypatch.setattr(noise, "mix", lambda state: calls.append(1) or mix(state))
    for limit, expected in ((2**20, 4), (2 * 40 * 30 * 8 * 3, 2 * 4), (0, 3 * 4)):
        monkeypatch.setattr(noise, "AHEAD", limit)
        calls.clear()
        fresh_ahead = CounterNoise(2, numbers, ids, places, sites=sites)
        for name in ("d", "e", "f"):
            fresh_ahead.draw_local(name, unit((40, 30, 8, 3)))
        assert len(calls) == expected


def test_positions_are_counted_from_the_first_real_token() -> None:
    """Padding does not move them, and the answer head, which sees the last token alone, is at its place."""
    batch, padded = make_batch(), make_batch(pad=3)
    width = batch.input_ids.shape[1]
    draws = addresses_of(batch, 0, slice(0, 5)).draw_local("theta", unit((5, 4, width, 3)))
    wide = addresses_of(padded, 0, slice(0, 5)).draw_local("theta", unit((5, 4, width + 3, 3)))
    head = addresses_of(batch, 0, slice(0, 5)).draw_local("theta", unit((5, 4, 1, 3)))
    assert torch.equal(wide[:, :, 3:], draws)
    assert torch.equal(head, draws[:, :, -1:])
    first = batch.attention_mask.long().argmax(-1)
    places = addresses_of(batch, 0, slice(0, 1)).positions
    assert (places[torch.arange(4), first] == 0).all()


def test_global_draws_are_shared_in_groups() -> None:
    distribution = unit((7, 3))
    one = addresses(draws=6).draw_global("phi", distribution)
    assert one.shape == (6, 7, 3)
    grouped = addresses(draws=6, repeats=3).draw_global("phi", distribution)
    assert torch.equal(grouped, one[[0, 0, 0, 1, 1, 1]])


def fresh(count: int) -> Uniform:
    def numbers(stream: int) -> Tensor:
        return uniform(torch.tensor([stream * 7919 + 1]), count)[0].clone()

    return numbers


N = 100_000
LAWS = {
    "weibull": (
        MeanWeibull(torch.tensor(0.7), torch.tensor(0.4)),
        st.weibull_min(1 / 0.4, scale=0.7 / gamma(1.4)),
    ),
    "gamma 0.3": (dist.Gamma(torch.tensor(0.3), torch.tensor(2.0)), st.gamma(0.3, scale=0.5)),
    "gamma 1": (dist.Gamma(torch.tensor(1.0), torch.tensor(1.0)), st.expon()),
    "gamma 40": (dist.Gamma(torch.tensor(40.0), torch.tensor(3.0)), st.gamma(40, scale=1 / 3)),
    "normal": (dist.Normal(torch.tensor(1.0), torch.tensor(2.0)), st.norm(1, 2)),
    "lognormal": (dist.LogNormal(torch.tensor(0.2), torch.tensor(0.5)), st.lognorm(0.5, scale=np.exp(0.2))),
    "half-normal": (dist.HalfNormal(torch.tensor(2.0)), st.halfnorm(scale=2)),
    "exponential": (dist.Exponential(torch.tensor(3.0)), st.expon(scale=1 / 3)),
    "masked": (dist.Laplace(torch.tensor(0.0), torch.tensor(1.0)).mask(False), st.laplace()),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_distribution_of_a_draw(name: str) -> None:
    distribution, truth = LAWS[name]
    draws = from_uniform(distribution.expand([N]), fresh(N))
    assert st.kstest(draws.double().numpy(), truth.cdf).pvalue > 1e-3
    other = from_uniform(distribution.expand([N]), fresh(N))
    assert torch.equal(draws, other)


def test_the_distribution_of_a_coin_and_of_a_point() -> None:
    heads = from_uniform(dist.Bernoulli(torch.tensor(0.3)).expand([N]), fresh(N))
    assert st.binomtest(int(heads.sum()), N, 0.3).pvalue > 1e-3
    assert torch.equal(from_uniform(dist.Delta(torch.tensor([2.0])), fresh(1)), torch.tensor([2.0]))


def test_the_distribution_of_a_matrix() -> None:
    """The covariance of vec W is the inverse of F (x) G + precision I."""

    def rotation(seed: int) -> Tensor:
        return torch.tensor(Rotation.random(random_state=seed).as_matrix(), dtype=torch.float32)

    f, g, precision = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0.5, 3.0, 1.0]), torch.tensor(0.7)
    distribution = KroneckerNormal(rotation(0), f, rotation(1), g, precision)
    count = 40_000
    draws = from_uniform(
        distribution.expand([count]), lambda stream: fresh(count * 9)(stream).reshape(count, 3, 3)
    )
    left, right = rotation(0) @ f.diag() @ rotation(0).T, rotation(1) @ g.diag() @ rotation(1).T
    truth = torch.linalg.inv(torch.kron(left, right) + precision * torch.eye(9))
    found = torch.cov(draws.reshape(count, 9).T)
    sizes = truth.diagonal()
    error = ((sizes[:, None] * sizes + truth.square()) / count).sqrt()
    assert ((found - truth).abs() < 5 * error).all()


def test_a_distribution_without_quantiles_is_refused() -> None:
    with pytest.raises(ConfigError, match="VonMises has no icdf"):
        from_uniform(dist.VonMises(torch.tensor(0.0), torch.tensor(1.0)), fresh(1))


def test_addresses_on_another_device() -> None:
    """A language model may be spread over several; the noise is the same."""
    here = CounterNoise(3, torch.arange(2), ("a", "b"), torch.arange(5).expand(2, 5))
    there = here.on(torch.device("meta"))
    assert here.on(torch.device("cpu")) is here
    assert {x.device.type for x in (there.draws, there.shared, there.rows, there.positions)} == {"meta"}
    scale = torch.ones(2, 5, 3, device="meta")
    distribution = MeanWeibull(scale, scale, validate_args=False).to_event(1)
    assert there.draw_local("theta/x", distribution).device.type == "meta"


@pytest.mark.parametrize(("name", "truth"), [("HalfNormal", st.halfnorm), ("HalfCauchy", st.halfcauchy)])
def test_half_distributions_are_exact_at_both_ends(name: str, truth: st.rv_continuous) -> None:
    """At 1 - 2^-24 torch's own quantiles are infinite and negative."""
    ends = torch.tensor([2**-24, 0.25, 0.5, 0.75, 1 - 2**-24])
    distribution = getattr(dist, name)(torch.full((5,), 1.7))
    found = from_uniform(distribution, lambda _: ends.clone())
    expected = truth.ppf(ends.double().numpy(), scale=1.7)
    expected[-1] = truth.isf(2.0**-24, scale=1.7)
    assert found.numpy() == pytest.approx(expected, rel=1e-2)
    assert found[1:4].numpy() == pytest.approx(expected[1:4], rel=1e-5)
