"""Studies of sampled replies: what is learnt, sampled and kept; and what learning replies costs elsewhere."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
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
from experiments.engine.arguments import experiment_parser, positive, preset, run_settings
from experiments.engine.run import about_runs, read_off
from experiments.engine.search import CHOICES_REPLIES, chosen
from experiments.engine.sweep import Job

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


METHODS = ("lora", "blob", "scalabl", "bara", "bara-gate")
COMPLETION = {"task.likelihood": "completion"}
Settings = Callable[[str], Mapping[str, Any]]
"""A method -> its dotted settings."""


@dataclass(frozen=True)
class Look:
    """What is looked at in every model.

    Attributes:
        sampling: what is asked.
        tax: what it has lost elsewhere; None: not asked.
        facts: what results depend on beside that, and the page may name.
    """

    sampling: Sampling
    tax: Tax | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def run(
    name: str,
    about: str | None,
    task: str,
    look: Callable[[Namespace], Look],
    settings: Settings,
    *,
    steps: int,
    replies: int,
    runs: str = "runs/replies",
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Train what is missing, sample from what has not been, write after each.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        task: that is learnt.
        look: arguments -> what is looked at.
        settings: of every method.
        steps: default of --steps.
        replies: default of --replies, to a prompt.
        runs: default of --runs.
        options: further arguments: name -> keyword arguments of `add_argument`.
    """
    parser = experiment_parser(about, runs=runs, methods=METHODS, tasks=None, steps=steps)
    add = parser.add_argument
    add("--replies", type=positive, default=replies, help="replies a prompt; default: %(default)s")
    for option, more in options.items():
        add(option, **more)
    args = parser.parse_args()
    asked = look(args)

    def found(system: System, args: Namespace) -> dict[str, Any]:
        return sampled(system, asked.sampling, args.replies, asked.tax)

    shared = {**COMPLETION, "task.name": task}
    jobs = {
        (method, seed): Job(
            run_settings(args, {**shared, "method": method, "seed": seed, **preset(settings(method))})
        )
        for seed in range(args.seeds)
        for method in args.methods
    }
    temperatures = list(asked.sampling.temperatures)
    about_all = about_runs(
        args, "replies", task=task, samples=SAMPLES, few=FEW, temperatures=temperatures, **asked.facts
    )
    read_off(name, jobs, ("method", "seed"), found, about_all, args, by_hash=True)


OPTIONS = {
    "--rows": {
        "type": positive,
        "default": 300,
        "help": "test rows of each task of questions; default: %(default)s",
    }
}


def run_in_microworld(name: str, about: str | None, task: str, asked: Callable[[], Sampling]) -> None:
    """Run a study of replies in the microworld.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        task: that is learnt.
        asked: gives the test prompts and the score of replies to them.
    """

    def look(args: Namespace) -> Look:
        return Look(asked(), questions_tax(args.rows), {"rows": args.rows})

    settings = partial(chosen, path=CHOICES_REPLIES)
    run(name, about, task, look, settings, steps=400, replies=max(NUMBERS), options=OPTIONS)


TASK = "ultrafeedback"
RUNS = "runs/instructions"
STEPS = 60  # two epochs of the 118 replies of at most 256 tokens, prompt included
UPPER = r"model\.layers\.2[789]\..*_proj|lm_head"


def settings(method: str) -> Mapping[str, Any]:
    """Return a method's settings: its defaults, adapters in the upper three of 30 blocks and the head."""
    return {
        "adapter.target_modules": UPPER,
        "task.max_length": 256,
        "task.too_long": "drop",
    }


def run_on_smollm2(
    name: str,
    about: str | None,
    look: Callable[[Namespace], Look],
    *,
    replies: int,
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Run a study of replies of SmolLM2; the trained models are shared by all of them.

    Args:
        name: of the study and of its results.
        about: what its command says of itself.
        look: arguments, with `model` and `data_dir` given -> what is looked at.
        replies: default of --replies, to a prompt.
        options: further arguments.
    """

    def checked(args: Namespace) -> Look:
        if args.model is None or args.data_dir is None:
            raise ConfigError(
                "Give --model and --data-dir: this study is of a real language model on real rows."
            )
        return look(args)

    run(name, about, TASK, checked, settings, steps=STEPS, replies=replies, runs=RUNS, options=options)
