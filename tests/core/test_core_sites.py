"""Sites, plates, masks and scales of the program, read off a trace."""

import pytest
import torch
from core_cases import backbone, make_batch, unlabelled
from pyro import poutine
from pyro.distributions import Exponential, Gamma

from bara_pyro.data.types import Batch
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

N, R = 12, 3
B, T = 4, 7
HEAD = "lm_head"


def latents_of(trace: poutine.Trace) -> list[str]:
    return [name for name in trace.stochastic_nodes if name not in ("data", "tokens", "modules")]


def plates(site: dict) -> dict[str, tuple[int, int]]:
    return {f.name: (f.dim, f.size) for f in site["cond_indep_stack"]}


@pytest.mark.parametrize("form", ["additive", "gate"])
def test_the_programs_own_trace(qwen: Backbone, batch: Batch, form: str) -> None:
    prior = {"name": "gamma", "concentration": 2.0, "rate": 3.0}
    model = BaRA(qwen, N, r=R, form=form, phi_prior=prior, beta_phi=0.5, beta_theta=0.1)
    nodes = poutine.trace(model).get_trace(batch)
    paths = [t.path for t in model.targets]
    # In the order in which the layers run; the head last.
    assert latents_of(nodes) == ["phi", *(f"theta/{path}" for path in paths)]
    nodes = nodes.nodes

    phi = nodes["phi"]
    assert (phi["fn"].batch_shape, phi["fn"].event_shape) == ((5,), (R,))
    assert plates(phi) == {"modules": (-1, 5)}
    assert isinstance(phi["fn"].base_dist, Gamma)
    assert phi["fn"].base_dist.concentration.unique() == 2
    assert phi["fn"].base_dist.rate.unique() == 3
    assert phi["scale"] == 0.5
    assert phi["mask"] is None

    for path in paths:
        site = nodes[f"theta/{path}"]
        width = 1 if path == HEAD else T
        assert (site["fn"].batch_shape, site["fn"].event_shape) == ((B, width), (R,)), path
        assert site["value"].shape == (B, width, R)
        assert site["fn"].base_dist.concentration.unique() == 1
        assert float(site["scale"]) == pytest.approx(N / B * 0.1)
        assert plates(site)["data"] == (-2, B)
        if path == HEAD:
            assert set(plates(site)) == {"data"}
            assert site["mask"] is None
        else:
            assert plates(site) == {"data": (-2, B), "tokens": (-1, T)}
            assert torch.equal(site["mask"], batch.attention_mask)

    y = nodes["y"]
    assert y["is_observed"]
    assert y["value"].tolist() == [[label] for label in batch.labels.tolist()]
    assert (y["fn"].batch_shape, y["fn"].event_shape) == ((B, 1), ())
    assert y["fn"].param_shape[-1] == 3
    assert plates(y) == {"data": (-2, B)}
    assert float(y["scale"]) == N / B
    assert y["mask"] is None


def test_lora_has_no_latent(qwen: Backbone, batch: Batch) -> None:
    trace = poutine.trace(LoRA(qwen, N, r=R)).get_trace(batch)
    assert latents_of(trace) == []
    assert float(trace.nodes["y"]["scale"]) == N / B


@pytest.mark.parametrize(
    ("latent", "names"), [("phi", {"phi"}), ("theta", {"theta"}), ("phi*theta", {"phi", "theta"})]
)
@pytest.mark.parametrize("form", ["additive", "gate"])
def test_decompositions_sample_what_they_say(
    qwen: Backbone, batch: Batch, latent: str, names: set, form: str
) -> None:
    model = BaRA(qwen, N, r=R, latent=latent, form=form)
    trace = poutine.trace(model).get_trace(batch)
    assert {name.split("/")[0] for name in latents_of(trace)} == names
    # What the program declares to its guides is what it samples.
    assert latents_of(trace) == [*model.latents.global_sites, *model.latents.local_sites]
    for name, site in model.latents.sites.items():
        value = trace.nodes[name]["value"]
        assert (value.shape[2:] if site.local else value.shape) == site.shape
        assert site.family == ("phi" if name == "phi" else "theta")


def test_without_labels_the_answer_is_sampled(qwen: Backbone) -> None:
    y = poutine.trace(BaRA(qwen, N, r=R)).get_trace(unlabelled()).nodes["y"]
    assert not y["is_observed"]
    assert y["value"].shape == (B, 1)
    assert set(y["value"].flatten().tolist()) <= {0, 1, 2}


def test_the_guide_covers_every_site_and_keeps_its_shape(qwen: Backbone, batch: Batch) -> None:
    model = BaRA(qwen, N, r=R, theta_prior={"name": "exponential"})
    guide = WeibullGuide(model)
    guide(batch)
    model_trace, guide_trace = guide.get_traces()
    assert latents_of(guide_trace) == [*model.latents.global_sites, *model.latents.local_sites]
    for name in latents_of(guide_trace):
        prior, posterior = model_trace.nodes[name]["fn"], guide_trace.nodes[name]["fn"]
        assert prior.batch_shape == posterior.batch_shape, name
        assert prior.event_shape == posterior.event_shape == (R,)
        assert "input" not in guide_trace.nodes[name]["infer"]  # would keep every activation alive
    assert isinstance(model_trace.nodes[f"theta/{HEAD}"]["fn"].base_dist, Exponential)


def test_a_single_row_and_a_single_token_keep_their_dimensions() -> None:
    model = BaRA(backbone(), N, r=R)
    batch = make_batch(rows=((5,),), choose=[0])
    nodes = poutine.trace(model).get_trace(batch).nodes
    assert all(nodes[f"theta/{t.path}"]["value"].shape == (1, 1, R) for t in model.targets)
    assert model(batch).shape == (1, 3)
