"""Chat templates: every text of a row stands in its tokens, or the row is refused with role and model."""

import json

import datasets
import pytest
from data_cases import byte_level
from template_cases import ASK, CALL, CALLED, KINDS, RESULT, SAID, TEMPLATES, TOOL

from bara_pyro.data.conversations import Conversation, encode_replies, load_conversations
from bara_pyro.data.replies import EncodedReply
from bara_pyro.errors import DataError
from bara_pyro.extras.replies.generation import encode_prompts, load_prompts
from bara_pyro.extras.replies.reward.files import replies_in

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|return|>",
    "<|call|>",
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
    """What the messages and tools of a row say, read off the row by hand."""
    found = [m[part] for m in row["messages"] for part in ("content", "reasoning_content") if m.get(part)]
    for call in (call["function"] for m in row["messages"] for call in m.get("tool_calls", ())):
        found += [
            call["name"],
            *call["arguments"],
            call["arguments"]["townname"],
            str(call["arguments"]["days"]),
        ]
    for tool in (tool["function"] for tool in row.get("tools", ())):
        found += [tool["name"], tool["description"], "townname", "where"]
    return found


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
        ("yi", "tool", "assistant's 'tool_calls' 'fetch_weather'"),
        ("chatml", "tools", "'fetch_weather' in 'tools'"),
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
    tokenizer = with_template("yi")
    for content in ("user", "4"):
        messages = [{"role": "user", "content": "2 + 2 = 4 ?"}, {**RESULT, "content": content}, SAID]
        with pytest.raises(DataError, match=f"the tool's 'content' '{content}'"):
            encoded({"messages": messages}, tokenizer)


@pytest.mark.parametrize(
    ("name", "learnt"),
    [
        ("qwen2.5", '<tool_call>\n{"name": "fetch_weather", "arguments": ARGS}\n</tool_call><|im_end|>'),
        ("llama3.1", '{"name": "fetch_weather", "parameters": ARGS}<|eot_id|>'),
        (
            "mistral v3",
            '[TOOL_CALLS] [{"name": "fetch_weather", "arguments": ARGS, "id": "call00001"}]<|end|>',
        ),
        ("harmony", " to=functions.fetch_weather<|channel|>commentary json<|message|>ARGS<|call|>"),
    ],
)
@pytest.mark.parametrize("given", ["object", "text"])
def test_a_call_is_learnt_as_the_template_writes_it(name: str, learnt: str, given: str) -> None:
    arguments = json.dumps(CALL["arguments"], ensure_ascii=False)
    call = {**CALL, "arguments": arguments} if given == "text" else CALL
    row = {
        "messages": [
            ASK,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**CALLED["tool_calls"][0], "function": call}],
            },
        ]
    }
    tokenizer = with_template(name, "<|return|>" if name == "harmony" else "<|end|>")
    assert tokenizer.decode(encoded(row, tokenizer).reply) == learnt.replace("ARGS", arguments)


def test_arguments_that_a_template_wants_as_text() -> None:
    """It puts texts together, or prints what it is given: an object would fail, or stand there as Python."""
    arguments = json.dumps(CALL["arguments"], ensure_ascii=False)
    for call in ("{{ '(' + c.function.arguments + ')' }}", "({{ c.function.arguments }})"):
        body = (
            "{{ m['content'] }}{% for c in m['tool_calls'] or [] %}{{ c.function.name }}"
            + call
            + "{% endfor %}"
        )
        tokenizer = with_template(
            f"{{% for m in messages %}}<{{{{ m['role'] }}}}>{body}<|im_end|>{{% endfor %}}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
        found = encoded({"messages": [ASK, CALLED]}, tokenizer)
        assert tokenizer.decode(found.reply) == f"fetch_weather({arguments})<|im_end|>"


def test_the_learnt_span_is_what_a_template_marks_as_generated() -> None:
    """Held against the mask of transformers, of a template with `generation` blocks."""
    turn = (
        "{% if m['role'] == 'assistant' %}<|im_start|>assistant\n{% generation %}"
        "{{ m['content'] }}{% for c in m['tool_calls'] or [] %}"
        "<call>{{ c.function | tojson }}</call>{% endfor %}"
        "<|im_end|>{% endgeneration %}\n{% else %}"
        "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}"
    )
    opening = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}{opening}"
    tokenizer = with_template(template)
    said = {**SAID, "content": "I say <|im_end|> twice: <|im_end|>."}  # a reply may speak of the token itself
    for messages in ([ASK, said, ASK, CALLED], [ASK, CALLED, RESULT, said], [ASK, said]):
        found = encoded({"messages": messages}, tokenizer)
        marked = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        start, ids = len(found.prompt), marked["input_ids"]
        assert [*found.prompt, *found.reply] == ids[: start + len(found.reply)]
        assert marked["assistant_masks"][start:] == [1] * len(found.reply) + [0] * (
            len(ids) - start - len(found.reply)
        )


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_as_a_list_or_as_its_json(as_text: bool) -> None:
    tokenizer = with_template("qwen2.5")
    row = {**KINDS["tools"], "tools": json.dumps([TOOL]) if as_text else [TOOL]}
    assert json.dumps(TOOL) in tokenizer.decode(encoded(row, tokenizer).prompt)


