"""Prediction: reproducible row by row, whatever the batch, the padding and the memory."""

import math
import re
from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from core_cases import backbone, bara_pair, hooked_forward, lora_pair, make_batch, parts_of, seen
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from bara_pyro.core import prediction
from bara_pyro.core.posterior import Addressed, addresses_of
from bara_pyro.core.prediction import predict, record
from bara_pyro.errors import ConfigError
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.coupled import CoupledWeibullGuide
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.families import FAMILIES
from bara_pyro.guides.gamma import GammaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

S = 6
GUIDES = [FAMILIES[name] for name in sorted(FAMILIES)]  # what is registered, whoever wrote it
# The mean of the coupled theta moves with Phi, which tests/core/test_coupled.py has.
APART = [guide for guide in GUIDES if guide is not CoupledWeibullGuide]


def toy(guide: type = WeibullGuide, arch: str = "qwen2", **options: object) -> tuple[BaRA, AmortizedGuide]:
    return bara_pair(arch, guide, seed=2, scale=0.2, move=0.2, **{"form": "gate", **options})


def close(first: Tensor, second: Tensor) -> None:
    assert_close(first, second, rtol=0, atol=1e-5)


@pytest.mark.parametrize("guide", GUIDES)
def test_shape_type_and_normalisation(guide: type) -> None:
    out = predict(*toy(guide), make_batch(), samples=S)
    assert out.shape == (S, 4, 3)
    assert out.dtype == torch.float64
    assert not out.requires_grad
    assert_close(out.logsumexp(-1), torch.zeros(S, 4, dtype=torch.float64), rtol=0, atol=1e-14)
    if guide is not DeltaGuide:
        assert (out.exp().std(0) > 1e-4).all()


@pytest.mark.parametrize("guide", GUIDES)
def test_the_seed_decides(guide: type) -> None:
    pair = toy(guide)
    first = predict(*pair, make_batch(), samples=S, seed=3)
    torch.manual_seed(99)
    assert torch.equal(first, predict(*pair, make_batch(), samples=S, seed=3))
    other = predict(*pair, make_batch(), samples=S, seed=4)
    assert ((first - other).abs() > 1e-4).any() == (guide is not DeltaGuide)


@pytest.mark.parametrize("latent", ["phi", "theta"])
@pytest.mark.parametrize("guide", [WeibullGuide, GammaGuide])
def test_the_seed_decides_each_kind_of_draw(guide: type, latent: str) -> None:
    """Of distributions whose noise is fixed, and of those that are drawn one by one."""
    pair = toy(guide, latent=latent)
    first, second = (predict(*pair, make_batch(), samples=S, seed=seed) for seed in (3, 4))
    assert ((first - second).abs() > 1e-4).any()


@pytest.mark.parametrize("arch", ["qwen2", "gpt2"])
@pytest.mark.parametrize("guide", GUIDES)
def test_company_order_and_padding_do_not_matter(guide: type, arch: str) -> None:
    pair = toy(guide, arch)
    whole = predict(*pair, make_batch(), samples=S)
    order = [2, 0, 3, 1]
    close(predict(*pair, make_batch(choose=order), samples=S), whole[:, order])
    close(predict(*pair, make_batch(pad=4, pad_id=5), samples=S), whole)
    for row in range(4):
        close(predict(*pair, make_batch(choose=[row]), samples=S), whole[:, [row]])


@pytest.mark.parametrize(
    ("guide", "samples"), [*((guide, s) for guide in GUIDES for s in (0, 3)), (WeibullGuide, 1)]
)
def test_memory_does_not_matter(guide: type, samples: int) -> None:
    pair = toy(guide)
    whole = predict(*pair, make_batch(), samples=samples)
    seen = set()
    for budget in (1, 20_000, 60_000, 200_000):  # from one draw of one row at a time
        calls: list = []
        handle = backbone().lm.base_model.register_forward_hook(lambda *_, c=calls: c.append(1))
        close(predict(*pair, make_batch(), samples=samples, memory_budget=budget), whole)
        handle.remove()
        seen.add(len(calls))
    assert max(seen) == 4 * (max(1, samples) if guide.stochastic else 1)  # all draws of a point are one
    assert len(seen) > 1


