"""Posterior collapse: divergences by quadrature."""

import math

import pytest
import torch
from core_cases import make_batch, noise_level, quadrature_kl
from gate_cases import toy
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.diagnostics.posterior.collapse import Collapse, collapse
from bara_pyro.errors import ConfigError, DataError, MissingKLError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.prior import PriorGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA


def test_divergence_of_global_gates() -> None:
    model, guide = toy(latent="phi", phi_prior={"name": "gamma", "concentration": 2.0, "rate": 0.5})
    found = collapse(model, guide, [make_batch()])
    raw = guide.sites["phi"].weight.detach()
    exact = quadrature_kl(F.softplus(raw[:, :3]), noise_level(raw[:, 3:]).clamp(max=1.0), 2.0, 0.5)
    assert "theta" not in found.kl
    assert_close(found.kl["phi"], exact, rtol=0, atol=1e-4)
    assert found.share(1.0)["phi"] == pytest.approx(100 * float((exact <= 1.0).double().mean()))


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
    found = collapse(model, guide, [make_batch()], samples=2)
    assert_close(found.kl["theta"], exact.mean(0, keepdim=True), rtol=0, atol=1e-3)
    in_parts = collapse(model, guide, [make_batch(choose=[2]), make_batch(choose=[0, 1, 3])], samples=1)
    assert_close(in_parts.kl["theta"], found.kl["theta"], rtol=0, atol=1e-5)


def test_the_prior_itself_has_collapsed() -> None:
    model, _ = toy()
    found = collapse(model, PriorGuide(model), [make_batch()], samples=1)
    assert found.share() == {"phi": 100.0, "theta": 100.0}
    _, guide = toy()
    # mean 1 and kappa 1: the Weibull distribution that Gamma(1, 1) is
    model, guide = toy(latent="phi")
    with torch.no_grad():
        raw = guide.sites["phi"].weight
        raw[0, 0], raw[0, 3] = math.log(math.e - 1), math.log(math.e - 1) - math.log(math.expm1(0.5))
    kl = collapse(model, guide, [make_batch()]).kl["phi"]
    assert kl[0, 0] < 1e-5
    assert kl.flatten()[1:].min() > 0.001


def test_share_at_the_prior() -> None:
    found = Collapse(("a", "b"), {"phi": torch.tensor([[0.0, 2.0], [0.005, 0.001]]).double()})
    assert found.share() == {"phi": 75.0}
    assert found.share(1e-4) == {"phi": 25.0}


def test_what_has_no_divergence() -> None:
    model, guide = toy()
    with pytest.raises(ConfigError, match="DeltaGuide is a point estimate"):
        collapse(model, DeltaGuide(model), [make_batch()])
    with pytest.raises(DataError, match="no rows"):
        collapse(model, guide, [])
    with pytest.raises(ConfigError, match="samples is 0"):
        collapse(model, guide, [make_batch()], samples=0)
    with pytest.raises(ConfigError, match="made for another model"):
        collapse(toy()[0], guide, [make_batch()])
    lora = LoRA(model.backbone, 4)
    with pytest.raises(ConfigError, match="LoRA has no gates"):
        collapse(lora, PriorGuide(lora), [make_batch()])
    heavy = BaRA(model.backbone, 4, r=2, latent="phi", phi_prior={"name": "halfcauchy"})
    with pytest.raises(MissingKLError, match=r"'phi': no analytic KL\(MeanWeibull \|\| HalfCauchy\)"):
        collapse(heavy, WeibullGuide(heavy), [make_batch()])
