import pytest
from core_cases import backbone, make_batch

from bara_pyro.data.types import Batch
from bara_pyro.lm.backbone import Backbone


@pytest.fixture
def qwen() -> Backbone:
    return backbone("qwen2")


@pytest.fixture
def batch() -> Batch:
    """Four rows of 3, 7, 2 and 4 tokens, left-padded, labelled."""
    return make_batch()
