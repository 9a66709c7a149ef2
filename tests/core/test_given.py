"""What is given by mistake is refused in a sentence, before it changes an answer or a parameter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from core_cases import ANSWERS, CONFIGS, backbone, bara_pair, lora_pair, make_batch, make_lm
from pyro import distributions as dist
from pyro.distributions import TorchDistribution
from pyro.infer import JitTrace_ELBO, Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from transformers import LlamaForCausalLM

import bara_pyro as bp
from bara_pyro.core.elbo import MeanFieldELBO
from bara_pyro.core.observing import frozen_states
from bara_pyro.core.optimizers import adamw, linear_schedule
from bara_pyro.core.prediction import predict
from bara_pyro.core.resuming import read_prefix
from bara_pyro.core.svi import SVI
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError, ConfigError, DataError
from bara_pyro.guides.contextual import ContextualGuide
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.guides.fvae import FVAEGuide
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.guides.point import PointGuide
from bara_pyro.guides.posthoc import PosthocGuide
from bara_pyro.guides.scalabl import ScalaBLGuide
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.models.gaussian_lora import GaussianLoRA
from bara_pyro.models.lora import LoRA


class Hot(LlamaForCausalLM):
    """Does more to its logits than its configuration says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = 3 * out.logits
        return out


def test_a_language_model_of_ones_own_is_verified_too() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        hot, plain = Hot(CONFIGS["llama"]), LlamaForCausalLM(CONFIGS["llama"])
    with pytest.raises(BackboneError, match="Hot changes its logits in a way"):
        LoRA(Backbone(hot), num_data=8)
    own = Backbone(plain)
    assert not own.verified
    LoRA(own, num_data=8)
    assert own.verified


@pytest.mark.parametrize("given", [make_lm("qwen2"), "microworld", None])
def test_what_is_no_backbone_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"pass bp\.Backbone\(model, tokenizer\)"):
        BaRA(given, num_data=8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_data": 4.5}, "num_data=4.5 must be a whole number"),
        ({"num_data": 0}, "num_data=0 must be"),
        ({"r": 2.5}, "r=2.5 must be"),
        ({"lora_alpha": float("nan")}, "lora_alpha=nan must be"),
        ({"lora_alpha": -16.0}, "lora_alpha=-16.0 must be"),
        ({"lora_alpha": float("inf")}, "lora_alpha=inf must be"),
        ({"beta_phi": float("nan")}, "beta_phi"),
        ({"beta_theta": -1.0}, "beta_theta"),
        ({"phi_prior": None}, "A prior is a name"),
        ({"theta_prior": {"rate": 1.0}}, "A prior is a name"),
    ],
)
def test_numbers_and_priors_out_of_range(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BaRA(backbone(), **({"num_data": 8} | settings))


GUIDES: list[Callable[[Any], object]] = [
    ContextualGuide,
    EnsembleGuide,
    FVAEGuide,
    NormalGuide,
    PointGuide,
    PosthocGuide,
    ScalaBLGuide,
    VBLLGuide,
]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_of_another_kind_of_program_is_refused(guide: Callable[[Any], object]) -> None:
    model = BaRA(backbone(), num_data=8)
    with pytest.raises(ConfigError, match=f"A {guide.__name__} is for a .+, not for a BaRA"):
        guide(model)


def test_a_guide_of_gates_is_not_one_of_weights() -> None:
    weights = GaussianLoRA(backbone(), 12, r=2, random="A", prior_scale=0.2, beta=1.0)
    first = "'lora_A/model.layers.0.self_attn.q_proj' of this GaussianLoRA is not a gate"
    with pytest.raises(ConfigError, match=f"A WeibullGuide is for gates, r per module, and {first}"):
        WeibullGuide(weights)


class Narrow(WeibullGuide):
    """One entry where the prior has as many as there are units."""

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        loc = torch.zeros(*prior.batch_shape, 1)
        return dist.LogNormal(loc, torch.ones_like(loc)).to_event(1)


class Stored(WeibullGuide):
    """A parameter in Pyro's store, which no optimiser here sees."""

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        loc = pyro.param("shift", torch.zeros(()))
        return dist.LogNormal(loc.expand(prior.batch_shape + prior.event_shape), 1.0).to_event(1)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Narrow, r"gave 'phi' the event shape \(1,\), but its prior has \(8,\)"),
        (Stored, r"Stored or its model uses pyro.param\('shift'\)"),
    ],
)
def test_distributions_of_a_guide_that_would_train_another_bound(kind: type[WeibullGuide], said: str) -> None:
    model = BaRA(backbone(), num_data=4, latent="phi")
    with pytest.raises(ConfigError, match=said):
        MeanFieldELBO().terms(model, kind(model), make_batch())
    guide = kind(model)
    for elbo in (TraceMeanField_ELBO(), Trace_ELBO()):
        pyro.clear_param_store()
        with pytest.raises(ConfigError, match=said):
            SVI(model, guide, adamw(model, guide, lr=1e-3), elbo).step(make_batch())
    pyro.clear_param_store()


