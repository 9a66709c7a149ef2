"""Every family of language models: attached, trained, read back, detached, generating; its own logits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from app_cases import Place, word_tokenizer
from family_cases import FAMILIES, PAGE, make_lm, modules_with_hooks, page_with, table
from torch.testing import assert_close
from whole_case import check_trained_saved_read_and_detached

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.data.split import collate_ids
from bara_pyro.data.types import TokenRows
from bara_pyro.errors import BackboneError
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.lm.verifying import verify
from bara_pyro.models.bara import BaRA
from bara_pyro.models.lora import LoRA

ROWS = [[3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 4]]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_without_an_adapter_are_the_models_own(family: str) -> None:
    """On padded rows, against the model's own forward of each row by itself."""
    lm = make_lm(family)
    backbone = Backbone(lm)
    verify(backbone)
    batch = collate_ids(ROWS, [0, 1, 0], ["a", "b", "c"], torch.tensor([3, 5, 7]), 1)
    model = LoRA(backbone, 3, r=2)
    hidden = backbone.hidden(batch.input_ids, batch.attention_mask)[:, -1:]
    found = model.logits([None] * len(model.targets), hidden)[:, 0]
    alone = [lm(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1] for row in ROWS]
    assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
    own = lm(input_ids=torch.tensor([ROWS[1]]), use_cache=False).logits[0, :-1].log_softmax(-1)
    row = backbone.hidden(torch.tensor([ROWS[1]]), torch.ones(1, 6, dtype=torch.long))[:, :-1]
    distribution = model.next_token([None] * len(model.targets), row)
    following = torch.tensor([ROWS[1][1:]])
    assert_close(distribution.log_prob(following)[0], own.gather(-1, following.T)[:, 0], rtol=1e-4, atol=1e-5)
    resumed = backbone.hidden(batch.input_ids, batch.attention_mask, below=1)[:, -1:]
    assert_close(resumed, hidden, rtol=1e-4, atol=1e-5)
    past = backbone.read(TokenRows(batch.input_ids[:, :-1], batch.attention_mask[:, :-1]))
    rest = (batch.input_ids[:, -1:], batch.attention_mask[:, -1:])
    assert_close(backbone.hidden(*rest, past=past)[:, -1:], hidden, rtol=1e-4, atol=1e-5)
    assert backbone.states.layers, "run whole where lower layers could be kept"
    assert backbone.last_apart
    for width in (1, 2):
        past = backbone.read_last(TokenRows(batch.input_ids, batch.attention_mask), copies=2, width=width)
        assert past is not None, "run whole where the last layer could be left for the last tokens"
        rest = (batch.input_ids[:, -width:], batch.attention_mask[:, -width:])
        found = backbone.hidden(*rest, past=past, copies=2)[:, -1:]
        assert_close(found, hidden.repeat(2, 1, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["GPT-2", "Falcon", "Mixtral", "Cohere", "Gemma 3 with images (its text tower)"]
)
def test_trained_saved_read_and_detached(family: str, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    make_lm(family).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    check_trained_saved_read_and_detached(folder, place, tmp_path / "run", torch.tensor(ROWS[1:2]))


def test_a_tower_for_images_is_left_alone() -> None:
    for family in ("LLaVA (its text tower)", "Gemma 3 with images (its text tower)"):
        lm = make_lm(family)
        assert any("vision" in name and name.endswith("q_proj") for name, _ in lm.named_modules())
        assert not [t.path for t in find_targets(lm, "all-linear") if "vision" in t.path]


@pytest.mark.parametrize("family", ["Gemma 2", "Granite"])
def test_logits_that_are_not_known_are_refused(family: str) -> None:
    """A guard: without what the architecture does to its logits the comparison fails."""
    backbone = Backbone(make_lm(family))
    backbone._cap, backbone._scale = None, 1.0
    with pytest.raises(BackboneError, match="changes its logits"):
        verify(backbone)


def test_a_new_output_layer_is_read_off_the_model() -> None:
    """A model of the Llama family whose logits are squared: no setting of its configuration says so."""
    lm = make_lm("Llama, SmolLM2")
    lm.lm_head.register_forward_hook(lambda layer, args, output: output.square())
    backbone = Backbone(lm)
    backbone.logits = lambda hidden, rows=None: hidden @ lm.lm_head.weight.T  # as `rows` are computed
    with pytest.raises(BackboneError, match="LlamaForCausalLM changes its logits"):
        verify(backbone)


def test_an_adapted_soft_cap_bends_the_sum() -> None:
    """The cap comes after the adapter, as it would if the adapter were merged into the output layer."""
    backbone = Backbone(make_lm("Gemma 2"))
    torch.manual_seed(0)
    model = LoRA(backbone, 3, r=2, target_modules=["lm_head"])
    adapter = model.adapters["lm_head"]
    with torch.no_grad():
        adapter.lora_B.normal_()
        batch = collate_ids(ROWS, [0, 1, 0], ["a", "b", "c"], torch.tensor([3, 5, 7]), 1)
        hidden = backbone.hidden(batch.input_ids, batch.attention_mask)[:, -1:]
        merged = backbone.lm.lm_head.weight + adapter.scaling * adapter.lora_B @ adapter.lora_A
        truth = 3.0 * torch.tanh(hidden @ merged.T / 3.0)
        assert_close(model.logits([None], hidden), truth, rtol=1e-4, atol=1e-5)
        assert DeltaGuide(model).model is model


def test_the_table_of_the_docs_is_read_off_the_models() -> None:
    assert page_with(table()) == PAGE.read_text(), "python tests/families/family_cases.py writes it anew"


@pytest.mark.parametrize(("family", "draws"), [*((name, 3) for name in FAMILIES), ("Gemma 2", None)])
@torch.no_grad()
def test_forward_and_generate(family: str, draws: int | None) -> None:
    lm = make_lm(family)
    torch.manual_seed(0)
    model = BaRA(Backbone(lm), 3, r=2, form="gate")
    for name, value in model.named_parameters():
        if name.endswith("lora_B"):
            value.normal_(std=0.3)
    pair = (model, WeibullGuide(model))
    batch = collate_ids(ROWS, [0, 1, 0], ["a", "b", "c"], torch.tensor([3, 5, 7]), 1)
    batch = replace(batch, labels=None, ids=())
    mask = batch.attention_mask.long()
    given = {"input_ids": batch.input_ids, "attention_mask": mask}
    samples, seed = (0, 0) if draws is None else (1, int(draws))
    with bp.attached(pair, draws):
        out = lm(**given, position_ids=(mask.cumsum(-1) - 1).clamp_min(0), use_cache=False)
        options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "pad_token_id": 1}
        cached, whole = (
            lm.generate(**given, **options, use_cache=cache, return_dict_in_generate=True)
            for cache in (True, False)
        )
    ours = out.logits[:, -1, batch.answer_ids].double().log_softmax(-1)
    assert_close(ours, predict(*pair, batch, samples=samples, seed=seed)[0], rtol=0, atol=1e-4)
    assert torch.equal(cached.sequences, whole.sequences)
    assert_close(cached.logits, whole.logits, rtol=1e-3, atol=1e-3)
    assert modules_with_hooks(lm) == []
