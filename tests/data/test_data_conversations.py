"""Prompts with replies: TRL's formats, chat templates, what fits; tokens against transformers' own."""

import json
from pathlib import Path

import pytest
from data_cases import byte_level, word_level

from bara_pyro.data.chat import encode_replies
from bara_pyro.data.conversations import Conversation, load_conversations
from bara_pyro.data.reply_tasks import replies_from_rows
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.generation import load_prompts
from bara_pyro.extras.replies.reward.files import replies_in

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
HI = {"role": "user", "content": "hi you"}
YES = {"role": "assistant", "content": "yes, me"}
BE = {"role": "system", "content": "be kind"}


def chatty():
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize(
    ("row", "prompt", "reply"),
    [
        ({"messages": [BE, HI, YES]}, (BE, HI), "yes, me"),
        ({"prompt": "2 + 2 =", "completion": " 4"}, "2 + 2 =", " 4"),
        ({"prompt": [HI], "completion": [YES]}, (HI,), "yes, me"),
        ({"prompt": "hi you", "chosen": [HI, YES], "rejected": [HI]}, (HI,), "yes, me"),
        ({"prompt": "hi you", "chosen": "yes, me", "rejected": "no"}, "hi you", "yes, me"),
        ({"prompt": "a", "response": "b"}, "a", "b"),
        ({"prompt": "a", "output": "b", "completion": None}, "a", "b"),
        ({"system": "be kind", "prompt": "hi you", "completion": "yes, me"}, (BE, HI), "yes, me"),
        ({"system_prompt": "be kind", "question": "hi you", "response": "yes, me"}, (BE, HI), "yes, me"),
        ({"system": "", "prompt": "a", "completion": "b"}, "a", "b"),
        ({"system": "be kind", "prompt": [BE, HI], "completion": "yes, me"}, (BE, HI), "yes, me"),
        ({"system": "be kind", "messages": [HI, YES]}, (BE, HI), "yes, me"),
        (
            {"system": "be kind", "prompt": "hi you", "chosen": [HI, YES], "rejected": [HI]},
            (BE, HI),
            "yes, me",
        ),
    ],
)
def test_formats(row: dict, prompt: object, reply: str) -> None:
    [found] = load_conversations([row])
    assert (found.prompt, found.reply, found.id) == (prompt, reply, "row-1")


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("be rude", "begin with the system's 'be kind', but 'system' is 'be rude': keep only one"),
        (3, "'system' of row 1 of list of rows is 3: give a text, or leave it out"),
    ],
)
def test_a_system_column_that_cannot_stand_before_the_prompt(system: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_conversations([{"system": system, "prompt": [BE, HI], "completion": "yes, me"}])


def test_a_system_column_is_read_alike_by_all_who_ask(tmp_path: Path) -> None:
    row = {"system": "be kind", "instruction": "hi", "input": "you"}
    asked = (BE, {"role": "user", "content": "hi\nyou"})
    [learnt] = load_conversations([{**row, "output": "yes"}])
    _, [prompt] = load_prompts([row])
    _, [scored] = replies_in([{**row, "reply": "yes"}])
    assert learnt.prompt == tuple(prompt) == scored.prompt == asked


def test_from_a_file(tmp_path: Path) -> None:
    rows = [{"id": "a", "messages": [HI, YES]}, {"id": "b", "messages": [BE, HI, YES]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [c.id for c in load_conversations(tmp_path / "rows.jsonl")] == ["a", "b"]


@pytest.mark.parametrize("messages", [[HI, YES], [BE, HI, YES], [HI, YES, HI, YES]])
def test_prompt_and_reply_are_what_transformers_makes_of_the_conversation(messages: list) -> None:
    """The whole is the template's, up to the token that ends the reply; the prompt opens the turn."""
    tokenizer = chatty()
    [[row]] = encode_replies(load_conversations([{"messages": messages}]), tokenizer).rows
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    given = tokenizer.apply_chat_template(
        messages[:-1], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert [*row.prompt] == given
    assert [*row.prompt, *row.reply] == whole[:-1]  # without the line break behind the end
    assert row.reply[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(row.reply) == "yes, me<|end|>"


def test_a_plain_prompt_ends_in_the_end_token() -> None:
    tokenizer = word_level(["two", "and", "is", "four"])
    rows = load_conversations([{"prompt": "two and two is", "completion": " four"}])
    [[row]] = encode_replies(rows, tokenizer).rows
    assert tokenizer.convert_ids_to_tokens(row.prompt) == ["two", "and", "two", "is"]
    assert tokenizer.convert_ids_to_tokens(row.reply) == ["four", "<end>"]
    chat = chatty()
    [[as_said]] = encode_replies([Conversation("hi you", "yes, me", "a")], chat, chat=True).rows
    assert [as_said.prompt, as_said.reply] == [
        getattr(encode_replies(load_conversations([{"messages": [HI, YES]}]), chat).rows[0][0], part)
        for part in ("prompt", "reply")
    ]


def test_what_is_too_long_loses_the_end_of_its_reply() -> None:
    tokenizer = word_level(list("abcdefg"))
    rows = [Conversation("a b", "c d e", "fits"), Conversation("a b", "c d e f", "cut")]
    rows.append(Conversation("a b c d e f", "g", "out"))
    found = encode_replies(rows, tokenizer, max_length=6)
    assert (found.shortened, found.dropped) == (("cut",), ("out",))
    texts = [tokenizer.convert_ids_to_tokens(row.reply) for [row] in found.rows]
    assert texts == [["c", "d", "e", "<end>"], ["c", "d", "e", "f"]]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"text": "a"}, r"no reply to learn in row 1 .*, which has text"),
        ({"prompt": "a"}, "no reply to learn"),
        ({"messages": [HI]}, "the user's"),
        ({"messages": [YES]}, "end with a prompt"),
        ({"messages": "hi"}, "'messages' of row 1 .* is 'hi': give a list of messages"),
        ({"messages": [{"role": "user"}, YES]}, "a 'role' and a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, YES]}, "a 'role' and a text"),
        ({"prompt": [], "completion": "a"}, "'prompt' of row 1"),
        ({"prompt": 5, "completion": "a"}, "'prompt' of row 1 .* is 5: give a text or a list of"),
        ({"prompt": "a", "completion": "b\ud800"}, "text in 'completion' of row 1 .* is not valid Unicode"),
    ],
)
def test_rows_that_hold_no_reply(row: dict, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load_conversations([row])


def test_what_cannot_be_encoded() -> None:
    plain = byte_level()
    plain.name_or_path = "my/model"
    with pytest.raises(DataError, match="no chat template in my/model"):
        encode_replies([Conversation((HI,), "a", "x")], plain)
    for prompt, said in (("a", r"leave out chat=True \(--chat\)"), ((HI,), "give texts instead")):
        with pytest.raises(DataError, match=f"no chat template in my/model.*{said}"):
            encode_replies([Conversation(prompt, "a", "x")], plain, chat=True)
    with pytest.raises(DataError, match="row 'x' has no tokens in its reply"):
        encode_replies([Conversation("a", "", "x")], plain)
    with pytest.raises(DataError, match="row 'x' has no tokens in its prompt"):
        encode_replies([Conversation("", "a", "x")], plain)
    with pytest.raises(ConfigError, match="max_length is 1"):
        encode_replies([], plain, max_length=1)
    odd = chatty()
    odd.chat_template = (
        "{% for m in messages | reverse %}{{ m['content'] }} {% endfor %}first"
        "{% if add_generation_prompt %} now{% endif %}"
    )
    with pytest.raises(DataError, match="does not write the reply of row 'x' after"):
        encode_replies([Conversation((HI,), "a", "x")], odd)


def test_prompts_that_stand_in_train_too_are_counted() -> None:
    """Twice each of ten prompts, in other case: those of which one row is tested on and one is not."""
    rows = [{"prompt": f"{said} {i} :", "completion": " 1"} for said in ("From", "from ") for i in range(10)]
    task = replies_from_rows(rows, test_fraction=0.3)
    numbers = [{row.prompt.split()[1] for row in part} for part in (task.train, task.test)]
    shared = sum(row.prompt.split()[1] in numbers[0] for row in task.test)
    assert shared
    assert f"{shared} test rows have a prompt that is also in train" in task.notes
    alone = replies_from_rows([row | {"prompt": f"{row['prompt']} {i}"} for i, row in enumerate(rows)])
    assert len(alone.notes) == 1
