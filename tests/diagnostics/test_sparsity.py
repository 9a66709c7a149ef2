"""Sparsity and effective rank of gates: counted by hand, and against the Weibull distribution and scipy."""

import math
from dataclasses import replace

import pytest
import torch
from core_cases import backbone, bara_pair, make_batch
from gate_cases import toy
from scipy import integrate, special, stats
from torch import Tensor, nn

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.gate_draws import GateDraws, gate_draws
from bara_pyro.diagnostics.sparsity import (
    effective_rank,
    gate_sparsity,
    rank_summary,
    relation,
    support_relation,
)
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

LN2 = math.log(2)
TAU = 0.1


def by_hand() -> GateDraws:
    """Two draws, two rows, two modules, rank 2."""
    phi = torch.tensor([[[0.05, 1.0], [1.0, 2.0]], [[0.5, 0.5], [0.01, 3.0]]])
    theta = torch.tensor(
        [
            [[[10.0, 0.05], [0.2, 0.2]], [[0.01, 0.2], [1.0, 1.0]]],
            [[[0.1, 0.3], [1.0, 0.02]], [[1.0, 1.0], [20.0, 1.0]]],
        ]
    )
    return GateDraws(("m", "n"), ("a", "b"), phi, theta, torch.zeros(2, 2, 3))


def test_counted_by_hand() -> None:
    found = gate_sparsity(by_hand(), TAU)
    assert found.modules == ("m", "n")
    # Below 0.1: Phi 0.05 | 0.01; theta 0.05, 0.01 | 0.02 (0.1 is not below);
    # products .5 .05 .0005 .2 .05 .15 .5 .5 | .2 .4 1 2 .01 .06 .2 3
    assert found.by_module["phi"].tolist() == [25.0, 25.0]
    assert found.by_module["theta"].tolist() == [25.0, 12.5]
    assert found.by_module["psi"].tolist() == [37.5, 25.0]
    assert found.overall == {"phi": 25.0, "theta": 18.75, "psi": 31.25}


def test_units_above_the_rank_of_a_module_are_no_gates() -> None:
    """Module "n" has only the first unit: one by hand, and of a program by a loop over what it has."""
    found = gate_sparsity(replace(by_hand(), ranks=(2, 1)), TAU)
    assert found.by_module["phi"].tolist() == [25.0, 50.0]  # of n: 1, 0.01
    assert found.by_module["theta"].tolist() == [25.0, 0.0]  # 0.2, 1, 1, 20
    assert found.overall["phi"] == pytest.approx(100 * 2 / 6)
    model = BaRA(backbone(), 4, r=4, target_modules=["lm_head", "q_proj"], rank_pattern={"lm_head": 1})
    drawn = gate_draws(model, WeibullGuide(model), [make_batch()], samples=50)
    own = {path: 1 if path == "lm_head" else 4 for path in drawn.modules}
    for kind, gates in drawn.by_kind().items():
        closed = [
            float(gates[s, n, m, unit]) < TAU
            for m, path in enumerate(drawn.modules)
            for s in range(gates.shape[0])
            for n in range(gates.shape[1])
            for unit in range(own[path])
        ]
        assert gate_sparsity(drawn, TAU).overall[kind] == pytest.approx(100 * sum(closed) / len(closed))


def test_activations_have_a_sign_and_no_phi() -> None:
    theta = torch.tensor([[[[-0.05, -1.0]]]])
    found = gate_sparsity(GateDraws(("m",), ("a",), None, theta, torch.zeros(1, 1, 2)), TAU)
    assert found.overall == {"phi": 0.0, "theta": 50.0, "psi": 50.0}


def test_expectation_of_the_weibull_distribution() -> None:
    # theta's raw weights at 0: both gates have the distribution of Phi's start; the product by quadrature.
    model = BaRA(backbone(), 4, r=16, target_modules=["lm_head", "q_proj"])
    guide = WeibullGuide(model, init_kappa=LN2)
    for site in guide.sites.values():
        nn.init.zeros_(site.weight)
    samples = 400
    found = gate_sparsity(gate_draws(model, guide, [make_batch()], samples=samples), TAU)
    distribution = stats.weibull_min(1 / LN2, scale=LN2 / special.gamma(1 + LN2))
    product = integrate.quad(lambda u: distribution.cdf(TAU / distribution.ppf(u)), 0, 1)[0]
    # Rows share Phi: as many independent draws of a product as of Phi, which is safe.
    count = samples * 16
    for name, probability in (
        ("phi", distribution.cdf(TAU)),
        ("theta", distribution.cdf(TAU)),
        ("psi", product),
    ):
        error = 100 * math.sqrt(probability * (1 - probability) / count)
        assert error < 0.6
        assert (found.by_module[name] - 100 * probability).abs().max() < 4 * error


