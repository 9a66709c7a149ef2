"""Replies: their probabilities, against transformers, and what they may not depend on."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from generation_cases import PROMPTS, Pair, adapted, read_again, words

from bara_pyro.core.attached import attached
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.replies.generation import Prompt, Reply, encode_prompts, generate, load_prompts
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS

SHORT = PROMPTS[0]
REFUSED = ("laplace", "vbll", "polar_vbll")


def replies(pair: Pair, prompts: Any = PROMPTS, **options: Any) -> list[Reply]:
    return list(generate(*pair, prompts, **{"max_new_tokens": 8, **options}))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((name, {}) for name in METHODS if name not in REFUSED),
        ("bara", {"guide": "weibull-coupled"}),
        ("bara-gate", {"guide": "weibull-coupled"}),
    ],
)
def test_a_reply_has_the_probability_that_one_forward_gives_it(
    method: str, settings: dict[str, str], tiny: Backbone
) -> None:
    """Under its own draw: the global one held, the local ones at the positions they had, keys cached."""
    torch.manual_seed(2)
    pair = adapted(method, tiny, **settings)
    found = replies(pair, replies=2, seed=4)
    assert [(reply.prompt, reply.number) for reply in found] == [(p.id, n) for p in PROMPTS for n in range(2)]
    for reply in found:
        prompt = next(prompt for prompt in PROMPTS if prompt.id == reply.prompt)
        again = read_again(pair, prompt, reply.token_ids, 2, seed=4)[reply.number]
        assert sum(reply.log_probs) == pytest.approx(float(again), abs=1e-4)
        assert reply.ended == (reply.token_ids[-1] == 1)
        assert reply.ended or len(reply.token_ids) == 8


def test_draws_differ_and_matter(bara: Pair) -> None:
    drawn = read_again(bara, SHORT, [4, 5, 6], 20)
    assert drawn.std() > 0.1
    assert len(set(words(replies(bara, [SHORT], replies=20)))) > 5


def test_the_likeliest_tokens_are_those_of_transformers(bara: Pair) -> None:
    found = replies(bara, draws="mean", temperature=0)
    with attached(bara) as lm:
        for prompt, reply in zip(PROMPTS, found, strict=True):
            theirs = lm.generate(torch.tensor([prompt.token_ids]), max_new_tokens=8, do_sample=False)
            new = theirs[0, len(prompt.token_ids) :].tolist()
            assert new == list(reply.token_ids)


def test_a_reply_depends_on_no_other(bara: Pair) -> None:
    """Not on the batch, its padding, the order, the budget or how many are asked for."""
    whole = {(r.prompt, r.number): r for r in replies(bara, replies=4)}
    for prompts, options in (
        (PROMPTS[:1], {"replies": 2}),
        (PROMPTS[::-1], {"replies": 4}),
        (PROMPTS, {"replies": 4, "memory_budget": 1}),
        (PROMPTS, {"replies": 4, "skip": {("short", 0), ("long", 3)}}),
        ([Prompt(p.token_ids, p.id) for p in PROMPTS], {"replies": 1}),
    ):
        for reply in replies(bara, prompts, **options):
            same = whole[reply.prompt, reply.number]
            assert reply.token_ids == same.token_ids
            assert reply.log_probs == pytest.approx(same.log_probs, abs=1e-4)
    renamed = replies(bara, [Prompt(SHORT.token_ids, "another name")], replies=4)
    assert words(renamed) == [whole["short", n].token_ids for n in range(4)]
    assert words(replies(bara, replies=4, seed=1)) != [reply.token_ids for reply in whole.values()]


def test_draws_that_replies_share(bara: Pair) -> None:
    """Reply n has the global draw n mod K: with local gates at their mean nothing else is drawn."""
    model, _ = bara
    shared = replies(bara, [SHORT], replies=6, draws=2, fresh_theta=False, temperature=0)
    each = replies(bara, [SHORT], replies=2, fresh_theta=False, temperature=0)
    assert words(shared) == words(each) * 3
    fresh = replies(bara, [SHORT], replies=6, draws=2, temperature=0)
    assert len(set(words(fresh))) > 2
    assert model.latents.local_sites


def test_the_mixture_decoder_averages_distributions(bara: Pair) -> None:
    """A token's probability is the mean over the draws, each having read the tokens before it."""
    [first] = replies(bara, [SHORT], mixture=5)
    before = torch.zeros(5, dtype=torch.float64)
    for i, log_prob in enumerate(first.log_probs):
        after = read_again(bara, SHORT, first.token_ids[: i + 1], 5)
        distribution = (after - before).logsumexp(0) - math.log(5)
        assert log_prob == pytest.approx(float(distribution), abs=1e-4)
        before = after
    two = replies(bara, PROMPTS, mixture=5, replies=2)
    assert two[0].token_ids == first.token_ids
    assert two[0].token_ids != two[1].token_ids


def test_the_distribution_of_the_mixture(bara: Pair) -> None:
    count = 1500
    found = Counter(
        reply.token_ids[0]
        for reply in replies(
            bara, [SHORT], replies=count, mixture=3, max_new_tokens=1, fresh_theta=False, memory_budget=2**30
        )
    )
    some = next(iter(replies(bara, [SHORT], mixture=3, fresh_theta=False, max_new_tokens=1)))
    share = found[some.token_ids[0]] / count
    p = math.exp(some.log_probs[0])
    assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / count)


