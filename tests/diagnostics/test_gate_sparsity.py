"""Sparsity by module and over thresholds: counted by hand, and against the Weibull distribution."""

import math
from dataclasses import replace

import pytest
import torch
from core_cases import backbone, make_batch
from scipy import integrate, special, stats
from torch import nn

from bara_pyro.core.distributions import KAPPA_MAX
from bara_pyro.core.gate_draws import GateDraws, gate_draws
from bara_pyro.diagnostics.sparsity import gate_sparsity
from bara_pyro.errors import ConfigError
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
