"""`attached` with every method's program: its mean and one draw are those of `predict`."""

from dataclasses import replace

import pytest
import torch
from core_cases import make_batch, randomise
from method_cases import made
from torch.testing import assert_close

import bara_pyro as bp
from bara_pyro.core.prediction import predict
from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS

MORE_THAN_ADAPTERS = {"ensemble", "ensemble_temperature", "vbll", "polar_vbll"}


@pytest.mark.parametrize("draws", [None, 7])
@pytest.mark.parametrize("method", list(METHODS))
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
