"""Chat templates: every text of a row stands in its tokens, or the row is refused with role and model."""

import json

import pytest
from data_cases import byte_level
from template_cases import ASK, KINDS, SAID, TEMPLATES

from bara_pyro.data.chat import encode_replies
from bara_pyro.data.conversations import Conversation, load_conversations
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import DataError

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|return|>",
    "<end_of_turn>",
    "<end_of_utterance>",
)


def with_template(name: str, eos: str = "<|end|>"):
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL]})
    tokenizer.eos_token = eos
    tokenizer.chat_template = TEMPLATES[name][0] if name in TEMPLATES else name
    tokenizer.name_or_path = "some/model"
    return tokenizer


def encoded(row: dict, tokenizer) -> EncodedReply:
    [[found]] = encode_replies(load_conversations([row]), tokenizer).rows
    return found


def texts_of(row: dict) -> list[str]:
    """What the messages of a row say, read off the row by hand."""
    return [m[part] for m in row["messages"] for part in ("content", "reasoning_content") if m.get(part)]


def stands(text: str, whole: str) -> bool:
    """A text stands there as it is or inside a JSON string; white space aside."""
    bare = "".join(whole.split())
    return any(
        "".join(one.split()) in bare for one in (text, json.dumps(text)[1:-1], text.replace('"', '\\"'))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_text_stands_in_the_tokens_or_the_row_is_refused(name: str, kind: str) -> None:
    tokenizer, row = with_template(name, "<|return|>" if name == "harmony" else "<|end|>"), KINDS[kind]
    if kind not in TEMPLATES[name][1].split():
        with pytest.raises(DataError, match="row-1"):
            encoded(row, tokenizer)
        return
    found = encoded(row, tokenizer)
    whole, reply = tokenizer.decode([*found.prompt, *found.reply]), tokenizer.decode(found.reply)
    assert [text for text in texts_of(row) if not stands(text, whole)] == []
    assert [text for text in texts_of({"messages": row["messages"][-1:]}) if not stands(text, reply)] == []
    assert found.reply[-1] in tokenizer.added_tokens_decoder


@pytest.mark.parametrize(
    ("name", "kind", "role"),
    [
        ("phi3", "developer", "developer's 'content' 'Be kind.'"),
        ("qwen3", "developer", "developer's"),
        ("qwen3", "earlier", "assistant's 'reasoning_content' 'Winter came.'"),
        ("deepseek v3", "thoughts", "remove the thoughts"),
        ("mistral v1", "system", "Only user and assistant roles"),
    ],
)
def test_who_is_left_out_is_named_with_the_model(name: str, kind: str, role: str) -> None:
    with pytest.raises(DataError, match=role) as refused:
        encoded(KINDS[kind], with_template(name))
    assert "some/model" in str(refused.value) or "refuses" in str(refused.value)
    assert len(str(refused.value)) <= 250


def test_a_short_text_that_stands_there_for_another_reason() -> None:
    """The tool's "user" is a word of the template, and "4" is said by the user."""
    tokenizer = with_template("qwen2.5")
    for content in ("user", "4"):
        messages = [{"role": "user", "content": "2 + 2 = 4 ?"}, {"role": "tool", "content": content}, SAID]
        with pytest.raises(DataError, match=f"the tool's 'content' '{content}'"):
            encoded({"messages": messages}, tokenizer)


def test_the_learnt_span_is_what_a_template_marks_as_generated() -> None:
    """Held against the mask of transformers, of a template with `generation` blocks."""
    turn = (
        "{% if m['role'] == 'assistant' %}<|im_start|>assistant\n{% generation %}"
        "{{ m['content'] }}<|im_end|>{% endgeneration %}\n{% else %}"
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}"
    )
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}{opening}"
    tokenizer = with_template(template)
    said = {**SAID, "content": "I say <|im_end|> twice: <|im_end|>."}  # a reply may speak of the token itself
    for messages in ([ASK, said, ASK, SAID], [ASK, SAID, ASK, said], [ASK, said]):
        found = encoded({"messages": messages}, tokenizer)
        marked = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        start, ids = len(found.prompt), marked["input_ids"]
        assert [*found.prompt, *found.reply] == ids[: start + len(found.reply)]
        assert marked["assistant_masks"][start:] == [1] * len(found.reply) + [0] * (
            len(ids) - start - len(found.reply)
        )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [ASK, {**SAID, "weight": 0}, ASK, SAID]}, "row 1 .*'weight', which is not read"),
        ({"messages": [ASK, SAID], "functions": [{"name": "f"}]}, "'functions'.*what is said"),
        ({"messages": [ASK, SAID], "tools": [{"name": "f"}]}, "row 1.*'tools', which is not read"),
        (
            {"messages": [ASK, {**SAID, "tool_calls": [{"name": "f"}]}]},
            "row 1.*'tool_calls', which is not read",
        ),
        ({"messages": [ASK, SAID], "images": ["a.png"]}, "'images'.*only texts are read"),
        ({"prompt": "a", "completion": "b", "thinking": "hm"}, "'thinking', which is not read"),
        ({"messages": [ASK, SAID], "chat_template_kwargs": {"a": 3}}, "'chat_template_kwargs', which is not"),
        ({"messages": [ASK, {**SAID, "content": None}]}, "a text as 'content'"),
    ],
)
def test_what_would_be_lost_is_refused(row: dict, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_conversations([row])


def test_unknown_parts_of_a_message_are_written_or_refused() -> None:
    tokenizer = with_template("chatml")
    with pytest.raises(DataError, match="user's 'mood' 'glad'"):
        encoded({"messages": [{**ASK, "mood": "glad"}, SAID]}, tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m['content'] }}", "{{ m['content'] }}{{ m['mood'] }}"
    )
    assert "glad" in tokenizer.decode(
        encoded({"messages": [{**ASK, "mood": "glad"}, SAID]}, tokenizer).prompt
    )


def test_a_text_in_one_part_is_that_text() -> None:
    parts = [{**ASK, "content": [{"type": "text", "text": ASK["content"]}]}, SAID]
    assert load_conversations([{"messages": parts}]) == load_conversations([{"messages": [ASK, SAID]}])


def test_what_other_rows_hold_is_not_asked_for() -> None:
    """Arrow gives each row the columns and parts of all rows."""
    row = {"messages": [{**ASK, "tool_calls": None}, {**SAID, "tool_calls": []}], "tools": "[]"}
    assert load_conversations([row]) == load_conversations([{"messages": [ASK, SAID]}])


def test_a_reply_of_python_has_the_same_parts() -> None:
    """A conversation that no file holds is checked alike."""
    reply = {"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}
    with pytest.raises(DataError, match="'tool_calls', which is not read"):
        encode_replies([Conversation((ASK,), reply, "x")], with_template("qwen2.5"))
