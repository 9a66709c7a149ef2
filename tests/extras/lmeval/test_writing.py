"""Text under draws: a plain loop over words, lm-eval's own cutting, and what a text may not depend on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from app_cases import Place
from harness_cases import CONTEXTS, system_of
from lm_eval.api.instance import Instance

from bara_pyro.core.attached import attached
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.lmeval.harness import BaraLM
from bara_pyro.extras.replies.generation import Prompt, encode_prompts, generate
from bara_pyro.runs.system import System
from bara_pyro.types import PredictiveName

METHODS = ("bara-gate", "mc_dropout", "lora", "ensemble")
HOW = {"until": ["\n"], "max_gen_toks": 6}
SAMPLED = {**HOW, "do_sample": True, "temperature": 1.3, "top_p": 0.9, "top_k": 20}


def requests_of(pairs: Sequence[tuple[str, dict[str, Any]]], repeats: int = 1) -> list[Instance]:
    """What lm-eval's evaluator makes: a request that is repeated stands there so many times."""
    made = [Instance("generate_until", {}, pair, i) for i, pair in enumerate(pairs)]
    return [request for request in made for _ in range(repeats)]


def texts(lm: BaraLM, pairs: Sequence[tuple[str, dict[str, Any]]], repeats: int = 1) -> list[str]:
    return lm.generate_until(requests_of(pairs, repeats), disable_tqdm=True)


def likeliest(system: System, context: str, count: int, seed: int = 7) -> str:
    """The likeliest word after the likeliest word, each of a forward without a cache under draw 0."""
    tokenizer = system.backbone.tokenizer
    prompt = tuple(tokenizer(context)["input_ids"])
    key = Prompt(prompt, "").key
    written: list[int] = []
    before, system.model.likelihood = system.model.likelihood, CompletionLikelihood()
    try:
        while len(written) < count and tokenizer.eos_token_id not in written:
            rows = [[EncodedReply((*prompt, *written), (word,), key)] for word in range(len(tokenizer))]
            found = predict(system.model, system.guide, reply_batch(rows), samples=1, seed=seed)
            written.append(int(found[0].argmax()))
    finally:
        system.model.likelihood = before
    return str(tokenizer.decode(written, skip_special_tokens=True))


@pytest.fixture(scope="module")
def systems(place: Place) -> dict[str, System]:
    return {method: system_of(place, method) for method in METHODS}


@pytest.mark.parametrize(
    ("method", "predictive"), [*((name, "joint") for name in METHODS), ("bara-gate", "token")]
)
def test_a_plain_loop_over_words(systems: dict[str, System], method: str, predictive: PredictiveName) -> None:
    lm = BaraLM(systems[method], predictive, 3, 7, batch_size=3)
    found = texts(lm, [(context, HOW) for context in CONTEXTS])
    assert found == [likeliest(systems[method], context, 6) for context in CONTEXTS]


def test_draws_matter(systems: dict[str, System]) -> None:
    found = {
        tuple(texts(BaraLM(systems["bara-gate"], "joint", 3, seed), [(c, HOW) for c in CONTEXTS]))
        for seed in range(4)
    }
    assert len(found) > 1


def test_at_the_mean_text_is_that_of_transformers(systems: dict[str, System]) -> None:
    system = systems["bara-gate"]
    found = texts(BaraLM(system, "mean", batch_size=3), [(context, HOW) for context in CONTEXTS])
    for context, text in zip(CONTEXTS, found, strict=True):
        tokens = system.backbone.tokenizer(context, return_tensors="pt")
        with attached(system) as model:
            theirs = model.generate(**tokens, max_new_tokens=6, do_sample=False, pad_token_id=1)
        new = theirs[0, tokens["input_ids"].shape[1] :]
        assert system.backbone.tokenizer.decode(new, skip_special_tokens=True).split("\n")[0] == text


def test_neither_batch_nor_order_nor_company_matters(systems: dict[str, System]) -> None:
    """Requests of two settings among each other."""
    pairs = [(context, how) for how in (HOW, SAMPLED) for context in (*CONTEXTS, "the owl is grey " * 5)]
    system = systems["bara-gate"]
    alone = [texts(BaraLM(system, "joint", 3, 7, batch_size=1), [pair])[0] for pair in pairs]
    assert len(set(alone)) > 4
    places = list(range(len(pairs)))
    for size, order in ((2, places), (16, places), (3, places[::-1]), (16, places[::2] + places[1::2])):
        found = texts(BaraLM(system, "joint", 3, 7, batch_size=size), [pairs[i] for i in order])
        assert found == [alone[i] for i in order]


