"""Questions through chat templates: prompt and answer are how the template's own conversation begins."""

from dataclasses import dataclass

import pytest
import torch
from chat_cases import ROWS, prompts_that_begin_conversations
from data_cases import byte_level, sentence_piece

from bara_pyro.data import Example, Task, answer_token_ids, chat_frame, encode, encode_labels
from bara_pyro.errors import DataError

ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
QWEN = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or
        (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' }}THOUGHTS{{- message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
THOUGHTS = "{%- if message.role == 'assistant' %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + DATEcontent %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% else %}"
    "{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>OPENING' }}{% endif %}"
)


@dataclass
class Case:
    """A template as published, without its tools, and how its prompts end.

    Attributes:
        text: the template.
        ends: the end of the prompt, which the answer follows.
        words: whether words are read as by SentencePiece; else as bytes.
        system: whether it knows system messages.
    """

    text: str
    ends: str
    words: bool = False
    system: bool = True


CASES = {
    "qwen2.5": Case(QWEN.replace("THOUGHTS", ""), "<|im_start|>assistant\n"),
    "qwen3": Case(QWEN.replace("THOUGHTS", THOUGHTS), "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    "smollm2": Case(
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        "<|im_start|>assistant\n",
    ),
    "llama 2": Case(
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE + "{% if "
        "loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
        "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}"
        "{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + "
        "' [/INST]' }}{% else %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
        " [/INST]",
        words=True,
    ),
    "llama 3": Case(LLAMA_3.replace("DATE", ""), "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "mistral": Case(
        "{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token}}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
        " [/INST]",
        words=True,
        system=False,
    ),
    "gemma": Case(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
        + ALTERNATE
        + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
        "{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
        "<start_of_turn>model\n",
        words=True,
        system=False,
    ),
    "phi 3": Case(
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
        "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
        "{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        "<|assistant|>\n",
        words=True,
    ),
    "zephyr": Case(
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
        "<|assistant|>\n",
        words=True,
    ),
    "vicuna": Case(  # its generation prompt ends in a space, which belongs to the answer's token
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ message['content'] + ' ' }}{% elif message['role'] == 'user' %}"
        "{{ 'USER: ' + message['content'] + ' ' }}{% else %}"
        "{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}",
        " ASSISTANT:",
        words=True,
    ),
    "deepseek v3": Case(DEEPSEEK.replace("OPENING", ""), "<｜Assistant｜>"),
    "deepseek r1": Case(DEEPSEEK.replace("OPENING", "<think>\\n"), "<｜Assistant｜>"),
}
GOOD = (("g", "o"), ("o", "d"), ("go", "od"))
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<｜Assistant｜>")


def tokenizer_of(name: str):
    case = CASES[name]
    tokenizer = sentence_piece() if case.words else byte_level(GOOD, bos_token="<s>")
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL]})
    tokenizer.chat_template = case.text
    tokenizer.name_or_path = "some/model"
    return tokenizer


@pytest.mark.parametrize("system", [None, "Sort the mail."])
@pytest.mark.parametrize("name", CASES)
def test_the_conversation_begins_with_prompt_and_answer(name: str, system: str | None) -> None:
    tokenizer, case = tokenizer_of(name), CASES[name]
    if system and not case.system:
        with pytest.raises(DataError, match=r"some/model has no system message.*--system"):
            chat_frame(tokenizer, system)
        return
    frame = chat_frame(tokenizer, system)
    assert frame.after.endswith(case.ends)
    for prompt in prompts_that_begin_conversations(tokenizer, frame, system):
        assert prompt.count(tokenizer.bos_token_id) == case.text.count("bos_token")


@pytest.mark.parametrize("name", CASES)
def test_a_long_context_loses_its_end_and_the_template_nothing(name: str) -> None:
    tokenizer = tokenizer_of(name)
    frame = chat_frame(tokenizer)
    [whole] = encode([ROWS[2]], tokenizer, chat=frame).token_ids
    [bare] = encode([Example("c", "Will it come?", 1)], tokenizer, chat=frame).token_ids
    opening = len(tokenizer(frame.before, add_special_tokens=False)["input_ids"])
    for most in range(len(bare), len(whole)):
        split = encode([ROWS[2]], tokenizer, most, chat=frame)
        [cut] = split.token_ids
        assert split.shortened == ("c",)
        assert len(cut) in (most, len(bare))
        assert cut[:opening] == whole[:opening]
        if cut != bare:
            behind = len(bare) - opening  # the question, its line break counted, and the assistant's header
            assert cut[-behind + 1 :] == whole[-behind + 1 :]
            assert cut[: -behind - 1] == whole[: len(cut) - behind - 1]
    with pytest.raises(DataError, match=rf"is {len(bare)} tokens long.* max_length is {len(bare) - 1}"):
        encode([ROWS[2]], tokenizer, len(bare) - 1, chat=frame)


def test_labels_of_one_token_are_answered_with_in_words() -> None:
    tokenizer = tokenizer_of("qwen2.5")
    rows = (Example("a", "Is it?\nAnswer:", 0),)
    for labels, expected in ((("good", "A"), ("good", "A")), (("good", "bad"), ("A", "B"))):
        task = Task("mail", labels, rows, chat=chat_frame(tokenizer))
        assert encode_labels(task, tokenizer).labels == expected
    asked = encode(encode_labels(task, tokenizer).train, tokenizer, chat=task.chat).token_ids[0]
    assert "user\nIs it?\nA) good\nB) bad<|im_end|>" in tokenizer.decode(asked)


def test_a_space_belongs_to_the_answer() -> None:
    for name, spaced in (("vicuna", True), ("llama 2", True), ("mistral", False), ("gemma", False)):
        tokenizer = tokenizer_of(name)
        tokens = answer_token_ids(tokenizer, ["A", "B"], chat_frame(tokenizer))
        wanted = ["▁A", "▁B"] if spaced else ["A", "B"]
        assert torch.equal(tokens, torch.tensor(tokenizer.convert_tokens_to_ids(wanted))), name


def test_a_date_is_the_same_every_day() -> None:
    tokenizer = tokenizer_of("llama 3")
    tokenizer.chat_template = LLAMA_3.replace("DATE", "strftime_now('%d %b %Y') + ")
    assert "26 Jul 2024" in chat_frame(tokenizer).before


def test_what_cannot_be_asked_is_refused() -> None:
    tokenizer = tokenizer_of("gemma")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    )
    with pytest.raises(DataError, match="omits the assistant's"):
        chat_frame(tokenizer, "Be brief.")
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"no chat template in some/model: leave out chat=True"):
        chat_frame(tokenizer)
