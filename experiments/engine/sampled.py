"""What is sampled from a model that learnt replies: scores of the best of n, diversity, entropy; the tax.

Replies to every test prompt at several temperatures, by draws of the posterior (one a reply) and at its mean,
so that diversity from weights can be told from diversity from temperature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bara_pyro.extras.replies.generation import Prompt, Reply, generate
from bara_pyro.extras.replies.generation.prompts import PromptLike
from bara_pyro.metrics import best_of_n_per_prompt, distinct_n, self_bleu_diversity
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.reply_scores import reply_scores
from bara_pyro.runs.system import System
from experiments.engine.alignment_tax import SAMPLES, Tax

TEMPERATURES = (0.6, 0.8, 1.0, 1.3)
NUMBERS = (1, 2, 4, 8, 16, 32)
FEW = 8  # replies a prompt that diversity is of: Self-BLEU takes time with the square of their number
THOUSAND = 1000  # scores are kept in thousandths

Score = Callable[[int, Sequence[str]], Sequence[float]]
"""Place of a prompt and replies to it -> what each is worth, 0 to 1."""


@dataclass(frozen=True)
class Sampling:
    """What is asked of every model.

    Attributes:
        prompts: test prompts.
        score: of replies to them.
        temperatures: to sample at.
        max_new_tokens: where a reply is cut.
        stop: texts that end a reply.
    """

    prompts: Sequence[PromptLike] | Sequence[Prompt]
    score: Score
    temperatures: Sequence[float] = TEMPERATURES
    max_new_tokens: int = 40
    stop: Sequence[str] = ()


def sampled(system: System, sampling: Sampling, replies: int, tax: Tax | None = None) -> dict[str, Any]:
    """Return what is kept of a fitted system.

    Args:
        system: fitted.
        sampling: what it is asked.
        replies: number of replies a prompt.
        tax: what it has lost elsewhere; None: not asked.

    Returns:
        `nll`: nats a token of the test replies, whole ones each under one of `SAMPLES` draws; `samples`: of
        each temperature and kind of draws `best` (n -> the expected best score of n of each prompt, in
        thousandths), `diversity` (100 - Self-BLEU of the first replies of each prompt, in tenths),
        `distinct` (distinct 1- and 2-grams a hundred words), `entropy` (minus the log-probability at
        temperature 1 of a sampled token, nats) and `tokens` a reply; `tax` and `before`: scores elsewhere,
        where asked.
    """
    split = system.replies("test")
    kinds = ("each", "mean") if system.guide.stochastic and system.model.latents else ("mean",)
    test = reply_scores(draw(system, split, SAMPLES), split.counts)
    found: dict[str, Any] = {
        "nll": test["nll"],
        "samples": [
            _samples(system, sampling, kind, temperature, replies)
            for kind in kinds
            for temperature in sampling.temperatures
        ],
    }
    if tax is not None:
        found["tax"], found["before"] = tax(system)
    return found


def _samples(system: System, sampling: Sampling, kind: str, temperature: float, count: int) -> dict[str, Any]:
    found: dict[str, list[Reply]] = {}
    made = generate(
        system.model,
        system.guide,
        sampling.prompts,
        replies=count,
        draws=kind,
        temperature=temperature,
        max_new_tokens=sampling.max_new_tokens,
        stop=sampling.stop,
        memory_budget=2**29,
    )
    for reply in made:
        found.setdefault(reply.prompt, []).append(reply)
    replies = list(found.values())
    rewards = np.array([sampling.score(i, [reply.text for reply in own]) for i, own in enumerate(replies)])
    best = best_of_n_per_prompt(rewards)
    texts = [[reply.text or "." for reply in own[:FEW]] for own in replies]
    spread = self_bleu_diversity(texts)
    tokens = [log_prob for own in replies for reply in own for log_prob in reply.log_probs]
    return {
        "draws": kind,
        "temperature": temperature,
        "best": {str(n): numbers(best[:, n - 1] * THOUSAND) for n in NUMBERS if n <= count},
        "diversity": numbers(10 * spread.per_prompt),
        "signature": spread.signature,
        "distinct": [float(distinct_n(texts, n).mean()) for n in (1, 2)],
        "entropy": -float(np.mean(tokens)),
        "tokens": len(tokens) / sum(map(len, replies)),
    }


def numbers(values: np.ndarray) -> str:
    """Return numbers as whole ones in one text: a line of a file, not a line each."""
    return " ".join(str(round(float(value))) for value in values)


def read_numbers(text: str) -> np.ndarray:
    """Return the numbers in a text of `numbers`."""
    return np.array([float(word) for word in text.split()])
