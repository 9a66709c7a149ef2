"""What a reply says: its text behind a prompt's, what ends it, and the same of a chat template's turns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tokenizer_cases import byte_fallback, byte_level, words
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import bara_pyro as bp
from bara_pyro.data.chat import tokens_of
from bara_pyro.data.conversations import Conversation
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.generation import Reply, encode_prompts, generate
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.guides.delta import DeltaGuide
from bara_pyro.lm.backbone import Backbone

USER = {"role": "user", "content": "It's"}
# As Phi-3's, which writes more behind a reply than the token that ends it.
CLOSED = (
    "{% for m in messages %}{{ m.role }}:\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% else %}{{ eos_token }}{% endif %}"
)
# As Gemma's.
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


def lm_of(tokenizer: PreTrainedTokenizerFast) -> Backbone:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes, **ends)
    return Backbone(LlamaForCausalLM(config).eval(), tokenizer)


@contextmanager
def saying(backbone: Backbone, tokens: Sequence[int]) -> Iterator[None]:
    """Let a language model say these tokens, whatever it is asked."""
    left = iter(tokens)

    def say(module: nn.Module, args: object, logits: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(logits, -30.0)
        out[..., -1, next(left)] = 30.0
        return out

    hook = backbone.lm.lm_head.register_forward_hook(say)
    try:
        yield
    finally:
        hook.remove()


def said(
    tokenizer: PreTrainedTokenizerFast, prompt: object, tokens: Sequence[int], stop: str = "\nclass"
) -> Reply:
    backbone = lm_of(tokenizer)
    model = bp.models.LoRA(backbone, num_data=4, likelihood=bp.CompletionLikelihood())
    pair = model, DeltaGuide(model)
    with saying(backbone, [*tokens, tokenizer.eos_token_id]):
        [reply] = generate(*pair, [prompt], draws="mean", max_new_tokens=40, stop=stop)  # type: ignore[list-item]
    return reply


@pytest.mark.parametrize("maker", [byte_fallback, byte_level])
@pytest.mark.parametrize("stop", [(), "2"])
def test_a_text_and_its_reply_are_what_was_read_and_written(maker, stop) -> None:
    """The tokens of a whole text, part of it given: with what is replied it is whole again."""
    tokenizer = maker()
    whole = tokenizer.decode(tokenizer("def f(x): return x ** 2", add_special_tokens=False)["input_ids"])
    for prompt in ("def", "def f(x):", "def f(x): return"):
        start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tokens = tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert tokens[: len(start)] == start
        reply = said(tokenizer, prompt, tokens[len(start) :], stop)
        assert prompt + reply.text == (whole[:-1] if stop else whole)
        assert reply.text.startswith(" ")


def test_words_have_spaces_between_them() -> None:
    """A judge that reads prompt and reply together reads the words that were written."""
    tokenizer = bp.load_backbone("microworld").tokenizer
    tokens = tokenizer("the marsh .", add_special_tokens=False)["input_ids"]
    reply = said(tokenizer, "the guest lives in", tokens)
    assert reply.text == " the marsh ."
    both = tokenizer("the guest lives in" + reply.text, add_special_tokens=False)["input_ids"]
    assert both[-3:] == tokens


def test_lines_of_a_program_begin_alike() -> None:
    """As CodeLlama writes them: the first indentation is one token, whose first space a decoder takes off."""
    tokenizer = byte_fallback()
    line = tokenizer.convert_tokens_to_ids(["▁▁", "x"])
    newline = tokenizer.convert_tokens_to_ids("\n")
    assert said(tokenizer, "f(x):\n", [*line, newline, *line]).text == "  x\n  x"


def test_a_message_is_a_text_by_itself() -> None:
    tokenizer = byte_fallback()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokens = tokenizer("what they", add_special_tokens=False)["input_ids"]
    assert said(tokenizer, [USER], tokens).text == "what they"
    assert said(tokenizer, "It's", tokens).text == " what they"


def test_a_special_token_among_the_texts_that_end_a_reply() -> None:
    """No decoded text shows it."""
    tokenizer = byte_fallback()
    first, tool, second = tokenizer.convert_tokens_to_ids(["▁what", "<|tool|>", "▁they"])
    reply = said(tokenizer, "It's", [first, tool, second], stop="<|tool|>")
    assert (reply.text, reply.token_ids, reply.ended) == (" what", (first, tool), True)
    assert said(tokenizer, "It's", [first, tool, second]).text == " what they"


def test_what_is_learnt_of_a_turn_is_what_the_template_writes_up_to_its_end() -> None:
    tokenizer = byte_fallback()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = CLOSED
    told = Conversation((USER,), "what they", "x")
    whole = tokenizer.apply_chat_template(
        [USER, {"role": "assistant", "content": told.reply}], tokenize=False
    )
    ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    prompt, reply = tokens_of(told, tokenizer)
    assert prompt + reply == ids[: len(prompt + reply)]
    assert reply[-1] == tokenizer.convert_tokens_to_ids("<|end|>")
    assert len(prompt + reply) < len(ids)  # a line and the end of the text follow, which nobody generates
    # A reply that speaks of such a token goes on behind it.
    _, longer = tokens_of(Conversation((USER,), "what <|end|> they", "x"), tokenizer)
    assert longer.count(reply[-1]) == 2


def test_a_template_that_refuses_is_a_sentence() -> None:
    tokenizer = words()
    tokenizer.chat_template = STRICT + CLOSED
    messages = [{"role": "system", "content": "Be brief."}, USER]
    with pytest.raises(DataError, match="System role not supported"):
        encode_prompts([messages], tokenizer)
    with pytest.raises(DataError, match="System role not supported"):
        tokens_of(Conversation(tuple(messages), "what", "x"), tokenizer)
    with pytest.raises(DataError, match="is one message"):
        encode_prompts([USER], tokenizer)  # type: ignore[list-item]


def test_the_systems_message_of_a_preference_row_is_learnt_with() -> None:
    turns = [USER, {"role": "assistant", "content": "yes"}]
    row = {"system": "Be brief.", "chosen": turns, "rejected": [USER, {"role": "assistant", "content": "no"}]}
    [learnt] = bp.load_conversations([row])
    assert learnt.prompt == ({"role": "system", "content": "Be brief."}, USER)


@pytest.mark.parametrize("name", ["draws", "mixture", "top_k", "max_new_tokens", "seed"])
def test_numbers_are_whole(name: str) -> None:
    assert getattr(Decoding(**{name: np.int64(2)}), name) == 2
    assert type(getattr(Decoding(**{name: np.int64(2)}), name)) is int
    for wrong in (2.0, 4.5, True, "two"):
        with pytest.raises(ConfigError, match=rf"{name} is {wrong!r}"):
            Decoding(**{name: wrong})