def test_a_text_that_ends_a_reply(bara: Pair, tiny: Backbone) -> None:
    whole = replies(bara, [SHORT], replies=12, seed=5)
    word = next(
        tiny.tokenizer.decode([token])
        for reply in whole
        for token in reply.token_ids[2:4]
        if len(reply.token_ids) > 5 and token > 10
    )
    for cut, reply in zip(replies(bara, [SHORT], replies=12, seed=5, stop=[word]), whole, strict=True):
        text, found, _ = reply.text.partition(word)
        assert cut.text == text
        assert cut.ended == (bool(found) or reply.ended)
        assert reply.token_ids[: len(cut.token_ids)] == cut.token_ids
        assert len(cut.log_probs) == len(cut.token_ids)


def test_a_models_own_settings_are_left_out_and_given_back(bara: Pair, tiny: Backbone) -> None:
    expected = words(replies(bara))
    own = tiny.lm.generation_config
    try:
        tiny.lm.generation_config.repetition_penalty = 5.0
        tiny.lm.generation_config.max_new_tokens = 3
        assert words(replies(bara)) == expected
        assert tiny.lm.generation_config is own
        assert own.repetition_penalty == 5.0
    finally:
        own.repetition_penalty = own.max_new_tokens = None
    assert words(replies(bara, repetition_penalty=5.0)) != expected


def test_an_option_sees_no_padding(bara: Pair, tiny: Backbone) -> None:
    """Where the token that pads is one that replies have, and is no end of them."""
    own = tiny.tokenizer.pad_token_id
    tiny.tokenizer.pad_token_id = 16
    try:
        whole = replies(bara, temperature=0, no_repeat_ngram_size=1)
        alone = replies(bara, temperature=0, no_repeat_ngram_size=1, memory_budget=1)
    finally:
        tiny.tokenizer.pad_token_id = own
    assert words(whole) == words(alone)
    assert any(16 in reply.token_ids for reply in alone)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_beams": 4}, "num_beams=4"),
        ({"use_cache": False}, "use_cache=False"),
        ({"do_sample": True}, "do_sample is set by"),
        ({"min_p": 0.1}, "min_p=0.1 is not supported"),
        ({"num_return_sequences": 3}, "num_return_sequences is set by"),
        ({"replies": 0}, "replies is 0"),
        ({"draws": 0}, "draws is 0"),
        ({"draws": "some"}, "draws is 'some'"),
        ({"draws": True}, "draws is True"),
        ({"mixture": 0}, "mixture is 0"),
        ({"mixture": 3, "draws": "mean"}, "mixture=3"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        (
            {"max_new_tokens": 60},
            "with the id 'long' of 9 tokens with max_new_tokens=60 takes 69 tokens, more than the 64 of the "
            r"language model: give max_new_tokens=55 (--max-new-tokens 55\) or fewer",
        ),
        ({"stop": [""]}, "stop is"),
    ],
)
def test_what_is_refused(bara: Pair, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", "\\(")):
        replies(bara, **options)


def test_prompts_that_are_refused(bara: Pair) -> None:
    with pytest.raises(DataError, match="with the id '0' has no tokens"):
        replies(bara, [""])
    with pytest.raises(DataError, match=r"text 'is \\udcff red' is not valid Unicode"):
        replies(bara, ["is \udcff red"])
    with pytest.raises(DataError, match="text in 'prompt' of row 2 of list of rows is not valid Unicode"):
        load_prompts([{"prompt": "is"}, {"prompt": [{"role": "user", "content": "\ud800"}]}])
    with pytest.raises(DataError, match="text in 'id' of row 1 of list of rows is not valid Unicode"):
        load_prompts([{"prompt": "is", "id": "\ud800"}])
    with pytest.raises(DataError, match=r"'prompt' of row 1 of .* is 5: give a text or a list of"):
        load_prompts([{"id": "a", "prompt": 5}])
    with pytest.raises(DataError, match=r"no chat template in .*: leave out chat=True \(--chat\)"):
        encode_prompts(["is"], bara[0].backbone.tokenizer, chat=True)
    with pytest.raises(
        ConfigError, match=r"of 80 tokens .* more than the 64 of the language model: shorten it"
    ):
        replies(bara, ["is " * 80])
    with pytest.raises(DataError, match="no chat template"):
        replies(bara, [[{"role": "user", "content": "is"}]])
    with pytest.raises(ConfigError, match="prompts is the text"):
        replies(bara, "is the fox red ?")
    with pytest.raises(ConfigError, match="encode all of them, or none"):
        replies(bara, [SHORT, "is"])
    with pytest.raises(DataError, match="share the id"):
        encode_prompts(["is", "the"], bara[0].backbone.tokenizer, ids=["a", "a"])


@pytest.mark.parametrize("method", REFUSED)
def test_methods_that_are_more_than_adapters(method: str, tiny: Backbone) -> None:
    from bara_pyro.methods import build, method_config

    torch.manual_seed(0)
    options: Any = {"r": 3, "target_modules": ["q_proj"]}
    pair = build(method_config({"name": method}), tiny, 4, options)
    with pytest.raises(ConfigError, match="adapters"):
        replies(pair)
