"""Laws of draws against a plain loop over draws, tokens and words; no batch, no order, no padding matters."""

import math
from collections.abc import Sequence

import pytest
import torch
from app_cases import Place
from harness_cases import CONTEXTS, PAIRS, asked, system_of
from lm_eval.models.huggingface import HFLM
from method_cases import unflip
from torch import Tensor

from bara_pyro.core import next_token
from bara_pyro.core.attached import attached
from bara_pyro.core.likelihood import CompletionLikelihood
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.errors import ConfigError, DataError
from bara_pyro.extras.lmeval.harness import BaraLM, predictives
from bara_pyro.extras.lmeval.harness.lm import _reply
from bara_pyro.runs.system import System, build_system
from bara_pyro.types import PredictiveName

S = 3
# Local latents and global ones, global ones alone, masks a token, members; the answer's head adapted or not.
METHODS = ("bara-gate", "blob", "mc_dropout", "ensemble")
HEAD = {"adapter__target_modules": ["q_proj", "lm_head"]}


def scores(lm: HFLM, pairs: Sequence = PAIRS) -> list[tuple[float, bool]]:
    return lm.loglikelihood(asked(pairs), disable_tqdm=True)


def next_words(system: System, prompt: Sequence[int], name: str, samples: int = S) -> Tensor:
    """Each draw's log-probability of every word behind a prompt, `S x V`, a word at a time."""
    words = range(len(system.backbone.tokenizer))
    rows = [[EncodedReply(tuple(prompt), (word,), name)] for word in words]
    before, system.model.likelihood = system.model.likelihood, CompletionLikelihood()
    try:
        return predict(system.model, system.guide, reply_batch(rows), samples=samples, seed=7)
    finally:
        system.model.likelihood = before


def plainly(system: System, lm: BaraLM, pair: tuple[str, str], predictive: str) -> tuple[float, bool]:
    """A pair's log-likelihood and greediness by loops."""
    context, continuation = lm._encode_pair(*pair)
    name = _reply((pair, context, continuation), lm.max_length).id
    weights: list[float] | None = None
    total, greedy = 0.0, True
    for t, word in enumerate(continuation):
        draws = next_words(system, [*context, *continuation[:t]], name).exp()
        weights = [1 / len(draws)] * len(draws) if weights is None or predictive == "token" else weights
        mixed = sum(w * p for w, p in zip(weights, draws, strict=True))
        greedy = greedy and int(torch.as_tensor(mixed).argmax()) == word
        total += math.log(float(mixed[word]))  # type: ignore[index]
        weights = [w * float(p[word]) for w, p in zip(weights, draws, strict=True)]
        weights = [w / sum(weights) for w in weights]
    return total, greedy


@pytest.fixture(scope="module")
def systems(place: Place) -> dict[str, System]:
    plain = system_of(place, "blob", **HEAD)
    unflip(plain.model)  # one draw for all rows and tokens
    return {"plain": plain, **{method: system_of(place, method, **HEAD) for method in METHODS}}


@pytest.mark.parametrize("predictive", ["joint", "token"])
@pytest.mark.parametrize("method", METHODS)
def test_a_plain_loop_over_draws_tokens_and_words(
    systems: dict[str, System], method: str, predictive: PredictiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = systems[method]
    lm = BaraLM(system, predictive, S, 7, batch_size=5)
    pairs = PAIRS[3:12:2] + PAIRS[-1:]
    expected = [plainly(system, lm, pair, predictive) for pair in pairs]
    for budget in (next_token.BUDGET, 1):  # all positions at once, and one at a time
        monkeypatch.setattr(next_token, "BUDGET", budget)
        found = scores(lm, pairs)
        assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


@pytest.mark.parametrize("method", ["bara-gate", "ensemble"])
def test_the_words_behind_a_context_share_one_unit_of_probability(
    systems: dict[str, System], method: str
) -> None:
    system = systems[method]
    lm = BaraLM(system, "joint", S, 7)
    words = range(len(system.backbone.tokenizer))
    context = lm.tok_encode("is the fox red ?")
    one = lm._loglikelihood_tokens([(None, context, [w]) for w in words], disable_tqdm=True)
    assert sum(math.exp(value) for value, _ in one) == pytest.approx(1, abs=1e-5)
    assert sum(greedy for _, greedy in one) == 1
    two = lm._loglikelihood_tokens([(None, context, [5, w]) for w in words], disable_tqdm=True)
    assert sum(math.exp(value) for value, _ in two) == pytest.approx(math.exp(one[5][0]), abs=1e-5)


@pytest.mark.parametrize("predictive", ["joint", "token"])
def test_continuations_that_end_otherwise_are_one_row(
    systems: dict[str, System], predictive: PredictiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(context, f" is the {end}") for context in CONTEXTS for end in ("fox", "cat", "owl", "fox")]
    pairs.append((CONTEXTS[0], " fox"))
    alone = scores(BaraLM(systems["bara-gate"], predictive, S, 7, batch_size=1), pairs)
    lm = BaraLM(systems["bara-gate"], predictive, S, 7, batch_size=len(pairs))
    sizes = []
    run = predict
    monkeypatch.setattr(predictives, "predict", lambda *a, **k: sizes.append(len(a[2])) or run(*a, **k))
    found = scores(lm, pairs)
    assert sizes == [len(CONTEXTS) + 1]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in alone], abs=1e-5)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in alone]


