"""Turns of a conversation, in every way that rows have them: each is read once, or the row is refused."""

import pytest
from app_cases import word_tokenizer

from bara_pyro.data.chat import encode_replies
from bara_pyro.data.conversations import load_conversations
from bara_pyro.errors import DataError

TEMPLATE = (
    "{% for m in messages %} the {{ m['role'] }} {{ m['content'] }} <end>{% endfor %}"
    "{% if add_generation_prompt %} the assistant {% endif %}"
)


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


Q1, A1, Q2, A2 = (
    said("user", "is the fox red ?"),
    said("assistant", "yes"),
    said("user", "is the hen blue ?"),
    said("assistant", "no"),
)
NEW = said("user", "is the owl grey ?")
BE, CALL, TOOL = said("system", "no cat"), said("assistant", "the ant"), said("tool", "red")
TALK = [Q1, A1, Q2, A2]


@pytest.mark.parametrize(
    ("row", "whole"),
    [
        ({"prompt": Q1["content"], "chosen": TALK}, TALK),
        ({"prompt": "is the fox red ?\n", "chosen": TALK}, [said("user", "is the fox red ?\n"), A1, Q2, A2]),
        ({"question": Q1["content"], "chosen": [A1, Q2, A2]}, TALK),
        ({"instruction": "is the fox", "input": "red ?", "output": [A1, Q2, A2]},
         [said("user", "is the fox\nred ?"), A1, Q2, A2]),
        ({"prompt": [Q1], "completion": TALK}, TALK),
        ({"prompt": [Q1, A1, Q2], "completion": TALK}, TALK),
        ({"prompt": [Q1, A1], "completion": [Q2, A2]}, TALK),
        ({"prompt": [Q1], "completion": [A1, Q2, A2]}, TALK),
        ({"prompt": [Q1], "completion": [CALL, TOOL, A1]}, [Q1, CALL, TOOL, A1]),
        ({"prompt": [BE, Q1], "completion": TALK}, [BE, *TALK]),
        ({"prompt": [BE, Q1], "completion": [BE, *TALK]}, [BE, *TALK]),
        ({"prompt": Q1["content"], "completion": [BE, *TALK]}, [BE, *TALK]),
        ({"prompt": [BE], "completion": TALK}, [BE, *TALK]),
        ({"prompt": [Q1], "completion": [A1]}, [Q1, A1]),
        ({"prompt": Q1["content"], "completion": [Q1, A1]}, [Q1, A1]),
    ],
)  # fmt: skip
def test_every_turn_is_read_once(row: dict, whole: list) -> None:
    """Prompt and reply together are what a chat template makes of the conversation."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    [found] = load_conversations([row])
    assert [*found.prompt, said("assistant", found.reply)] == whole
    [[encoded]] = encode_replies([found], tokenizer).rows
    text = tokenizer.apply_chat_template(whole, tokenize=False)
    assert [*encoded.prompt, *encoded.reply] == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(encoded.reply) == f"{whole[-1]['content']} <end>"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [Q1], "completion": [Q2]}, "The last of 1 messages of row 1 .* is the user's"),
        ({"prompt": "is the fox red ?", "chosen": [Q1, A1, Q2]}, "The last of 3 messages .* is the user's"),
        ({"prompt": [Q1], "completion": [CALL, TOOL]}, "The last of 2 messages .* is the tool's"),
        ({"prompt": "is the fox red ?", "chosen": [NEW, A1]}, "begin with the user's 'is the owl grey"),
        ({"prompt": Q2["content"], "chosen": TALK}, "begin with the user's 'is the fox red"),
        ({"question": Q2["content"], "chosen": [BE, *TALK]}, "differs from 'question': leave 'question'"),
        ({"prompt": [said("system", "red"), Q1], "completion": [BE, *TALK]}, "begin with the system's 'no"),
    ],
)
def test_messages_that_are_no_reply_to_the_prompt(row: dict, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        load_conversations([row])
    assert str(caught.value).count(". ") == 0
