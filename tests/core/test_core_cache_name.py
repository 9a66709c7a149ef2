"""Keys and values are handed over under the name that the language model has for them."""

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaModel

from bara_pyro.lm.inputs import CACHE_NAMES, cache_argument, given_cache


class Newer(nn.Module):
    def forward(self, input_ids: Tensor, cache: object = None) -> Tensor:
        return input_ids


class Older(nn.Module):
    def forward(self, input_ids: Tensor, past_key_values: object = None) -> Tensor:
        return input_ids


def test_the_name_is_the_models() -> None:
    assert cache_argument(Newer()) == "cache"
    assert cache_argument(Older()) == "past_key_values"


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_either_name_is_found(name: str) -> None:
    kept = DynamicCache()
    assert given_cache({"input_ids": torch.ones(1), name: kept}) is kept
    assert given_cache({name: None}) is None
    assert given_cache({CACHE_NAMES[0]: None, CACHE_NAMES[1]: kept}) is kept


def test_the_installed_transformers_takes_it_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    body = LlamaModel(
        LlamaConfig(
            hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=8
        )
    )
    cache = DynamicCache()
    body(input_ids=torch.ones(1, 3, dtype=torch.long), use_cache=True, **{cache_argument(body): cache})
    assert cache.get_seq_length() == 3
    assert not list(recwarn)