@pytest.mark.parametrize("method", ["bara-gate", "mc_dropout"])
def test_neither_batch_nor_order_nor_company_matters(systems: dict[str, System], method: str) -> None:
    alone = [scores(BaraLM(systems[method], "joint", S, 7, batch_size=1), [pair])[0] for pair in PAIRS]
    for size, pairs in ((4, PAIRS), (16, PAIRS), (5, PAIRS[::-1])):
        found = scores(BaraLM(systems[method], "joint", S, 7, batch_size=size), pairs)
        by_pair = dict(zip(pairs, found, strict=True))
        assert [by_pair[pair][0] for pair in PAIRS] == pytest.approx([v for v, _ in alone], abs=1e-5)
        assert [by_pair[pair][1] for pair in PAIRS] == [greedy for _, greedy in alone]
    other = scores(BaraLM(systems[method], "joint", S, 8))
    assert [v for v, _ in other] != pytest.approx([v for v, _ in alone], abs=1e-3)


@pytest.mark.parametrize("predictive", ["joint", "token"])
def test_one_draw_is_the_language_model_with_that_draw_attached(
    systems: dict[str, System], predictive: PredictiveName
) -> None:
    """BLoB without flipout, whose latents know no row."""
    found = scores(BaraLM(systems["plain"], predictive, 1, 7))
    stock = BaraLM(systems["plain"], "base")
    with attached(systems["plain"], 7):
        expected = HFLM.loglikelihood(stock, asked(PAIRS), disable_tqdm=True)
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]


def test_joint_and_token_differ_and_agree_on_one_word(systems: dict[str, System]) -> None:
    joint, token = (
        scores(BaraLM(systems["bara-gate"], predictive, S, 7)) for predictive in ("joint", "token")
    )
    for (_, continuation), (one, _), (other, _) in zip(PAIRS, joint, token, strict=True):
        if len(continuation.split()) == 1:
            assert one == pytest.approx(other, abs=1e-6)
        else:
            assert abs(one - other) > 1e-4


def test_of_a_point_all_laws_are_one(place: Place) -> None:
    system = system_of(place, "lora", **HEAD)
    mean, joint, token = (scores(BaraLM(system, predictive, S)) for predictive in ("mean", "joint", "token"))
    base = scores(BaraLM(system, "base"))
    for other in (joint, token):
        assert [value for value, _ in other] == pytest.approx([value for value, _ in mean], abs=1e-4)
        assert [greedy for _, greedy in other] == [greedy for _, greedy in mean]
    assert max(abs(a - b) for (a, _), (b, _) in zip(mean, base, strict=True)) > 0.1


def test_the_mean_is_that_of_predict(systems: dict[str, System]) -> None:
    system = systems["bara-gate"]
    lm = BaraLM(system, "mean")
    pair = PAIRS[3]
    context, continuation = lm._encode_pair(*pair)
    expected = sum(
        float(next_words(system, [*context, *continuation[:t]], "x", samples=0)[0, word])
        for t, word in enumerate(continuation)
    )
    assert scores(lm, [pair])[0][0] == pytest.approx(expected, abs=1e-4)


