"""Rows that are asked through a chat template, and what a prompt and its answers have to be."""

from typing import Any

from bara_pyro.data import Example, answer_token_ids, encode
from bara_pyro.data.tokens import text_tokens
from bara_pyro.data.types import ChatFrame

ROWS = (
    Example("a", "Is it warm?\nAnswer:", 0),
    Example("b", "Answer:", 1, context="The parcel is late. It was sent in May."),
    Example("c", "Will it come?\nAnswer:", 1, context="The parcel is late. It was sent in May."),
)
ASKED = (
    "Is it warm?",
    "The parcel is late. It was sent in May.",
    "The parcel is late. It was sent in May.\nWill it come?",
)


def conversation(tokenizer: Any, said: str, answer: str, system: str | None = None) -> list[int]:
    opening = [] if system is None else [{"role": "system", "content": system}]
    turns = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    return tokenizer.apply_chat_template([*opening, *turns], return_dict=False)


def prompts_that_begin_conversations(
    tokenizer: Any, frame: ChatFrame, system: str | None, most: int = 300
) -> list[list[int]]:
    """Return the prompts of `ROWS`; each, with any answer behind it, begins the template's conversation."""
    letters = answer_token_ids(tokenizer, ["A", "B"], frame).tolist()
    answers = {"A": [letters[0]], "B": [letters[1]]}
    answers |= {text: text_tokens(tokenizer, text, frame) for text in ("not bad", "good")}
    assert len(answers["not bad"]) > 1
    prompts = [list(prompt) for prompt in encode(ROWS, tokenizer, most, chat=frame).token_ids]
    for prompt, said in zip(prompts, ASKED, strict=True):
        for answer, tokens in answers.items():
            whole = conversation(tokenizer, said, answer, system)
            assert whole[: len(prompt) + len(tokens)] == [*prompt, *tokens]
    return prompts