@pytest.mark.parametrize("tau", [-0.1, math.nan])
def test_a_threshold_that_is_none(tau: float) -> None:
    with pytest.raises(ConfigError, match="0 or more"):
        gate_sparsity(by_hand(), tau)


@pytest.mark.parametrize(("shape", "kappa", "printed"), [("kappa", LN2, 5.18), ("k", 1 / LN2, 26.6)])
def test_phi_at_the_start(shape: str, kappa: float, printed: float) -> None:
    distribution = stats.weibull_min(1 / kappa, scale=LN2 / special.gamma(1 + kappa))
    assert 100 * distribution.cdf(TAU) == pytest.approx(printed, abs=0.05)
    model = BaRA(backbone(), 4, r=64, latent="phi", target_modules="all-linear")
    # init_kappa is given as kappa in both: k = softplus(raw) starts at ln 2 where kappa does at 1 / ln 2.
    guide = WeibullGuide(model, shape=shape, init_kappa=kappa, max_kappa=KAPPA_MAX)
    found = gate_sparsity(gate_draws(model, guide, [make_batch(((5,),))], samples=30), TAU)
    assert set(found.overall) == {"phi", "psi"}
    assert found.overall["psi"] == pytest.approx(found.overall["phi"])
    error = 100 * math.sqrt(distribution.cdf(TAU) * distribution.sf(TAU) / (30 * 14 * 64))
    assert error < 0.5
    assert abs(found.overall["phi"] - 100 * distribution.cdf(TAU)) < 4 * error


def draws_of(phi: list, theta: list) -> GateDraws:
    """Draws of one module."""
    p, t = torch.tensor(phi)[:, None], torch.tensor(theta)[:, :, None]
    return GateDraws(("m",), tuple(map(str, range(t.shape[1]))), p, t, torch.zeros(len(p), t.shape[1], 2))


def test_by_a_loop() -> None:
    model, guide = toy()
    draws = gate_draws(model, guide, [make_batch()], samples=5)
    found = effective_rank(draws, 0.3)
    assert found.shape == (4, len(draws.modules))
    for row in range(4):
        for module in range(len(draws.modules)):
            counts = [
                sum(
                    float(draws.phi[s, module, k]) * float(draws.theta[s, row, module, k]) > 0.3
                    for k in range(3)
                )
                for s in range(5)
            ]
            assert found[row, module] == pytest.approx(sum(counts) / 5)
    assert 0 < float(found.min()) < float(found.max()) < 3.001


def test_summary() -> None:
    rank = torch.tensor([[1.0, 3.0], [3.0, 5.0], [2.0, 4.0]], dtype=torch.float64)
    found = rank_summary(rank)
    assert found.mean == pytest.approx(3)
    assert found.over_rows == pytest.approx(1.0)  # 2, 4, 3
    assert found.over_modules == pytest.approx(math.sqrt(2))  # 2, 4
    assert found.within_modules == pytest.approx(1.0)
    assert rank_summary(rank[:1, :1]).over_rows == 0


def cloud(slope: float, n: int = 200) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, generator=generator, dtype=torch.float64)
    y = slope * x + torch.randn(n, generator=generator, dtype=torch.float64)
    return x[:, None].repeat(1, 2), y


@pytest.mark.parametrize(
    ("slope", "verdict"), [(1.0, "rises with"), (-1.0, "falls with"), (0.0, "does not clearly vary with")]
)
def test_relation(slope: float, verdict: str) -> None:
    rank, values = cloud(slope)
    found = relation(rank, values, "y")
    assert found.rho == pytest.approx(stats.spearmanr(rank[:, 0], values).statistic, abs=1e-12)
    assert found.low < found.rho < found.high
    assert found.verdict == verdict
    # Against the textbook's standard error of Fisher's transform.
    width = math.atanh(found.high) - math.atanh(found.low)
    assert width == pytest.approx(2 * 1.96 * 1.06 / math.sqrt(197), rel=0.2)


def test_ties_and_unknown_values() -> None:
    rank = torch.tensor([[1.0], [1.0], [2.0], [3.0], [9.0]], dtype=torch.float64)
    values = [0.0, 1.0, 1.0, 1.0, math.nan]
    found = relation(rank, values, "error")
    assert found.rows == 4
    assert found.rho == pytest.approx(stats.spearmanr([1, 1, 2, 3], [0, 1, 1, 1]).statistic, abs=1e-12)
    flat = relation(rank[:4], [1.0] * 4, "error")
    assert math.isnan(flat.rho)
    assert flat.verdict == "cannot be related to"