def test_a_run_of_replies_and_one_of_answers_have_the_same_laws(systems: dict[str, System]) -> None:
    """The likelihood trained with plays no part, and is back in its place afterwards."""
    system = systems["bara-gate"]
    before = scores(BaraLM(system, "joint", S, 7))
    answers, system.model.likelihood = system.model.likelihood, CompletionLikelihood()
    try:
        held = system.model.likelihood
        assert scores(BaraLM(system, "joint", S, 7)) == before
        assert system.model.likelihood is held
    finally:
        system.model.likelihood = answers


def test_noise_of_foreign_rows_is_of_answers_alone(place: Place, systems: dict[str, System]) -> None:
    """A distance-aware run has noise for each answer, and a continuation is none."""
    system = system_of(place, "bara-gate", adapter__distance_aware=True, **HEAD)
    distance = system.corrections.distance
    assert distance is not None
    distance.scale.fill_(2.0)
    distance.radius.fill_(0.0)
    distance.whitening.copy_(torch.eye(len(distance.mean)))
    rows = system.split("train")
    batch = rows.batch([0, 1], system.answer_ids)
    drawn = [
        one.corrections.predict(one.model, one.guide, batch, samples=S)
        for one in (system, systems["bara-gate"])
    ]
    assert (drawn[0] - drawn[1]).abs().max() > 0.1
    for predictive in ("joint", "token"):
        assert scores(BaraLM(system, predictive, S, 7)) == scores(
            BaraLM(systems["bara-gate"], predictive, S, 7)
        )


def test_a_long_context_loses_its_beginning(systems: dict[str, System]) -> None:
    lm = BaraLM(systems["plain"], "joint", S, 7)
    long = "is the fox red ? " * 30
    kept = lm.tok_encode(long)[-(lm.max_length - 1) :]
    whole = scores(lm, [(long, " is blue")])
    assert lm.truncated == 1
    cut = lm._loglikelihood_tokens([(None, kept, lm.tok_encode("is blue"))], disable_tqdm=True)
    assert whole[0][0] == pytest.approx(cut[0][0], abs=1e-5)  # of latents that know no row


@pytest.mark.parametrize(
    ("method", "predictive", "said"),
    [
        ("laplace", "token", "covers only the answers it was fitted to"),
        ("ensemble", "mean", "supports only adapters"),
        ("lora", "median", "predictive 'median'"),
    ],
)
def test_laws_that_a_method_does_not_have_are_refused(
    place: Place, method: str, predictive: PredictiveName, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        BaraLM(build_system(place.config(method__name=method)), predictive)


def test_what_else_is_refused(place: Place, systems: dict[str, System]) -> None:
    average = {"method__average": "logits"}
    with pytest.raises(ConfigError, match="averages logits"):
        BaraLM(build_system(place.config(method__name="ensemble", **average)), "joint")
    with pytest.raises(ConfigError, match="samples=0"):
        BaraLM(systems["blob"], "joint", 0)
    with pytest.raises(ConfigError, match="batch_size='auto'"):
        BaraLM(systems["blob"], batch_size="auto")
    with pytest.raises(ConfigError, match="dtype='bfloat16'"):
        BaraLM(systems["blob"], dtype="bfloat16")
    with pytest.raises(ConfigError, match="already loaded"):
        BaraLM(systems["blob"], device="cpu")
    lm = BaraLM(systems["blob"], "joint", S)
    for context, continuation, part in (
        ([], [3], "context"),
        ([3], [], "continuation"),
        ([3], [4] * 65, "65"),
    ):
        with pytest.raises(DataError, match=part):
            lm._loglikelihood_tokens([(("a", "b"), context, continuation)], disable_tqdm=True)


def test_a_length_beyond_the_language_model_is_refused(place: Place) -> None:
    system = system_of(place, "bara-gate")
    assert BaraLM(system).max_length == 64
    assert BaraLM(system, max_length=20).max_length == 20
    with pytest.raises(ConfigError, match="max_length takes 65 tokens, more than the 64"):
        BaraLM(system, max_length=65)


def test_the_old_name_of_predictive_still_works(systems: dict[str, System]) -> None:
    with pytest.warns(DeprecationWarning, match="law is now predictive"):
        assert BaraLM(systems["plain"], law="mean").predictive == "mean"
