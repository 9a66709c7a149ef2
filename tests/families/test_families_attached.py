"""`attached` in every family: logits as `predict` has them, the same text with and without a cache."""

from dataclasses import replace

import pytest
import torch
from family_cases import FAMILIES, make_lm, modules_with_hooks
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.backbone import Backbone
from bara_pyro.core.prediction import predict
from bara_pyro.data.split import collate_ids
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

ROWS = [[3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 4]]


@pytest.mark.parametrize("draws", [None, 3])
@pytest.mark.parametrize("family", FAMILIES)
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
