"""Tokens that are read once: for all rows that begin with them, or for all draws of a row."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from core_cases import ANSWERS, CONFIGS, bara_pair, lora_pair, make_batch, mean_forward, pairwise, randomise
from core_cases import backbone as tiny
from torch import Tensor
from torch.testing import assert_close

from bara_pyro.core import prediction, resuming
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.prediction import predict, record
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import Batch
from bara_pyro.fast.prefix import Prefix, common_tokens
from bara_pyro.guides.ensemble import EnsembleGuide
from bara_pyro.guides.normal import NormalGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.verifying import verify
from bara_pyro.models.ensemble import Ensemble
from bara_pyro.models.gaussian_lora import GaussianLoRA

BEGINNING = [5, 9, 2, 31, 8]
ROWS = [[*BEGINNING, 7], [*BEGINNING, 3, 4, 50, 6], [*BEGINNING, 7, 8]]


def rows(texts: list[list[int]] = ROWS) -> Batch:
    return collate_ids(texts, [0] * len(texts), list("abcd")[: len(texts)], ANSWERS, 0)


def blob(arch: str) -> tuple[GaussianLoRA, NormalGuide]:
    torch.manual_seed(4)
    model = GaussianLoRA(tiny(arch), 4, random="A", prior_scale=0.2, r=3)
    randomise(model, 0.3)
    guide = NormalGuide(model, init_scale=0.5)
    return model, guide


def ensemble(arch: str) -> tuple[Ensemble, EnsembleGuide]:
    torch.manual_seed(4)
    model = Ensemble(tiny(arch), 4, r=3)
    randomise(model, 0.3)
    return model, EnsembleGuide(model)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Share what is short, and count what is read."""
    seen: list[int] = []
    read = prediction.shared

    def noted(model, batch: Batch) -> Batch:
        out = read(model, batch)
        seen.append(0 if out.past is None else out.past.mask.shape[1])
        return out

    monkeypatch.setattr(resuming, "LEAST", 3)
    monkeypatch.setattr(prediction, "shared", noted)
    return seen


@pytest.mark.parametrize(
    ("arch", "pair", "samples"), pairwise(CONFIGS, [lora_pair, bara_pair, blob, ensemble], [0, 4])
)
def test_a_shared_beginning_changes_nothing(arch: str, pair, samples: int, reads: list[int]) -> None:
    model, guide = pair(arch)
    if pair is bara_pair:
        randomise(model, 0.3)
    alone = [predict(model, guide, replace(rows([text]), ids=(row,)), samples=samples)
             for row, text in zip("abc", ROWS, strict=True)]  # fmt: skip
    reads.clear()
    together = predict(model, guide, rows(), samples=samples)
    # Log-probabilities of several nats in float32: a part of the error goes with their size.
    assert_close(together, torch.cat(alone, dim=1), rtol=1e-5, atol=2e-5)
    if not (samples and pair is bara_pair):  # whose noise is each row's own
        assert max(reads) == len(BEGINNING)
    else:
        assert not any(reads)


