"""What is kept of a model that learnt replies: scores of the best of n, diversity, entropy; and the tax.

Replies to every test prompt at several temperatures, by draws of the posterior (one a reply) and at its mean,
which separates diversity from weights and diversity from temperature. The tax is what learning replies
costs elsewhere: scores on tasks of questions, before and after.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bara_pyro.core.likelihood import AnswerLikelihood
from bara_pyro.core.observing import observing
from bara_pyro.data import answer_token_ids, encode_labels
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation import Prompt, Reply, generate
from bara_pyro.extras.replies.generation.prompts import PromptLike
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
from bara_pyro.types import Fields, Law

SAMPLES = 10
TEMPERATURES = (0.6, 0.8, 1.0, 1.3)
NUMBERS = (1, 2, 4, 8, 16, 32)
FEW = 8  # replies a prompt that diversity is of: Self-BLEU takes time with the square of their number
THOUSAND = 1000  # scores are kept in thousandths
QUESTIONS = ("micro-wgs", "micro-wgm", "micro-arce", "micro-arcc", "micro-obqa", "micro-boolq")
# What lm-eval counts right answers by: choices; of gsm8k the numbers behind "####", as the leaderboard does.
RIGHT = ("acc,none", "exact_match,strict-match")

Scores = dict[str, dict[str, float]]
"""Task -> what was scored on it: `acc`, right answers in percent, `nll` in nats where it is known."""
Tax = Callable[[System], tuple[Scores, Scores]]
"""Scores of a fitted system, and those of its language model before it learnt anything."""


@dataclass(frozen=True)
class Sampling:
    """What every model generates.

    Attributes:
        prompts: test prompts.
        score: place of a prompt and replies to it -> what each is worth, 0 to 1.
        temperatures: to sample at.
        max_new_tokens: where a reply is cut.
        stop: texts that end a reply.
    """

    prompts: Sequence[PromptLike] | Sequence[Prompt]
    score: Callable[[int, Sequence[str]], Sequence[float]]
    temperatures: Sequence[float] = TEMPERATURES
    max_new_tokens: int = 40
    stop: Sequence[str] = ()


@dataclass(frozen=True)
class Look:
    """What is measured in every model: replies, and the loss on other tasks (None: not measured).

    `facts` are what results depend on beside that, and the page may name.
    """

    sampling: Sampling
    tax: Tax | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def sampled(system: System, sampling: Sampling, replies: int, tax: Tax | None = None) -> dict[str, Any]:
    """Return what is kept of a fitted system, with so many replies a prompt.

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
    found: dict[str, Any] = {
        "nll": reply_scores(draw(system, split, SAMPLES), split.counts)["nll"],
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


# The tax ---------------------------------------------------------------------------------------------------


def questions_tax(rows: int, tasks: Sequence[str] = QUESTIONS) -> Tax:
    """Return the tax on tasks of questions, by the first `rows` test rows of each, S = 10."""

    def tax(system: System) -> tuple[Scores, Scores]:
        name = system.config.backbone.name
        after = {task: on_questions(system, task, rows) for task in tasks}
        return after, {task: untrained(name, task, rows) for task in tasks}

    return tax


def on_questions(system: System, task: str, rows: int) -> dict[str, float]:
    """Return accuracy (percent) and NLL (nats) of a model that learnt replies on a task of questions."""
    other = asking(system, task, rows)
    with observing(system.model, AnswerLikelihood()):
        return _scored(other, SAMPLES)


def _scored(system: System, samples: int) -> dict[str, float]:
    split = system.split("test")
    found = evaluate(posterior_predictive(draw(system, split, samples)), torch.tensor(split.labels))
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
    return _scored(build_system(load_config(overrides=settings)), 0)


def harness_tax(data_dir: Path, tasks: Sequence[str], rows: int, samples: int) -> Tax:
    """Return the tax on tasks of lm-evaluation-harness, by the first `rows` rows of each.

    The paper's six are arc_challenge, gsm8k (which is written), hellaswag, the subjects of MMLU,
    truthfulqa_mc1 or mc2, and winogrande. After: under the law "joint" of `samples` draws, or at the
    posterior mean of a method without draws.
    """
    before: Scores = {}

    def tax(system: System) -> tuple[Scores, Scores]:
        from bara_pyro.extras.lmeval.harness import BaraLM, evaluate_tasks  # an extra

        def scored(law: Law) -> Scores:
            lm = BaraLM(system, law=law, samples=samples, batch_size=8)
            results = evaluate_tasks(lm, tasks, data_dir=data_dir, limit=rows)["results"]
            return {
                task.removeprefix("bara_"): {"acc": 100 * right(task, found)}
                for task, found in results.items()
            }

        if not before:
            before.update(scored("base"))
        drawn = system.guide.stochastic and bool(system.model.latents)
        return scored("joint" if drawn else "mean"), dict(before)

    return tax


def right(task: str, found: Fields) -> float:
    """Return the share of right answers in what lm-eval says of a task; a `ConfigError` where it has none."""
    name = next((name for name in RIGHT if name in found), None)
    if name is None:
        raise ConfigError(
            f"The task {task} is scored by {', '.join(found)}: choose tasks that give one of "
            f"{', '.join(RIGHT)}."
        )
    return float(found[name])