def test_what_a_task_repeats_are_replies_of_several_draws(systems: dict[str, System]) -> None:
    """Two documents of one text are asked once each: both have reply 0."""
    system = systems["bara-gate"]
    lm = BaraLM(system, "joint", 3, 7, batch_size=3)
    found = texts(lm, [(context, SAMPLED) for context in CONTEXTS[:2]], repeats=4)
    how: Any = {"max_new_tokens": 6, "temperature": 1.3, "top_p": 0.9, "top_k": 20, "seed": 7}
    # lm-eval decodes what is written by itself.
    prompts = [replace(p, goes_on=False) for p in encode_prompts(CONTEXTS[:2], system.backbone.tokenizer)]
    drawn = generate(system.model, system.guide, prompts, replies=4, stop="\n", **how)
    assert found == [reply.text for reply in drawn]
    assert len(set(found)) > 2
    once = texts(lm, [(CONTEXTS[0], SAMPLED), (CONTEXTS[1], SAMPLED), (CONTEXTS[0], SAMPLED)])
    assert once == [found[0], found[4], found[0]]


def test_what_ends_a_text(systems: dict[str, System]) -> None:
    lm = BaraLM(systems["bara-gate"], "joint", 3, 7)
    [whole] = texts(lm, [(CONTEXTS[0], HOW)])
    words = whole.split()
    end = next(word for word in words[1:] if word != words[0])
    for until in (end, [end], ["never", end, ""]):
        assert texts(lm, [(CONTEXTS[0], {**HOW, "until": until})]) == [whole.partition(end)[0]]
    assert texts(lm, [(CONTEXTS[0], {"max_gen_toks": 6})]) == [whole]
    for name in ("max_new_tokens", "max_tokens"):
        assert len(texts(lm, [(CONTEXTS[0], {name: 2})])[0].split()) == 2


def test_a_long_context_loses_its_beginning(systems: dict[str, System]) -> None:
    """As many tokens stay as the text leaves room for, under every predictive; those cut are counted."""
    system = systems["bara-gate"]
    tokenizer = system.backbone.tokenizer
    long = "is the fox red ? the owl is grey " * 20
    kept = tokenizer.decode(tokenizer(long)["input_ids"][-(64 - 6) :])
    predictives: tuple[PredictiveName, ...] = ("joint", "mean")
    for predictive in predictives:
        lm = BaraLM(system, predictive, 3, 7)
        found = texts(lm, [(long, HOW), (CONTEXTS[0], HOW)])
        assert lm.truncated == 1
        assert found == texts(lm, [(kept, HOW), (CONTEXTS[0], HOW)])
        assert lm.truncated == 1


def test_answers_are_cached_under_what_was_asked(systems: dict[str, System]) -> None:
    lm = BaraLM(systems["bara-gate"], "joint", 3, 7)
    kept: list[tuple[str, object, str]] = []
    lm.cache_hook.add_partial = lambda *told: kept.append(told)
    pairs = [(context, HOW) for context in CONTEXTS]
    found = texts(lm, pairs)
    assert {(kind, context, text) for kind, (context, _), text in kept} == {
        ("generate_until", context, text) for (context, _), text in zip(pairs, found, strict=True)
    }
    assert all(how == HOW for _, (_, how), _ in kept)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"max_length": 20}, "max_length=20"),
        ({"do_sample": True}, "no temperature above 0"),
        ({"do_sample": True, "temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": 0.7, "top_p": 2.0}, "top_p is 2.0"),
        ({"temperature": "warm"}, "'temperature': 'warm'.* cannot be read"),
        ({"until": [3]}, r"until=\[3\]"),
        ({"max_gen_toks": 64}, "max_gen_toks is 64, .* 64 tokens"),
        ({"max_gen_toks": 0}, "max_gen_toks is 0"),
    ],
)
def test_what_is_refused(systems: dict[str, System], how: dict[str, Any], said: str) -> None:
    lm = BaraLM(systems["bara-gate"], "joint", 3, 7)
    with pytest.raises(ConfigError, match=said):
        texts(lm, [(CONTEXTS[0], HOW), (CONTEXTS[1], {**HOW, **how})])


def test_what_is_no_matter(systems: dict[str, System]) -> None:
    lm = BaraLM(systems["bara-gate"], "joint", 3, 7)
    plain = texts(lm, [(CONTEXTS[0], HOW)])
    for how in ({"num_beams": 1}, {"do_sample": False, "temperature": 0.9}, {"do_sample": False}):
        assert texts(lm, [(CONTEXTS[0], {**HOW, **how})]) == plain


def test_a_context_without_tokens(systems: dict[str, System]) -> None:
    with pytest.raises(DataError, match="'' has no tokens"):
        texts(BaraLM(systems["bara-gate"], "joint", 3, 7), [("", HOW)])


def test_no_room_is_said_under_every_law(systems: dict[str, System]) -> None:
    predictives: tuple[PredictiveName, ...] = ("base", "mean")
    for predictive in predictives:
        with pytest.raises(ConfigError, match="max_gen_toks is 256"):
            texts(BaraLM(systems["lora"], predictive), [(CONTEXTS[0], {"until": ["\n"]})])


def test_the_language_model_is_what_it_was(systems: dict[str, System]) -> None:
    system = systems["bara-gate"]
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        before = system.backbone.lm(tokens).logits
        texts(BaraLM(system, "joint", 3, 7), [(CONTEXTS[0], HOW)])
        assert torch.equal(system.backbone.lm(tokens).logits, before)
