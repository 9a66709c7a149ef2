"""The KL of each gate from its prior, by quadrature: a gate that is at its prior learnt nothing."""

import math

import torch
from core_cases import make_batch, noise_level, quadrature_kl
from gate_cases import toy
from pyro.distributions import MultivariateNormal, TorchDistribution
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core.gate_draws import chosen_modules
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.diagnostics.arviz.inference_data import looked_at
from bara_pyro.diagnostics.full_draws import FullDraws, full_draws
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA


def drawn(model: AdaptedLM, guide: SiteGuide, batch: Batch, samples: int = 2) -> FullDraws:
    system, rows = looked_at((model, guide), None, "test", batch)
    return full_draws(system, guide, rows, samples, 0, chosen_modules(model))


def kl_units(model: AdaptedLM, guide: SiteGuide, batch: Batch, samples: int = 2) -> dict[str, Tensor]:
    return drawn(model, guide, batch, samples).kl_units


def test_divergence_of_global_gates() -> None:
    model, guide = toy(latent="phi", phi_prior={"name": "gamma", "concentration": 2.0, "rate": 0.5})
    found = kl_units(model, guide, make_batch())
    raw = guide.sites["phi"].weight.detach()
    exact = quadrature_kl(F.softplus(raw[:, :3]), noise_level(raw[:, 3:]).clamp(max=1.0), 2.0, 0.5)
    assert list(found) == ["phi"]
    assert_close(found["phi"], exact, rtol=0, atol=1e-4)


def test_a_joint_posterior_has_no_divergence_by_unit() -> None:
    class Joint(WeibullGuide):
        def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
            units = prior.event_shape[0]
            return MultivariateNormal(torch.zeros(units), torch.eye(units)).expand(prior.batch_shape)

    model, _ = toy(latent="phi")
    found = drawn(model, Joint(model), make_batch())
    assert found.kl_units == {}
    assert "MultivariateNormal" in found.unknown_kl


def test_divergence_of_local_gates() -> None:
    # A first layer's input is that of the language model itself: no gate below it.
    path = "model.layers.0.self_attn.q_proj"
    model, guide = toy(target_modules=[path], form="additive")
    batch = make_batch()
    seen = {}
    hook = model.backbone.lm.get_submodule(path).register_forward_hook(
        lambda layer, args, output: seen.update(x=args[0])
    )
    guide.run(batch)
    hook.remove()
    raw = (seen["x"][:, -1] @ guide.sites[f"theta/{path}".replace(".", "/")].weight.T).detach()
    exact = quadrature_kl(F.softplus(raw[:, :3]), noise_level(raw[:, 3:]).clamp(max=1.0), 1.0, 1.0)
    found = kl_units(model, guide, make_batch())["theta"]
    assert_close(found, exact.mean(0, keepdim=True), rtol=0, atol=1e-3)
    some, others = (kl_units(model, guide, make_batch(choose=rows))["theta"] for rows in ([2], [0, 1, 3]))
    assert_close((some + 3 * others) / 4, found, rtol=0, atol=1e-5)


def test_the_prior_itself_learnt_nothing() -> None:
    model, _ = toy()
    for kl in kl_units(model, PriorGuide(model), make_batch(choose=[0]), samples=1).values():
        assert kl.abs().max() < 1e-5
    # mean 1 and kappa 1: the Weibull distribution that Gamma(1, 1) is
    model, guide = toy(latent="phi")
    with torch.no_grad():
        raw = guide.sites["phi"].weight
        raw[0, 0], raw[0, 3] = math.log(math.e - 1), math.log(math.e - 1) - math.log(math.expm1(0.5))
    kl = kl_units(model, guide, make_batch())["phi"]
    assert kl[0, 0] < 1e-5
    assert kl.flatten()[1:].min() > 0.001


def test_a_divergence_without_a_closed_form_is_named() -> None:
    model, _ = toy()
    heavy = BaRA(model.backbone, 4, r=2, latent="phi", phi_prior={"name": "halfcauchy"})
    found = drawn(heavy, WeibullGuide(heavy), make_batch())
    assert (found.kl_units, found.kl_phi) == ({}, None)
    assert "'phi': no analytic KL(MeanWeibull || HalfCauchy)" in found.unknown_kl
