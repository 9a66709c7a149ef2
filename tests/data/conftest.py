"""Where the real rows and weights are."""

import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

SHARED = Path(os.environ.get("BARA_SHARED") or Path(__file__).parents[3] / "shared")


@pytest.fixture(scope="session")
def rows_dir() -> Path:
    if not (SHARED / "data").is_dir():
        pytest.skip(f"the real rows are not at {SHARED / 'data'} (set BARA_SHARED)")
    return SHARED / "data"


@pytest.fixture(scope="session")
def llama():
    folder = SHARED / "models" / "tinystories-llama-260k"
    if not folder.is_dir():
        pytest.skip(f"the real Llama is not at {folder} (set BARA_SHARED)")
    return AutoTokenizer.from_pretrained(folder)
