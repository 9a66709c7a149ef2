"""Chat templates of the forms that public models have, each in a few lines of our own.

What matters is kept: which roles a template knows, what it strips, cuts or merges, in which form it wants
texts, where its generation prompt ends. Beside each stands which kinds
of rows (`KINDS`) it writes whole; it leaves out or refuses the others.
"""

ASK = {"role": "user", "content": " Does it snow? "}
SAID = {"role": "assistant", "content": "It does snow."}
KINDS = {
    "plain": {
        "messages": [
            ASK,
            SAID,
            {"role": "user", "content": "And now?"},
            {**SAID, "content": "No.\nIt melts."},
        ]
    },
    "system": {"messages": [{"role": "system", "content": "Be kind."}, ASK, SAID]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, ASK, SAID]},
    "reasoning": {"messages": [ASK, {**SAID, "reasoning_content": "Winter came."}]},
    "thoughts": {"messages": [ASK, {**SAID, "content": "<think>\nWinter came.\n</think>\n\nIt does snow."}]},
    "earlier": {
        "messages": [ASK, {**SAID, "reasoning_content": "Winter came."}, ASK, {**SAID, "content": "Still."}]
    },
}

TURNS = "{% for m in messages %}"
END = "{% endfor %}"
ASKS = "{% if add_generation_prompt %}"
FI = "{% endif %}"


def _chatml(before: str = "", body: str = "{{ m['content'] }}", opening: str = "", roles: str = "") -> str:
    """Turns between <|im_start|> and <|im_end|>; of `roles` alone where these are given."""
    turn = f"<|im_start|>{{{{ m['role'] }}}}\n{body}<|im_end|>\n"
    if roles:
        turn = f"{{% if m['role'] in {roles} %}}{turn}{FI}"
    return f"{before}{TURNS}{turn}{END}{ASKS}<|im_start|>assistant\n{opening}{FI}"


_KNOWN = "['system', 'user', 'assistant']"
# The thoughts of answers that another question follows are left out.
_THINKS = (
    "{% set said = m['content'] %}{% set why = m['reasoning_content'] or '' %}"
    "{% if '</think>' in said %}{% set why = said.split('</think>')[0].split('<think>')[-1] %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n{{ why | trim }}\n</think>\n\n{{ said | trim }}"
    "{% else %}{{ said }}{% endif %}"
)


def _two(user: str, assistant: str, opening: str, first: str = "", also: str = "") -> str:
    """Turns of users and assistants; nothing of any other role but for `also`."""
    return (
        f"{first}{TURNS}{{% if m['role'] == 'user' %}}{user}{{% elif m['role'] == 'assistant' %}}{assistant}"
        f"{also}{FI}{END}{ASKS}{opening}{FI}"
    )


_C = "{{ m['content'] }}"
_SYSTEM_FIRST = (
    "{% if messages[0]['role'] == 'system' %}{% set lead = messages[0]['content'] + '\\n\\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set lead = '' %}{% endif %}"
)
_LED = "{% if loop.first %}{{ lead }}{% endif %}{{ m['content'] | trim }}"
_ONLY_TWO = (
    "{% for m in messages %}{% if m['role'] not in ['user', 'assistant'] %}"
    "{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
_HARMONY = (
    "{% for m in messages %}{% if m['role'] in ['system', 'developer'] %}"
    "<|start|>developer<|message|># Instructions\n{{ m['content'] }}<|end|>"
    "{% elif m['role'] == 'user' %}<|start|>user<|message|>{{ m['content'] }}<|end|>"
    "{% else %}{% if loop.last and m['thinking'] %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m['thinking'] }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m['content'] }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_DEEPSEEK = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{% set said = m['content'].split('</think>')[-1] %}"
    "<｜Assistant｜>{{ said + eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>OPENING{% endif %}"
)
_GLM = (
    "{% for m in messages %}{% if m['role'] in ['system', 'user'] %}<|{{ m['role'] }}|>\n{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>"
    "{% if m['reasoning_content'] and loop.last %}\n<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{% if m['content'] %}\n{{ m['content'] | trim }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% else %}<|endoftext|>{% endif %}"
)
_PARTS = (
    "{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_PARTS_SILENT = _PARTS.replace("m['content'][0]['type'] == 'image'", "m['content'] is not string and false")

TEMPLATES = {
    "chatml": (_chatml(), "plain system developer thoughts"),
    "qwen2.5": (_chatml(roles=_KNOWN), "plain system thoughts"),
    "qwen3": (_chatml(body=_THINKS, roles=_KNOWN), "plain system reasoning thoughts"),
    "llama2": (
        _SYSTEM_FIRST
        + _ONLY_TWO
        + _two(f"[INST] {_LED} [/INST]", " {{ m['content'] | trim }} {{ eos_token }}", ""),
        "plain system thoughts",
    ),
    "llama3.1": (
        f"{TURNS}<|start|>{{{{ m['role'] }}}}<|stop|>\n\n{{{{ m['content'] | trim }}}}<|eot_id|>{END}"
        f"{ASKS}<|start|>assistant<|stop|>\n\n{FI}",
        "plain system developer thoughts",
    ),
    "mistral v1": (
        _ONLY_TWO + _two(f"[INST] {_C} [/INST]", " {{ m['content'] }}{{ eos_token }}", ""),
        "plain thoughts",
    ),
    "gemma": (
        "{% if messages[0]['role'] == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        + _two(
            "<start_of_turn>user\n{{ m['content'] | trim }}<end_of_turn>\n",
            "<start_of_turn>model\n{{ m['content'] | trim }}<end_of_turn>\n",
            "<start_of_turn>model\n",
        ),
        "plain thoughts",
    ),
    "phi3": (
        _two(
            f"<|user|>\n{_C}<|end|>\n",
            f"<|assistant|>\n{_C}<|end|>\n",
            "<|assistant|>\n{% else %}{{ eos_token }}",
            also=f"{{% elif m['role'] == 'system' %}}<|system|>\n{_C}<|end|>\n",
        ),
        "plain system thoughts",
    ),
    "deepseek v3": (_DEEPSEEK.replace("OPENING", ""), "plain system"),
    "deepseek r1": (_DEEPSEEK.replace("OPENING", "<think>\n"), ""),
    "glm": (_GLM, "plain system reasoning thoughts"),
    "harmony": (_HARMONY, "plain system developer reasoning thoughts"),
    "idefics3": (_PARTS, "plain system developer thoughts"),
    "smolvlm": (_PARTS_SILENT, "plain system developer thoughts"),
}
