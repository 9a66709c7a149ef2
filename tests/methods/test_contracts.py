"""What every method keeps to: published counts, types, stock training, `attached`, two steps, settings."""

import math
from dataclasses import replace

import pyro
import pytest
import torch
from core_cases import backbone, make_batch, make_lm, randomise
from fit_cases import assert_runs_come_back, tiny_run
from method_cases import R, made, svi_of, trained, unflip
from pyro.distributions import validation_enabled
from pyro.infer import SVI as STOCK
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.cli.architectures import empty_backbone
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import AnswerLikelihood, TextLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError
from bara_pyro.guides.families import FAMILIES
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.methods.recipes import TwoStepSVI
from bara_pyro.runs.system import count_parameters

LORA = 3_768_320
# Qwen2.5-7B: 57 modules of input width d, r = 8; FVAE-LoRA: encoders of 8 units, a decoder of 128.
D, MODULES, R8, W = 3584, 57, 8, 128
UP = 28 * R8 * (D + 512) + R8 * 152_064
ENCODERS = 2 * (R8 * D + R8 + 2 * (R8 * R8 + R8))
FIRST, INNER, LAST = 2 * R8 * W + W, W * W + W, W * D + D
OFFICIAL = UP + MODULES * (ENCODERS + FIRST + 2 * INNER + LAST + D)
SMALL = UP + MODULES * (ENCODERS + FIRST + LAST)
# Without the output embedding; for each of five answers a mean and a triangle.
BODY = 56 * R8 * D + 28 * R8 * (D + 512)
LAST_LAYER = 5 * (D + D * (D + 1) // 2)
COUNTS = [
    ("map_decoupled", {}, LORA),
    ("map_prior", {}, LORA),
    ("mc_dropout", {}, LORA),
    ("laplace", {}, LORA),
    ("tfb", {}, LORA),
    ("ivon", {}, LORA),
    ("temperature", {}, LORA),
    ("ensemble", {}, 11_304_960),
    ("ensemble_temperature", {}, 11_304_960),
    ("blob", {}, 5_402_624),
    ("scalabl", {}, 3_769_232),
    ("clora", {}, LORA + 57 * 8896),
    ("adalora", {}, 5_653_164),
    ("fvae", {}, OFFICIAL),
    ("vbll", {}, BODY + LAST_LAYER),
    ("polar_vbll", {}, BODY + 56 * R8**2 + LAST_LAYER),
]
# Set after training, moved by no gradient: a switch, a scale a weight, whose row is whose.
FROZEN = {
    **{"tfb": 1 + 57 * 8, "ivon": 1 + LORA, "vbll": 5, "polar_vbll": 5},
}


@pytest.mark.parametrize(("method", "settings", "count"), COUNTS)
def test_published_parameter_counts(method: str, settings: dict[str, int], count: int) -> None:
    pair = made(method, frozen=empty_backbone("qwen2.5-7b"), **{"r": 8, **settings})
    assert sum(map(count_parameters, pair)) == count
    values = [p for module in pair for p in module.parameters()]
    assert sum(p.numel() for p in values if not p.requires_grad) == FROZEN.get(method, 0)
    # Nothing is allocated; a switch and the tokens of five answers stay on the CPU.
    assert all(p.is_meta for p in values if p.numel() > 5)


@pytest.mark.parametrize(
    ("method", "guide"),
    [
        *(("bara", {"guide": name}) for name in FAMILIES),
        *((m, {}) for m in ("blob", "clora", "fvae", "map_prior")),
    ],
    ids=str,
)
def test_a_posterior_waits_for_no_value_of_its_device(method: str, guide: dict[str, str]) -> None:
    """The meta device has none. Validation asks for them, and a CUDA graph cannot hold a step that waits."""
    model, fitted = made(method, frozen=Backbone(make_lm("qwen2").to("meta")), **guide)
    unflip(model)
    phi = torch.ones(len(model.targets), R, device="meta")
    for name, site in {**model.latents.global_sites, **model.latents.local_sites}.items():
        local = name in model.latents.local_sites
        fitted._inputs.append((torch.ones(2, 5, site.width, device="meta"), phi) if local else (None, None))
        with validation_enabled():  # torch switches it off once a test has imported its compiler
            drawn = fitted.get_posterior(name, None).rsample()
        fitted._inputs.pop()
        assert drawn.is_meta
        assert drawn.shape == ((2, 5, *site.shape) if local else site.shape)


def test_counts_by_hand_are_the_published_ones_less_what_is_never_used() -> None:
    assert OFFICIAL == 33_984_248 - MODULES * R8  # lora_E
    assert SMALL == 33_531_440 - MODULES * R8 * D  # lora_A


@pytest.mark.parametrize(
    ("method", "recipe"), [*((m, {}) for m in METHODS), ("fvae", {"recipe": "reproduction"})], ids=str
)
def test_float32_under_a_bfloat16_backbone(method: str, recipe: dict[str, str]) -> None:
    if method == "ivon":
        pytest.importorskip("ivon", reason="ivon-opt is optional: it is under the GPL")
    pair = made(method, frozen=Backbone(make_lm("qwen2", torch.bfloat16)), **recipe)
    svi = svi_of(method, pair, recipe)
    assert all(math.isfinite(svi.step(make_batch())) for _ in range(3))
    assert {p.dtype for p in svi.parameters} == {torch.float32}


@pytest.mark.parametrize("method", METHODS)
def test_stock_svi_trains(method: str) -> None:
    """The loss falls; every parameter moves but for those that are set after training."""
    # Signs and masks have no reparameterised draw, which the mean-field bound asks for.
    elbo = Trace_ELBO() if method == "mc_dropout" else TraceMeanField_ELBO()
    model, guide = made(method)
    unflip(model)
    randomise(model, 0.05)
    values = [p for module in (model, guide) for p in module.parameters()]
    before = [p.detach().clone() for p in values]
    svi = STOCK(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo)
    losses = [svi.step(make_batch()) for _ in range(16)]
    assert sum(losses[-4:]) < sum(losses[:4])
    for old, new in zip(before, values, strict=True):
        assert torch.equal(old, new) != new.requires_grad
    pyro.clear_param_store()


@pytest.mark.parametrize("method", ["tfb", "laplace"])
def test_training_is_that_of_lora_to_the_bit(method: str) -> None:
    """What is fitted after training leaves training alone."""
    ends = []
    for name in ("lora", method):
        torch.manual_seed(0)
        ends.append(trained(made(name)))
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("scalabl", {"recipe": "reproduction", "kl": "p||q"}),
        ("fvae", {"recipe": "reproduction"}),
    ],
    ids=str,
)
def test_a_reproduced_run_comes_back(method: str, settings: dict[str, object], tmp_path) -> None:
    assert_runs_come_back(tiny_run(tmp_path, {"name": method, **settings}), tmp_path)


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [
        ("scalabl", "kl", "backwards"),
        ("clora", "prior_scale", 0),
        ("mc_dropout", "p", 1),
        ("ensemble", "members", 0),
        ("ensemble", "average", "mean"),
        ("adalora", "orth_weight", -1),
        ("fvae", "beta", -1),
        ("fvae", "recipe", "vae"),
    ],
)
def test_settings_out_of_range_are_named(method: str, setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"method\.{setting} = {value!r}"):
        method_config({"name": method, setting: value})


