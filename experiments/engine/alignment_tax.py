"""What learning replies costs elsewhere: accuracy on questions, before and after."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from bara_pyro.core.likelihood import AnswerLikelihood
from bara_pyro.core.observing import observing
from bara_pyro.data import answer_token_ids, encode_labels
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import evaluate, posterior_predictive
from bara_pyro.runs.config import load_config, parse_config
from bara_pyro.runs.evaluate import draw
from bara_pyro.runs.rows import load_data
from bara_pyro.runs.system import System, build_system
from bara_pyro.types import Fields, Law

SAMPLES = 10
QUESTIONS = ("micro-wgs", "micro-wgm", "micro-arce", "micro-arcc", "micro-obqa", "micro-boolq")

Scores = dict[str, dict[str, float]]
"""Task -> what was scored on it: `acc`, right answers in percent, `nll` in nats where it is known."""
# What lm-eval counts right answers by: choices; of gsm8k the numbers behind "####", as the leaderboard does.
RIGHT = ("acc,none", "exact_match,strict-match")
Tax = Callable[[System], tuple[Scores, Scores]]
"""Scores of a fitted system, and those of its language model before it learnt anything."""


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
    """Return the share of right answers in what lm-eval says of a task.

    Raises:
        ConfigError: it counts none of those that are known here.
    """
    name = next((name for name in RIGHT if name in found), None)
    if name is None:
        raise ConfigError(
            f"The task {task} is scored by {', '.join(found)}: choose tasks that give one of "
            f"{', '.join(RIGHT)}."
        )
    return float(found[name])