def test_a_forward_on_a_cpu_holds_so_many_tokens_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default: what fits the caches, or those tokens, but never more than the most."""
    pair, batch = toy(), make_batch()
    width = batch.input_ids.shape[1]
    each = prediction._bytes_per_row(pair[0], batch, width)

    def sequences(cache: int, tokens: int, most: int) -> set[int]:
        monkeypatch.setattr(prediction, "CPU_BUDGET", cache)
        monkeypatch.setattr(prediction, "CPU_TOKENS", tokens)
        monkeypatch.setattr(prediction, "CPU_MOST", most)
        return {len(drawn.log_probs) * drawn.log_probs.shape[1] for drawn in record(*pair, batch, samples=S)}

    assert sequences(0, S * width, 2**30) == {S}  # all draws of one row
    assert sequences(0, S * width, 2 * each) == {2}
    assert sequences(2 * S * each, S * width, 2**30) == {2 * S}
    assert sequences(0, 1, 2**30) == {1}  # no row is cut


def test_rows_without_identifiers_are_told_apart_by_their_place() -> None:
    pair = toy()
    batch = replace(make_batch(((5, 7, 9),) * 4), ids=())  # four times the same question
    whole = predict(*pair, batch, samples=S)
    close(predict(*pair, batch, samples=S, memory_budget=1), whole)
    assert (whole[:, 0] - whole[:, 1]).abs().max() > 1e-3


def test_the_identifier_decides_a_rows_noise() -> None:
    pair = toy(latent="theta")
    same = replace(make_batch(((5, 7, 9),) * 4), ids=("a", "b", "a", "c"))
    out = predict(*pair, same, samples=S)
    close(out[:, 0], out[:, 2])
    assert (out[:, 0] - out[:, 1]).abs().max() > 1e-3


def test_global_draws_are_shared_by_rows_and_batches() -> None:
    # phi alone, additive form: all rows with one prompt must get one answer a draw.
    pair = toy(latent="phi")
    out = predict(*pair, make_batch(((5, 7, 9),) * 4), samples=S)
    close(out, out[:, :1].expand_as(out))
    assert (out[0] - out[1]).abs().max() > 1e-3
    other = replace(make_batch(((5, 7, 9),), choose=[0]), ids=("z",))
    close(predict(*pair, other, samples=S), out[:, :1])


@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("guide", [*GUIDES, "lora"])
def test_torchs_generator_is_left_alone(guide: type | str, samples: int) -> None:
    pair = lora_pair() if guide == "lora" else toy(guide)
    before = torch.get_rng_state()
    predict(*pair, make_batch(), samples=samples)
    assert torch.equal(before, torch.get_rng_state())


def test_labels_are_not_looked_at() -> None:
    pair, batch = toy(), make_batch()
    wrong = replace(batch, labels=(batch.labels + 1) % 3)
    assert torch.equal(predict(*pair, wrong, samples=2), predict(*pair, batch, samples=2))
    assert torch.equal(
        predict(*pair, replace(batch, labels=None), samples=2), predict(*pair, batch, samples=2)
    )


@pytest.mark.parametrize("form", ["additive", "gate"])
@pytest.mark.parametrize("guide", APART)
def test_no_draws_means_the_mean_gate(guide: type, form: str) -> None:
    model, fitted = toy(guide, form=form)
    paths = [t.path for t in model.targets]
    raw = {
        name: fitted.sites[name.replace(".", "/")].weight for name in ("phi", *(f"theta/{p}" for p in paths))
    }

    def change(path: str, x: Tensor) -> Tensor:
        gate = F.softplus(seen(model, x) @ raw[f"theta/{path}"][:3].T) * F.softplus(
            raw["phi"][paths.index(path), :3]
        )
        up, down = parts_of(model, path)
        return 16 / 3 * (gate if down is None else gate * (x @ down.T)) @ up.T

    with torch.no_grad():
        truth = hooked_forward(make_batch(), backbone().lm, paths, "lm_head", change).double()
    out = predict(model, fitted, make_batch(), samples=0)
    assert out.shape == (1, 4, 3)
    close(out[0], truth)


def test_without_noise_the_draws_are_the_mean_gate() -> None:
    gaps = []
    for kappa in (0.01, 0.04, 0.16):
        model, guide = bara_pair(seed=2, scale=0.2, fit={"init_kappa": kappa}, form="gate")
        with torch.no_grad():
            for weight in guide.sites.parameters():
                weight[3:] = 0.0 if weight.shape[0] == 6 else weight[3:]
        point = predict(model, guide, make_batch(), samples=0).exp()
        draws = predict(model, guide, make_batch(), samples=10).exp()
        gaps.append(float((draws - point).abs().mean()))
    assert gaps[0] < 0.01
    # The spread of a gate is about 1.28 kappa: the gap shrinks with it.
    assert gaps[0] < 0.5 * gaps[1] < 0.25 * gaps[2]


def test_a_guides_own_predictive_gets_the_arguments_of_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def own(batch, samples, seed):
        asked.append((batch.ids, samples, seed))
        return torch.zeros(samples, len(batch), 3, dtype=torch.float64)

    pair = toy()
    monkeypatch.setattr(pair[1], "predictive", own)
    assert predict(*pair, make_batch(), samples=5, seed=7, memory_budget=1).shape == (5, 4, 3)
    assert asked == [((row,), 5, 7) for row in make_batch().ids]


def test_recorded_draws_keep_the_mask_and_the_memory_budget() -> None:
    pair, batch = toy(), make_batch()
    (whole,) = record(*pair, batch, samples=S)
    assert torch.equal(whole.mask, batch.attention_mask.bool())
    pieces = list(record(*pair, batch, samples=S, memory_budget=1))
    assert [(p.log_probs.shape[:2], p.mask.shape[0]) for p in pieces] == [((1, 1), 1)] * S * len(batch)
    for p in pieces:
        close(p.log_probs, whole.log_probs[p.draws, p.rows])


def test_lora_repeats_its_one_answer() -> None:
    pair = lora_pair()
    out = predict(*pair, make_batch(), samples=5)
    assert out.shape == (5, 4, 3)
    assert torch.equal(out, predict(*pair, make_batch(), samples=0).expand(5, -1, -1))


@pytest.mark.parametrize("samples", [-1, 1.0, True, "a", [10]])
def test_what_is_no_number_of_draws_is_refused(samples: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"samples={samples!r}")):
        predict(*toy(), make_batch(), samples=samples)


def test_the_distribution_of_a_draw_is_the_guides() -> None:
    # One token, one row, head only: theta's draws against the moments of the posterior.
    model, guide = toy(latent="theta", target_modules=["lm_head"], form="additive")
    batch = make_batch(((5, 7, 9),), choose=[0])
    seen: dict[str, Tensor] = {}

    class Spy(Addressed):
        def value(self, name: str, fn: torch.distributions.Distribution) -> Tensor:
            seen[name], seen["mean"] = super().value(name, fn), fn.mean
            seen["variance"] = fn.variance
            return seen[name]

    count = 20_000
    addresses = addresses_of(batch, 0, slice(0, count))
    with torch.no_grad(), pyro.plate("draws", count, dim=-3), Spy(guide, addresses):
        model.forward(replace(batch, labels=None))
    draws = seen["theta/lm_head"].reshape(count, 3).double()
    mean, variance = seen["mean"][0].flatten().double(), seen["variance"][0].flatten().double()
    assert ((draws.mean(0) - mean).abs() < 4 * (variance / count).sqrt()).all()
    centred = (draws - mean).square()
    assert ((centred.mean(0) - variance).abs() < 4 * centred.std(0) / math.sqrt(count)).all()
    # And the draws do not depend on each other.
    unit = (draws - mean) / variance.sqrt()
    assert ((unit[1:] * unit[:-1]).mean(0).abs() < 4 / math.sqrt(count)).all()


def test_the_guide_of_another_model_is_refused() -> None:
    model, _ = toy()
    _, guide = toy()
    with pytest.raises(ConfigError, match="made for another model"):
        predict(model, guide, make_batch(), samples=1)


def test_nested_draws_share_the_global_gates() -> None:
    # Where Phi is all there is, the draws of one group are the same, those of two are not.
    model, guide = toy(latent="phi")
    nested = predict(model, guide, make_batch(), samples=S, repeats=3)
    assert torch.equal(nested[0], nested[2])
    assert not torch.allclose(nested[2], nested[3], atol=1e-4)
    # The groups are the draws that there are without repeating.
    close(nested[::3], predict(model, guide, make_batch(), samples=S // 3))
    # And theta is drawn anew within a group.
    model, guide = toy(latent="theta")
    assert torch.equal(
        predict(model, guide, make_batch(), samples=S, repeats=3),
        predict(model, guide, make_batch(), samples=S),
    )


def test_nested_draws_are_cut_like_others() -> None:
    pair = toy()
    whole = predict(*pair, make_batch(), samples=S, repeats=2)
    close(predict(*pair, make_batch(), samples=S, repeats=2, memory_budget=20_000), whole)
    with pytest.raises(ConfigError, match="multiple of repeats=4"):
        predict(*pair, make_batch(), samples=S, repeats=4)