@pytest.mark.parametrize("handled", [lambda m: m.forward, lambda m: bara_pair()[0]])
def test_a_bound_is_of_the_guides_own_model(handled: Callable[[Any], Any]) -> None:
    """A guide runs its own model, whatever else is given: another one would have gone without a word."""
    model, guide = bara_pair()
    batch, other = make_batch(), handled(model)
    with pytest.raises(ConfigError, match="was made for another model"):
        MeanFieldELBO().terms(other, guide, batch)
    with pytest.raises(ConfigError, match="was made for another model"):
        MeanFieldELBO().loss(other, guide, batch)
    MeanFieldELBO().terms(model, guide, batch)


def test_labels_are_one_whole_number_a_row() -> None:
    batch = make_batch()
    assert batch.labels is not None
    for wrong in (batch.labels[:, None], batch.labels.float()):
        with pytest.raises(DataError, match="give the class of each row"):
            replace(batch, labels=wrong)


def test_rows_without_answers_of_one_token() -> None:
    model, guide = lora_pair()
    batch = replace(make_batch(), answer_ids=ANSWERS[:0])
    with pytest.raises(DataError, match=r"bp\.TextLikelihood\(\) for longer answers"):
        MeanFieldELBO().terms(model, guide, batch)


def test_inference_is_told_what_it_can_use() -> None:
    model, guide = bara_pair()
    whole = adamw(model, guide, lr=1e-3)
    half = torch.optim.SGD(list(model.parameters()), lr=1e-3)
    for optim, how, said in (
        (pyro.optim.Adam({"lr": 1e-3}), {}, "pass a torch optimiser"),
        (half, {}, "has no parameters of the WeibullGuide"),
        (whole, {"loss": RenyiELBO()}, r"The loss is a RenyiELBO: see docs/swap\.md"),
        (whole, {"loss": JitTrace_ELBO()}, r"The loss is a JitTrace_ELBO: see docs/swap\.md"),
        (whole, {"loss": "elbo"}, r"The loss is a str: see docs/swap\.md"),
        (whole, {"clip_norm": -1.0}, "clip_norm=-1.0 must be above 0"),
        (whole, {"clip_norm": float("nan")}, "clip_norm=nan must be above 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            SVI(model, guide, optim, **how)  # type: ignore[arg-type]
    for parameter in guide.parameters():
        parameter.requires_grad_(False)
    SVI(model, guide, half)  # what stays where it is on purpose


def test_an_optimiser_is_refused_a_guide_that_it_does_not_fit() -> None:
    model, _ = bara_pair(latent="phi")
    with pytest.raises(ConfigError, match="AutoNormal is not a `SiteGuide`: fit it with pyro"):
        adamw(model, AutoNormal(model), lr=1e-3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="was made for another model"):
        adamw(model, bara_pair()[1], lr=1e-3)


@pytest.mark.parametrize(("steps", "warmup"), [(-5, 0.06), (0, 0.06), (10, 3.0), (10, -3.0)])
def test_schedules_out_of_range(steps: int, warmup: float) -> None:
    optim = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with pytest.raises(ConfigError, match="must be at least 1, and warmup"):
        linear_schedule(optim, steps, warmup)


def test_no_particles_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_particles=0"):
        MeanFieldELBO(num_particles=0)


def stock(model: Any, guide: Any, batch: Any) -> object:
    return Predictive(model, guide=guide, num_samples=1, return_sites=("_RETURN",))(batch)


WAYS: dict[str, Callable[[Any, Any, Any], object]] = {
    "forward": lambda m, g, b: m(b),
    "predictive": stock,
    "bound": lambda m, g, b: MeanFieldELBO().terms(m, g, b),
    "frozen states": lambda m, g, b: frozen_states(m, b),
    "read": lambda m, g, b: read_prefix(m, b),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_program_is_shut_while_another_hangs_on_it(way: str) -> None:
    """Else its frozen states, which are kept, would be those of the other program for good."""
    lm = Backbone(make_lm("qwen2"))
    below = LoRA(lm, num_data=8)
    above = LoRA(lm, num_data=8, target_modules=["model.layers.1.self_attn.q_proj"])
    with torch.no_grad():
        for value in below.parameters():
            value.add_(0.3)
    batch = make_batch()
    first, guide = bp.guides.DeltaGuide(below), bp.guides.DeltaGuide(above)
    assert above.frozen_layers == 1
    before = predict(above, guide, batch, samples=0)
    with bp.attached((below, first)), pytest.raises(BackboneError, match="A program is already attached"):
        WAYS[way](above, guide, batch)
    assert torch.equal(predict(above, guide, batch, samples=0), before)


def test_a_row_longer_than_the_context() -> None:
    model, guide = lora_pair()
    ids = torch.ones(1, 33, dtype=torch.long)
    batch = Batch(ids, ids.bool(), ANSWERS)
    with pytest.raises(ConfigError, match="A row takes 33 tokens, more than the 32"):
        predict(model, guide, batch, samples=0)


def test_parameters_are_float32_whatever_the_default() -> None:
    """As where NUTS is run, which wants doubles."""
    torch.set_default_dtype(torch.float64)
    try:
        model, guide = lora_pair()
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    found: Tensor = predict(model, guide, make_batch(), samples=0)
    assert found.isfinite().all()