@pytest.mark.parametrize("method", ["laplace", "vbll", "polar_vbll"])
def test_what_is_fitted_to_answers_of_one_token_refuses_texts(method: str) -> None:
    """The curvature is that of a categorical over tokens."""
    with pytest.raises(ConfigError, match=r"answers of one token each, .*TextLikelihood.*--labels letters"):
        build(method_config(method), backbone(), 4, {"likelihood": TextLikelihood()})
    build(method_config(method), backbone(), 4, {"likelihood": AnswerLikelihood()})


MORE_THAN_ADAPTERS = {"ensemble", "ensemble_temperature", "vbll", "polar_vbll"}


@pytest.mark.parametrize(
    ("method", "draws"), [*((name, 7) for name in METHODS), ("bara", None), ("laplace", None)]
)
def test_logits_are_those_of_predict(method: str, draws: int | None) -> None:
    model, guide = made(method)
    randomise(model)
    batch = replace(make_batch(pad=1), labels=None, ids=())
    of_answers = method == "laplace" and draws is not None  # its draws are no draws of adapters
    if method in MORE_THAN_ADAPTERS or of_answers:
        with pytest.raises(ConfigError, match="use bara_pyro"), bp.attached((model, guide), draws):
            pass
        return
    samples, seed = (0, 0) if draws is None else (1, int(draws))
    with torch.no_grad(), bp.attached((model, guide), draws) as lm:
        positions = (batch.attention_mask.cumsum(-1) - 1).clamp_min(0)
        mask = batch.attention_mask.long()
        out = lm(input_ids=batch.input_ids, attention_mask=mask, position_ids=positions)
    ours = out.logits[:, -1, batch.answer_ids].double().log_softmax(-1)
    assert_close(ours, predict(model, guide, batch, samples=samples, seed=seed)[0], atol=5e-6, rtol=0)


def published(method: str) -> tuple[SiteGuide, TwoStepSVI]:
    """The guide and inference of a method with its published recipe, B = 0, in a cycle of four steps."""
    settings = {"recipe": "reproduction"}
    torch.manual_seed(0)
    pair = made(method, **settings)
    svi = svi_of(method, pair, settings, steps=20, batch_size=64)
    assert isinstance(svi, TwoStepSVI)
    assert svi.cycle == 4
    return pair[1], svi


@pytest.mark.parametrize("method", ["blob", "clora"])
def test_the_weights_double_and_start_again(method: str) -> None:
    _, svi = published(method)
    seen = []
    for _ in range(9):
        seen.append(svi._weight() / svi.kl_weight)
        svi.step(make_batch())
    assert seen == pytest.approx([i / 31 for i in (2, 4, 8, 16, 2, 4, 8, 16, 2)])


@pytest.mark.parametrize("method", ["blob", "scalabl", "clora"])
def test_micro_batches_take_the_step_of_the_whole_batch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With B = 0 the likelihood does not move the guide, and the KL does without noise."""
    monkeypatch.setattr("bara_pyro.methods.clora.KL_WEIGHT", 1.0)
    ends = []
    for pieces in ([[0, 1, 2, 3]], [[0], [1, 2, 3]]):
        guide, svi = published(method)
        start = [p.detach().clone() for p in guide.parameters()]
        svi.step(*(make_batch(choose=rows) for rows in pieces))
        ends.append([p.detach() for p in guide.parameters()])
        moves = [(p - old).abs().max() for p, old in zip(guide.parameters(), start, strict=True)]
        assert min(moves) > 1e-4
    for whole, cut in zip(*ends, strict=True):
        assert_close(cut, whole, rtol=1e-4, atol=1e-6)
