"""Questions through chat templates of public models, byte for byte as TRL keeps them for its comparisons."""

from datetime import datetime, tzinfo
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import pytest
from chat_cases import prompts_that_begin_conversations
from data_cases import byte_level
from transformers.utils import chat_template_utils

from bara_pyro.data import chat_frame
from bara_pyro.errors import DataError

TRL = find_spec("trl")
FOLDER = Path(TRL.origin or "").parent / "chat_templates" if TRL else Path()
pytestmark = pytest.mark.skipif(TRL is None, reason="trl is not installed")

# Name -> whether the template knows system messages.
PUBLISHED = {
    "cohere": True,
    "deepseek_r1_distill": True,
    "deepseekv3": True,
    "gemma": False,
    "gemma3": True,
    "glm4moe": True,
    "gptoss": True,
    "lfm2": True,
    "llama3": True,
    "llama3_1": True,
    "llama3_2": True,
    "phi3": True,
    "phi3_5": True,
    "qwen2_5": True,
    "qwen3": True,
    "qwen3_instruct_2507": True,
}


class OneDay(datetime):
    """The day that dated templates see, so that a run has the same prompts every day."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2024, 7, 26, tzinfo=tz)


@pytest.mark.parametrize("system", [None, "Sort the mail."])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_conversation_begins_with_prompt_and_answer(
    name: str, system: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", OneDay)
    tokenizer = byte_level((("g", "o"), ("o", "d"), ("go", "od")), bos_token="<s>")
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()
    tokenizer.name_or_path = "some/model"
    if system and not PUBLISHED[name]:
        with pytest.raises(DataError, match=r"some/model has no system message.*--system"):
            chat_frame(tokenizer, system)
        return
    frame = chat_frame(tokenizer, system)
    # A byte is a token here, so that prompts are longer than with the model's own tokenizer.
    prompts_that_begin_conversations(tokenizer, frame, system, most=1000)
