"""What is sampled from a model that learnt replies: scores of the best of n, diversity, entropy; the tax.

Replies to every test prompt at several temperatures, by draws of the posterior (one a reply) and at its mean,
so that diversity from weights can be told from diversity from temperature.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from bara_pyro.core.likelihood import AnswerLikelihood
from bara_pyro.core.observing import observing
from bara_pyro.data import answer_token_ids, encode_labels
from bara_pyro.generation import Reply, generate
from bara_pyro.metrics import (
    best_of_n_per_prompt,
    distinct_n,
    evaluate,
    posterior_predictive,
    self_bleu_diversity,
)
from bara_pyro.runs.config import load_config, parse_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.reply_scores import reply_scores
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system

TEMPERATURES = (0.6, 0.8, 1.0, 1.3)
NUMBERS = (1, 2, 4, 8, 16, 32)
FEW = 8  # replies a prompt that diversity is of: Self-BLEU takes time with the square of their number
THOUSAND = 1000  # scores are kept in thousandths
SAMPLES = 10
TAXED = ("micro-wgs", "micro-wgm", "micro-arce", "micro-arcc", "micro-obqa", "micro-boolq")

Score = Callable[[int, str], float]
"""Place of a prompt and a reply -> what the reply is worth, 0 to 1."""


def sampled(system: System, prompts: Sequence[str], score: Score, args: Namespace) -> dict[str, Any]:
    """Return what is kept of a fitted system.

    Returns:
        `nll`: nats a token of the test replies, whole ones each under one of `SAMPLES` draws; `samples`: of
        each temperature and kind of draws `best` (n -> the expected best score of n of each prompt, in
        thousandths), `diversity` (100 - Self-BLEU of the first replies of each prompt, in tenths),
        `distinct` (distinct 1- and 2-grams a hundred words), `entropy` (nats a token, of the sampled ones at
        temperature 1) and `tokens` a reply; `tax`: accuracy and NLL on tasks of questions.
    """
    split = system.replies("test")
    kinds = ("each", "mean") if system.guide.stochastic and system.model.latents else ("mean",)
    test = reply_scores(draw(system, split, SAMPLES), split.counts)
    return {
        "nll": test["nll"],
        "samples": [
            _samples(system, prompts, score, kind, temperature, args.replies)
            for kind in kinds
            for temperature in TEMPERATURES
        ],
        "tax": {task: tax(system, task, args.rows) for task in TAXED},
        "before": {task: untrained(system.config.backbone.name, task, args.rows) for task in TAXED},
    }


def _samples(
    system: System, prompts: Sequence[str], score: Score, kind: str, temperature: float, count: int
) -> dict[str, Any]:
    found: list[list[Reply]] = [[] for _ in prompts]
    made = generate(
        system.model,
        system.guide,
        list(prompts),
        replies=count,
        draws=kind,
        temperature=temperature,
        max_new_tokens=40,
        memory_budget=2**29,
    )
    for reply in made:
        found[int(reply.prompt)].append(reply)
    rewards = np.array([[score(i, reply.text) for reply in own] for i, own in enumerate(found)])
    best = best_of_n_per_prompt(rewards)
    texts = [[reply.text or "." for reply in own[:FEW]] for own in found]
    spread = self_bleu_diversity(texts)
    tokens = [log_prob for own in found for reply in own for log_prob in reply.log_probs]
    return {
        "draws": kind,
        "temperature": temperature,
        "best": {str(n): numbers(best[:, n - 1] * THOUSAND) for n in NUMBERS if n <= count},
        "diversity": numbers(10 * spread.per_prompt),
        "signature": spread.signature,
        "distinct": [float(distinct_n(texts, n).mean()) for n in (1, 2)],
        "entropy": -float(np.mean(tokens)),
        "tokens": len(tokens) / sum(map(len, found)),
    }


def numbers(values: np.ndarray) -> str:
    """Return numbers as whole ones in one text: a line of a file, not a line each."""
    return " ".join(str(round(float(value))) for value in values)


def read_numbers(text: str) -> np.ndarray:
    """Return the numbers in a text of `numbers`."""
    return np.array([float(word) for word in text.split()])


def tax(system: System, task: str, rows: int) -> dict[str, float]:
    """Return accuracy (percent) and NLL (nats) of a model that learnt replies on a task of questions."""
    other = asking(system, task, rows)
    with observing(system.model, AnswerLikelihood()):
        log_probs = posterior_predictive(draw(other, other.split("test"), SAMPLES))
    found = evaluate(log_probs, torch.tensor(other.split("test").labels))
    return {key: found[key] for key in ("acc", "nll")}


def asking(system: System, task: str, rows: int) -> System:
    """Return a system with the first test rows of a task of questions; its program still observes replies."""
    data = system.config.dump()
    data["task"] = {"name": task, "limit": rows}
    config = parse_config(data)
    encoded = encode_labels(load_data(config), system.backbone.tokenizer, config.task.labels)
    ids = answer_token_ids(system.backbone.tokenizer, encoded.labels)
    return replace(system, config=config, task=encoded, answer_ids=ids, conversations=None)


@cache
def untrained(backbone: str, task: str, rows: int) -> dict[str, float]:
    """Return the same of the language model as it is, whose adapters change nothing yet."""
    settings = {"backbone.name": backbone, "task.name": task, "task.limit": rows, "method": "lora"}
    system = build_system(load_config(overrides=settings))
    log_probs = posterior_predictive(draw(system, system.split("test"), 0))
    found = evaluate(log_probs, torch.tensor(system.split("test").labels))
    return {key: found[key] for key in ("acc", "nll")}