def test_tools_reach_all_who_ask() -> None:
    tokenizer = with_template("qwen2.5")
    learnt = encoded(KINDS["call"], tokenizer)
    [prompt] = encode_prompts(load_prompts([KINDS["call"]])[1], tokenizer)
    assert prompt.token_ids == learnt.prompt
    _, [scored] = replies_in([{"prompt": [ASK], "tools": [TOOL], "reply": "It does snow."}])
    assert scored.options == {"tools": [TOOL]}


def test_options_of_the_template() -> None:
    opening = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    turns = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|im_end|>{% endfor %}"
    tokenizer = with_template(turns + "{% if add_generation_prompt %}<assistant>" + opening + "{% endif %}")
    found = load_prompts(
        [{"messages": [ASK], "chat_template_kwargs": {"enable_thinking": False, "other": None}}]
    )[1]
    [prompt] = encode_prompts(found, tokenizer)
    assert tokenizer.decode(prompt.token_ids).endswith("<assistant><think></think>")
    for options in ({"enable_thinkin": False}, {"chat_template": "x"}):
        with pytest.raises(DataError, match=f"does not use '{next(iter(options))}'"):
            encoded({**KINDS["system"], "chat_template_kwargs": options}, tokenizer)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [ASK, {**SAID, "weight": 0}, ASK, SAID]}, "row 1 .*'weight', which is not read"),
        ({"messages": [ASK, SAID], "functions": [TOOL]}, "'functions'.*give 'tools'"),
        ({"messages": [ASK, SAID], "images": ["a.png"]}, "'images'.*only texts are read"),
        ({"prompt": "a", "completion": "b", "thinking": "hm"}, "'thinking', which is not read"),
        ({"messages": [ASK, SAID], "tools": "weather"}, "'tools' of row 1.*'weather'"),
        ({"messages": [ASK, SAID], "chat_template_kwargs": 3}, "'chat_template_kwargs' of row 1"),
        (
            {"messages": [ASK, {**SAID, "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
            "tool call",
        ),
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


def test_a_text_with_tools_needs_a_conversation() -> None:
    row = {"prompt": "Does it snow?", "completion": "It does.", "tools": [TOOL]}
    with pytest.raises(DataError, match="give messages, or set chat=True"):
        encoded(row, with_template("qwen2.5"))
    found = encode_replies(load_conversations([row]), with_template("qwen2.5"), chat=True)
    assert "fetch_weather" in with_template("qwen2.5").decode(found.rows[0][0].prompt)


def test_nulls_that_arrow_fills_in_are_not_learnt() -> None:
    """Rows with calls of different arguments: a column of one type gives each row the names of all."""
    calls = [{"name": "f", "arguments": {"town": "a"}}, {"name": "f", "arguments": {"day": "b"}}]
    rows = [{"messages": [ASK, {**CALLED, "tool_calls": [{"function": call}]}]} for call in calls]
    with pytest.raises(DataError, match=r"null for '(town|day)'"):
        load_conversations(datasets.Dataset.from_list(rows))
    texts = [[ASK, {**CALLED, "tool_calls": json.dumps([{"function": call}])}] for call in calls]
    found = load_conversations(datasets.Dataset.from_list([{"messages": messages} for messages in texts]))
    assert [json.loads(row.reply["tool_calls"][0]["function"]["arguments"]) for row in found] == [
        call["arguments"] for call in calls
    ]


def test_a_text_in_one_part_is_that_text() -> None:
    parts = [{**ASK, "content": [{"type": "text", "text": ASK["content"]}]}, SAID]
    assert load_conversations([{"messages": parts}]) == load_conversations([{"messages": [ASK, SAID]}])


def test_a_reply_of_python_has_the_same_parts() -> None:
    """A conversation that no file holds is checked alike."""
    reply = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"town": "a"}}]}
    tokenizer = with_template("qwen2.5")
    [[row]] = encode_replies([Conversation((ASK,), reply, "x")], tokenizer).rows
    assert '"arguments": {"town": "a"}' in tokenizer.decode(row.reply)