@pytest.mark.parametrize(
    ("arch", "pair", "samples", "upper"),
    pairwise(CONFIGS, [lora_pair, bara_pair, blob, ensemble], [0, 4], [False, True]),
)
def test_the_last_layer_is_run_for_the_last_tokens(
    arch: str, pair, samples: int, upper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for no other, beyond its keys and values: the same answers as where all are run."""
    model, guide = pair(arch)
    if pair is bara_pair:
        randomise(model, 0.3)
    layers = model.backbone.states.layers
    if upper:
        model.frozen_layers = len(layers) - 1  # as if all below held no adapter
        for adapter, layer in model._body:
            inside = layer in layers[-1].modules()
            adapter.lora_B.data.mul_(inside)
    tokens: list[int] = []
    feed_forward = layers[-1].mlp
    handle = feed_forward.register_forward_hook(lambda _, args, out: tokens.append(out.shape[1]))
    found = predict(model, guide, make_batch(), samples=samples)
    assert set(tokens) == {1}
    tokens.clear()
    monkeypatch.setattr(prediction, "narrowed", lambda model, batch: batch)
    assert_close(predict(model, guide, make_batch(), samples=samples), found, rtol=0, atol=2e-5)
    assert min(tokens) > 1
    handle.remove()


def test_a_last_layer_that_does_not_go_on_is_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an architecture that does more with its cache; found out when it is loaded."""
    model, guide = lora_pair("llama")
    own = Backbone(model.backbone.lm)
    verify(own)
    assert own.last_apart
    read = Backbone.read_last

    def forgetful(self: Backbone, *args: Any, **options: Any) -> Prefix:
        past = read(self, *args, **options)
        *told, (keys, values) = past.layers
        return replace(past, layers=(*told, (keys, torch.zeros_like(values))))

    for reading in (forgetful, lambda *args, **options: None):
        monkeypatch.setattr(Backbone, "read_last", reading)
        verify(own)
        assert not own.last_apart
    monkeypatch.setattr(model, "_frozen", (own,))
    truth = mean_forward(model, guide, make_batch())  # what cannot be read is not asked for
    assert_close(predict(model, guide, make_batch(), samples=0)[0].float(), truth, rtol=0, atol=2e-5)


def test_what_all_rows_of_a_forward_share_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last layer is run apart; each piece of a batch draws the same again."""
    drawn: list[int] = []
    draw = CounterNoise.draw_global

    def noted(self, site: str, fn) -> Tensor:
        drawn.append(len(self.draws))
        return draw(self, site, fn)

    monkeypatch.setattr(CounterNoise, "draw_global", noted)
    model, guide = blob("qwen2")
    whole = predict(model, guide, make_batch(), samples=4)
    sites, calls = len(model.latents.sites), len(drawn)
    assert (sites, set(drawn)) == (calls, {4})
    each = prediction._bytes_per_row(model, make_batch(), make_batch().input_ids.shape[1])
    drawn.clear()
    rows = predict(model, guide, make_batch(), samples=4, memory_budget=4 * each)  # a row at a time
    assert drawn == [4] * sites * len(make_batch())
    drawn.clear()
    draws = predict(model, guide, make_batch(), samples=4, memory_budget=2 * each)  # two of its draws
    assert drawn == [2] * 2 * sites * len(make_batch())
    for other in (rows, draws):
        assert_close(other, whole, rtol=0, atol=2e-5)


def test_common_tokens() -> None:
    assert common_tokens(rows()) == 5
    assert common_tokens(rows([[5, 9], [5, 9, 7]])) == 1  # the last token of a row is its own
    assert common_tokens(rows([[4, 9, 1], [5, 9, 7]])) == 0


@pytest.mark.parametrize(("arch", "pair"), pairwise(CONFIGS, [lora_pair, bara_pair]))
def test_lower_layers_are_not_run_again(arch: str, pair, reads: list[int]) -> None:
    """Neither for what is shared nor for what goes on from it: the same answers as of all layers."""
    upper = r".*\.1\..*(q_proj|v_proj|query_key_value|c_attn)|lm_head|embed_out"
    model, guide = pair(arch, target_modules=upper)
    randomise(model, 0.3)
    assert model.frozen_layers == 1
    found = predict(model, guide, rows(), samples=4)
    calls: list[object] = []
    children = model.backbone.states.layers[0].children()
    handles = [child.register_forward_hook(lambda *_: calls.append(1)) for child in children]
    assert torch.equal(predict(model, guide, rows(), samples=4), found)
    assert not calls
    model.frozen_layers = 0
    assert_close(found, predict(model, guide, rows(), samples=4), rtol=1e-5, atol=1e-5)
    assert calls
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("latent", ["phi*theta", "phi", "theta"])
@pytest.mark.parametrize("samples", [0, 3])
def test_recorded_gates_are_those_of_every_token_of_rows_that_begin_alike(
    latent: str, samples: int, reads: list[int]
) -> None:
    model, guide = bara_pair(seed=1, scale=0.3, move=0.3, latent=latent)
    [together] = record(model, guide, rows(), samples=samples)
    assert not any(reads)  # what was read for all rows at once would not be seen
    assert_close(together.log_probs, predict(model, guide, rows(), samples=samples), rtol=1e-5, atol=2e-5)
    for row, text in enumerate(ROWS):
        alone = replace(rows([text]), ids=("abc"[row],))
        [piece] = record(model, guide, alone, samples=samples)
        assert piece.values.keys() == together.values.keys()
        for name, value in piece.values.items():
            found = together.values[name]
            if name in model.latents.local_sites:
                found = found[..., row : row + 1, -value.shape[-2] :, :]
            assert_close(found, value, rtol=1e-5, atol=1e-6)
