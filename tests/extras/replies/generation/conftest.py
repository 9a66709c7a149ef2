"""A tiny language model with a tokenizer, and BaRA on it with gates that matter."""

import pytest
import torch
from app_cases import save_backbone
from generation_cases import Pair, adapted

from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.loading import load_backbone


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """Thirty tokens, one of which ends a text."""
    return load_backbone(str(save_backbone(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture
def bara(tiny: Backbone) -> Pair:
    """BaRA's gate form, whose draws differ much."""
    torch.manual_seed(1)
    return adapted("bara-gate", tiny)