def test_relation_refuses() -> None:
    with pytest.raises(DataError, match="2 values for 3 rows"):
        relation(torch.zeros(3, 1), [1.0, 2.0], "x")
    with pytest.raises(DataError, match="three rows or more"):
        relation(torch.zeros(3, 1), [1.0, 2.0, math.nan], "x")


def test_the_counter_example() -> None:
    # Phi is off (0.05 < 0.1), theta is large: the product is on at tau = 0.1 * 0.1, whatever the proof says.
    found = support_relation(draws_of([[0.05]], [[[100.0]]]), 0.1, 0.1)
    assert found.phi == 0
    assert found.product == 1
    assert found.broken == 100
    assert found.tau_sound == pytest.approx(max(100 * 0.1, 0.05 * 0.1))
    assert found.sound == 0
    assert found.broken_sound == 0


def test_the_sound_threshold_is_the_least() -> None:
    # At it nothing breaks; a little below, the unit that attains the maximum does.
    draws = draws_of([[0.1, 2.0]], [[[5.0, 3.0]]])
    found = support_relation(draws, 0.1, 0.1)
    assert found.tau_sound == pytest.approx(0.5)
    assert found.broken_sound == 0
    product = draws.psi.flatten()
    assert float(product[0]) == pytest.approx(0.5)
    assert float(product[0]) > 0.999 * found.tau_sound  # and Phi = 0.1 is not above 0.1


@pytest.mark.parametrize("seed", range(2))
def test_no_draw_breaks_the_sound_relation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    phi = torch.empty(20, 1, 8).exponential_(generator=generator)
    theta = torch.empty(20, 30, 1, 8).exponential_(generator=generator) ** 2
    draws = GateDraws(("m",), tuple(map(str, range(30))), phi, theta, torch.zeros(20, 30, 2))
    found = support_relation(draws, 0.3, 0.2)
    assert found.broken > 0
    assert found.broken_sound == 0
    loop = [sum(float(p) > 0.3 for p in phi[s, 0]) for s in range(20)]
    assert found.phi == pytest.approx(sum(loop) / 20)


def test_the_relation_needs_both_gates() -> None:
    model, guide = toy(latent="phi")
    with pytest.raises(DataError, match="needs Phi and theta"):
        support_relation(gate_draws(model, guide, [make_batch()], samples=1))
    model, guide = toy()
    with pytest.raises(ConfigError, match="tau is -1"):
        support_relation(gate_draws(model, guide, [make_batch()], samples=1), -1)


def test_a_centred_gate_acts_by_its_deviation() -> None:
    """At its centre a unit does nothing, whatever its Phi; at 0 it does."""
    phi, theta = torch.ones(1, 1, 2), torch.tensor([[[[1.0, 1.0]], [[0.0, 1.0]]]])
    draws = GateDraws(("m",), ("a", "b"), phi, theta, torch.zeros(1, 2, 2), centre=1.0)
    assert effective_rank(draws, 0.1).tolist() == [[0.0], [1.0]]
    model, guide = bara_pair(centred=True, theta_prior={"name": "gamma", "concentration": 2.0, "rate": 1.0})
    found = gate_draws(model, guide, [make_batch()], samples=2)
    assert found.centre == 2.0
    assert torch.equal(found.psi, found.phi.unsqueeze(1) * (found.theta - 2.0))


def false_verdicts(errors: int, rows: int = 256, trials: int = 60) -> float:
    """The share of trials in which what is independent is called related."""
    generator = torch.Generator().manual_seed(errors)
    wrong = torch.zeros(rows)
    wrong[:errors] = 1
    found = [relation(torch.rand(rows, 1, generator=generator), wrong, "error") for _ in range(trials)]
    return sum(one.verdict in ("rises with", "falls with") for one in found) / trials


@pytest.mark.parametrize("errors", [1, 2, 5, 9, 247, 255])
def test_few_errors_are_related_to_nothing(errors: int) -> None:
    """One error in 256 rows was called related in 85 % of 200 trials."""
    assert false_verdicts(errors, trials=5) == 0
    found = relation(torch.rand(256, 1), torch.arange(256) < errors, "error")
    assert found.verdict == "cannot be related to"
    assert math.isnan(found.low)


@pytest.mark.slow
def test_ten_errors_are_enough() -> None:
    """In no more than one trial of five: 5 % is meant, and 60 trials know it to 6 points."""
    assert 0 < false_verdicts(10) + false_verdicts(40) < 0.4
