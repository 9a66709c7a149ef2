"""Chat templates of others write what transformers' own renderer writes, within limits."""

import pytest
from app_cases import word_tokenizer
from jinja2 import TemplateError

from bara_pyro.data.templates import written
from bara_pyro.errors import DataError
from bara_pyro.untrusted.templates import MOST_TEMPLATE, TemplateRenderer, rendered

MESSAGES = [{"role": "user", "content": "is the fox red ?"}, {"role": "assistant", "content": "no"}]
TEMPLATES = {
    "chatml": "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "special tokens and options": "{{ eos_token }}{{ colour }}{{ tools | tojson }}{% for m in messages %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    "a namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{{ m.content }}{% endfor %}",
}
HUGE = {
    "a text of 6 GB": "{{ 'a' * 6000000000 }}",
    "doublings": "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}{{ ns.s }}",
    "a filter": "{{ 'a' | center(5000000000) }}",
    "a list": "{% set x = range(99999) | list * 99999 %}{{ x | length }}",
    "what it writes": "{{ 'a' * 20000000 }}",
}


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_written_is_what_transformers_writes(name: str, opened: bool) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    options = {"colour": "red", "tools": [{"type": "function", "function": {"name": "look"}}]}
    told = [*MESSAGES, {"role": "tool", "content": "é\u2028\n", "name": None}]
    expected = tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=opened, **options)
    assert rendered(tokenizer, told, options, opened=opened) == expected


@pytest.mark.parametrize("name", HUGE)
def test_what_takes_all_memory_is_refused(name: str) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = HUGE[name]
    with pytest.raises(TemplateError, match=r"memory|characters|overflow"):
        rendered(tokenizer, MESSAGES, {}, opened=False)
    tokenizer.chat_template = TEMPLATES["chatml"]
    assert "fox" in rendered(tokenizer, MESSAGES, {}, opened=False)  # the next one is written as ever


def test_what_does_not_end_is_ended() -> None:
    renderer = TemplateRenderer(seconds=0.5)
    loops = "".join("{% for i in range(99999) %}" for _ in range(4)) + "{% endfor %}" * 4
    for _ in range(3):
        with pytest.raises(TemplateError, match="does not end"):
            renderer.render(loops, MESSAGES, {})
    renderer.close()


def test_a_template_that_is_too_long_is_not_read() -> None:
    with pytest.raises(TemplateError, match="characters"):
        TemplateRenderer().render("x" * (MOST_TEMPLATE + 1), MESSAGES, {})


def test_its_own_words_are_kept() -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system messages here') }}"
    with pytest.raises(DataError, match="no system messages here"):
        written(MESSAGES[:1], tokenizer, "row 1", {})
