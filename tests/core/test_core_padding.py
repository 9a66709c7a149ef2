"""Left padding changes nothing: a row alone gives what it gives in a padded batch."""

import pytest
import torch
from core_cases import CONFIGS, ROWS, backbone, bara_pair, lora_pair, make_batch, mean_forward, plain_forward
from torch.testing import assert_close


@pytest.mark.parametrize("arch", CONFIGS)
@pytest.mark.parametrize("method", ["lora", "additive", "gate"])
def test_each_row_alone_equals_the_batch(arch: str, method: str) -> None:
    lora = method == "lora"
    model, guide = lora_pair(arch) if lora else bara_pair(arch, scale=0.3, form=method)
    # The pad token is a word that occurs in the rows: only the mask may keep it out.
    together = mean_forward(model, guide, make_batch(pad=3, pad_id=5))
    for i in range(len(ROWS)):
        alone = mean_forward(model, guide, make_batch(choose=[i]))
        assert_close(together[i : i + 1], alone, rtol=0, atol=1e-5)


def test_absolute_positions_count_from_the_first_real_token() -> None:
    # A guard for the guard: GPT-2 without position_ids does change with padding.
    lm = backbone("gpt2").lm
    batch, padded = make_batch(choose=[0]), make_batch(choose=[0], pad=4)
    with torch.no_grad():
        naive = lm(input_ids=padded.input_ids, attention_mask=padded.attention_mask.long()).logits[:, -1]
        own = lm(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long()).logits[:, -1]
        assert_close(plain_forward(padded, lm), plain_forward(batch, lm), rtol=0, atol=1e-5)
        hidden = backbone("gpt2").hidden(padded.input_ids, padded.attention_mask)[:, -1]
    assert_close(backbone("gpt2").logits(hidden), own, rtol=0, atol=1e-5)
    assert (naive - own).abs().max() > 1e-2
