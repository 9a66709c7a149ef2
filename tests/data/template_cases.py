"""Chat templates of the forms that public models have, each in a few lines of our own.

What matters is kept: which roles a template knows, what it strips, cuts or merges, in which form it wants
texts and arguments, how it writes a call, where its generation prompt ends. Beside each stands which kinds
of rows (`KINDS`) it writes whole; it leaves out or refuses the others.
"""

CALL = {"name": "fetch_weather", "arguments": {"townname": 'Zürich "old"', "days": 3}}
TOOL = {
    "type": "function",
    "function": {
        "name": "fetch_weather",
        "description": "Gives the weather of a town",
        "parameters": {
            "type": "object",
            "properties": {"townname": {"type": "string", "description": "where"}},
        },
    },
}
ASK = {"role": "user", "content": " Does it snow? "}
SAID = {"role": "assistant", "content": "It does snow."}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "id": "call00001", "function": CALL}],
}
RESULT = {"role": "tool", "name": "fetch_weather", "tool_call_id": "call00001", "content": "Ten inches."}
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
    "tool": {"messages": [ASK, CALLED, RESULT, SAID]},
    "call": {"messages": [ASK, CALLED], "tools": [TOOL]},
    "tools": {"messages": [ASK, SAID], "tools": [TOOL]},
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


_CALLS = (
    "{% for c in m['tool_calls'] or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}"
)
_TOOLS = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n"
    "{% endfor %}<|im_end|>\n"
    "{% endif %}"
)
_KNOWN = "['system', 'user', 'assistant', 'tool']"
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
_LLAMA_CALL = (
    "{% if m['tool_calls'] %}{% set f = m['tool_calls'][0].function %}"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
    "{% else %}{{ m['content'] | trim }}{% endif %}"
)
_LISTED = "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
_HARMONY = (
    "{% if tools %}<|start|>developer<|message|># Tools\n{% for t in tools %}"
    "// {{ t.function.description }}\n"
    "type {{ t.function.name }} = (_: {\n{% for k, v in t.function.parameters.properties.items() %}"
    "// {{ v.description }}\n{{ k }}?: string,\n{% endfor %}}) => any;{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m['role'] in ['system', 'developer'] %}"
    "<|start|>developer<|message|># Instructions\n{{ m['content'] }}<|end|>"
    "{% elif m['role'] == 'user' %}<|start|>user<|message|>{{ m['content'] }}<|end|>"
    "{% elif m['role'] == 'tool' %}"
    "<|start|>functions to=assistant<|message|>{{ m['content'] | tojson }}<|end|>"
    "{% elif m['tool_calls'] %}{% set f = m['tool_calls'][0].function %}"
    "<|start|>assistant to=functions.{{ f.name }}"
    "<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% else %}{% if loop.last and m['thinking'] %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m['thinking'] }}<|end|>{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m['content'] }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_DEEPSEEK = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% elif m['role'] == 'tool' %}<｜tool▁output▁begin｜>"
    "{{ m['content'] }}<｜tool▁output▁end｜><｜Assistant｜>"
    "{% elif m['role'] == 'assistant' and m['content'] is not defined %}"
    "{% for c in m['tool_calls'] %}<｜Assistant｜>"
    "<｜tool▁call▁begin｜>"
    "{{ c['type'] + '<｜tool▁sep｜>' + c['function']['name'] + '\\n' + c['function']['arguments'] }}"
    "<｜tool▁call▁end｜>{% endfor %}{{ eos_token }}"
    "{% elif m['role'] == 'assistant' %}{% set said = m['content'].split('</think>')[-1] %}"
    "{% if messages[loop.index0 - 1]['role'] != 'tool' %}<｜Assistant｜>{% endif %}{{ said + eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1]['role'] != 'tool' %}<｜Assistant｜>OPENING{% endif %}"
)
_GLM = (
    "{% if tools %}<|system|>\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}<|observation|>\n{{ m['content'] }}"
    "{% elif m['role'] in ['system', 'user'] %}<|{{ m['role'] }}|>\n{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>"
    "{% if m['reasoning_content'] and loop.last %}\n<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{% if m['content'] %}\n{{ m['content'] | trim }}{% endif %}"
    "{% for c in m['tool_calls'] or [] %}\n<tool_call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v if v is string else v | tojson }}</arg_value>{% endfor %}\n</tool_call>"
    "{% endfor %}{% endif %}{% endfor %}"
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
    "qwen2.5": (_chatml(_TOOLS, _C + _CALLS, roles=_KNOWN), "plain system tool call tools thoughts"),
    "qwen3": (
        _chatml(_TOOLS, _THINKS + _CALLS, roles=_KNOWN),
        "plain system tool call tools reasoning thoughts",
    ),
    "hermes": (
        _chatml(
            _TOOLS, "{% if m['tool_calls'] %}" + _CALLS + "{% else %}" + _C + "{% endif %}", roles=_KNOWN
        ),
        "plain system tool call tools thoughts",
    ),
    "yi": (_chatml(roles="['system', 'user', 'assistant']"), "plain system thoughts"),
    "llama2": (
        _SYSTEM_FIRST
        + _ONLY_TWO
        + _two(f"[INST] {_LED} [/INST]", " {{ m['content'] | trim }} {{ eos_token }}", ""),
        "plain system thoughts",
    ),
    "llama3.1": (
        "{% if tools %}{% for t in tools %}{{ t | tojson(indent=4) }}{% endfor %}{% endif %}"
        f"{TURNS}<|start|>{{{{ m['role'] }}}}<|stop|>\n\n{_LLAMA_CALL}<|eot_id|>{END}"
        f"{ASKS}<|start|>assistant<|stop|>\n\n{FI}",
        "plain system developer tool call tools thoughts",
    ),
    "mistral v1": (
        _ONLY_TWO + _two(f"[INST] {_C} [/INST]", " {{ m['content'] }}{{ eos_token }}", ""),
        "plain thoughts",
    ),
    "mistral v3": (
        _LISTED
        + _two(
            f"[INST] {_C} [/INST]",
            "{% if m['tool_calls'] %}[TOOL_CALLS] [{% for c in m['tool_calls'] %}"
            "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
            '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, '
            '"id": "{{ c.id }}"}'
            "{% endfor %}]{% else %} {{ m['content'] | trim }}{% endif %}{{ eos_token }}",
            "",
            also="{% elif m['role'] == 'tool' %}[TOOL_RESULTS] {{ m['content'] | tojson }}[/TOOL_RESULTS]",
        ),
        "plain tool call tools thoughts",
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
    "deepseek v3": (_DEEPSEEK.replace("OPENING", ""), "plain system tool"),
    "deepseek r1": (_DEEPSEEK.replace("OPENING", "<think>\n"), "tool"),
    "glm": (_GLM, "plain system tool call tools reasoning thoughts"),
    "harmony": (_HARMONY, "plain system developer tool call tools reasoning thoughts"),
    "idefics3": (_PARTS, "plain system developer thoughts"),
    "smolvlm": (_PARTS_SILENT, "plain system developer thoughts"),
}
