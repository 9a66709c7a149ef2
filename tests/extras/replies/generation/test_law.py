"""The distribution of two tokens, by enumeration of all pairs: at the mean, under draws, narrowed and not."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_cases import save_backbone, word_tokenizer
from generation_cases import Pair, adapted, words
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from bara_pyro.core.attached import attached
from bara_pyro.core.prediction import predict
from bara_pyro.data.replies import EncodedReply, reply_batch
from bara_pyro.extras.replies.generation import Prompt, generate
from bara_pyro.lm.loading import load_backbone

Distribution = NDArray[np.float64]
VOCABULARY, END = 8, 1
ASKED = Prompt((3, 5, 4), "asked")
# A reply is over after the token that ends a text, or after two.
PAIRS = [(END,), *((a, b) for a, b in product(range(VOCABULARY), repeat=2) if a != END)]
HOW = [{}, {"top_p": 0.7}, {"temperature": 0.5, "top_k": 5}, {"temperature": 1.5, "top_k": 6, "top_p": 0.8}]


@pytest.fixture(scope="module")
def few_words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A language model of eight tokens, which is enumerated fast."""
    whole = word_tokenizer()
    core = whole.backend_tokenizer.from_str(whole.backend_tokenizer.to_str())
    kept = {word: i for word, i in whole.get_vocab().items() if i < VOCABULARY}
    core.model = type(core.model)(kept, "<unk>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<end>")
    folder: Path = tmp_path_factory.mktemp("few")
    backbone = load_backbone(str(save_backbone(folder, tokenizer=tokenizer)))
    with torch.no_grad():
        backbone.lm.get_output_embeddings().weight.mul_(0.4)  # so that many pairs are likely
    return backbone


@pytest.fixture(scope="module")
def pair(few_words: Any) -> Pair:
    torch.manual_seed(11)
    return adapted("bara-gate", few_words)


def narrowed(
    distribution: Distribution, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Distribution:
    """A distribution narrowed by the options, each by its definition: tokens, the likeliest first."""
    powers = [p ** (1 / temperature) for p in distribution]
    left = {token: power / sum(powers) for token, power in enumerate(powers)}
    order = sorted(left, key=lambda token: -left[token])[: top_k or None]
    total = sum(left[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p:
            break
        kept.append(token)
        mass += left[token] / total
    whole = sum(left[token] for token in kept)
    return np.array([left[token] / whole if token in kept else 0.0 for token in range(VOCABULARY)])


def joint(first: Distribution, second: Callable[[int], Distribution], how: dict[str, Any]) -> Distribution:
    """The probability of each of `PAIRS`, from the distribution of a token and of the one behind it."""
    one = narrowed(first, **how)
    two = {token: narrowed(second(token), **how) for token in range(VOCABULARY) if token != END}
    return np.array([one[own[0]] * (two[own[0]][own[1]] if len(own) > 1 else 1.0) for own in PAIRS])


def statistic(distributions: Distribution, counts: Distribution) -> tuple[float, int]:
    """Return chi-squared of counts of replies that each have a distribution of their own, and its freedom.

    Rare pairs are counted together. The covariance of the counts is the sum of those of the replies.
    """
    common = distributions.sum(0) >= 5
    together = np.concatenate(
        [distributions[:, common], distributions[:, ~common].sum(1, keepdims=True)], axis=1
    )
    seen = np.array([*counts[common], counts[~common].sum()])
    kept = together.sum(0) > 1e-9  # no rare ones
    together, seen = together[:, kept][:, 1:], seen[kept][1:]  # the first follows from the others
    off = seen - together.sum(0)
    covariance = np.diag(together.sum(0)) - together.T @ together
    return float(off @ np.linalg.solve(covariance, off)), len(off)


def replies(pair: Pair, count: int, how: dict[str, Any], **options: Any) -> Distribution:
    found = generate(*pair, [ASKED], replies=count, max_new_tokens=2, seed=3, **how, **options)
    seen = Counter(words(list(found)))
    assert set(seen) <= set(PAIRS)
    return np.array([seen[own] for own in PAIRS], dtype=float)


def assert_drawn_from(distributions: Distribution, counts: Distribution) -> None:
    assert distributions.sum(1) == pytest.approx(1, abs=1e-5)
    assert (counts[distributions.sum(0) == 0] == 0).all()
    found, freedom = statistic(distributions, counts)
    assert freedom > 5
    assert abs(found - freedom) < 4.5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("how", HOW)
def test_at_the_mean(pair: Pair, how: dict[str, Any]) -> None:
    """Distributions are those of transformers' own forward."""
    with attached(pair) as lm, torch.no_grad():

        def after(*tokens: int) -> Distribution:
            logits = lm(torch.tensor([[*ASKED.token_ids, *tokens]])).logits[0, -1]
            return logits.double().softmax(-1).numpy()

        distribution = joint(after(), after, how)
    distributions = np.tile(distribution, (3000, 1))
    counts = replies(pair, len(distributions), how, draws="mean")
    assert_drawn_from(distributions, counts)
    if how:  # that it is narrowed shows
        assert (distribution == 0).any()


@pytest.fixture(scope="module")
def enumerated(pair: Pair) -> Distribution:
    """The probability of each of `PAIRS` under each draw, `draws x pairs`, by a forward without a cache."""
    rows = [[EncodedReply(ASKED.token_ids, own, ASKED.key)] for own in PAIRS]
    return predict(*pair, reply_batch(rows), samples=4000, seed=3).exp().numpy()


def by_token(distribution: Distribution) -> tuple[Distribution, dict[int, Distribution]]:
    """The distribution of the first token, and of the second given the first, from that of pairs."""
    table = np.zeros((VOCABULARY, VOCABULARY))
    for own, p in zip(PAIRS, distribution, strict=True):
        table[own[0], own[-1]] = p
    first = table.sum(1)
    follows = np.divide(table, first[:, None], out=np.ones_like(table), where=first[:, None] > 0)
    return first, {token: follows[token] for token in range(VOCABULARY) if token != END}


@pytest.mark.slow
@pytest.mark.parametrize("how", [HOW[0], HOW[1], HOW[3]])
def test_under_draws(pair: Pair, enumerated: Distribution, how: dict[str, Any]) -> None:
    """Reply n is drawn from the distribution of draw n, which holds for both of its tokens."""
    parts = [by_token(distribution) for distribution in enumerated]
    distributions = np.array([joint(first, second.__getitem__, how) for first, second in parts])
    assert distributions.std(0).max() > 0.05
    counts = replies(pair, len(distributions), how)
    assert_drawn_from(distributions, counts)
    # It would show if a token had a draw of its own, or all the posterior mean.
    others = [second for _, second in parts[1:] + parts[:1]]
    redrawn = np.array([joint(f, s.__getitem__, how) for (f, _), s in zip(parts, others, strict=True)])
    at_mean = replies(pair, len(distributions), how, draws="mean")
    for other, seen in ((redrawn, counts), (distributions, at_mean)):
        found, freedom = statistic(other, seen)
        assert found - freedom > 5 * math.sqrt(2 * freedom)
