"""Best of n by a lower confidence bound of a Bayesian reward model, against a plain reward model.

    python -m experiments reward

Reward models are adapters of the bundled language model with the Bradley-Terry likelihood. The
preferences are noisy, the true score of every reply is known, and one frozen model writes all replies.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyro
import torch
from matplotlib.figure import Figure
from pyro import poutine
from pyro.distributions import Bernoulli
from torch import Tensor

import bara_pyro as bp
from bara_pyro.cli.terminal import say
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD, Head
from bara_pyro.core.noise import seeded
from bara_pyro.core.prediction import predict
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data import EncodedSplit
from bara_pyro.data.types import Batch
from bara_pyro.extras.replies.generation import generate
from bara_pyro.lm.backbone import Backbone
from bara_pyro.methods import METHODS, build, method_config
from bara_pyro.metrics import crossed_interval, prompt_weights
from bara_pyro.metrics.best_of_n import rank_weights
from bara_pyro.metrics.intervals import TaskDifference
from bara_pyro.microworld.chat import ChatPrompt, score_reply
from bara_pyro.microworld.replies import chat_prompts
from bara_pyro.microworld.world import Split, World
from bara_pyro.report import Column, Table
from bara_pyro.report.style import dress, line_style, new_figure
from bara_pyro.runs.sections import TrainConfig
from experiments.engine.arguments import command_line, option
from experiments.engine.results import Results, having, results_option, resumed
from experiments.page.figures import PAGE, legend_below
from experiments.page.parts import Part, Picture
from experiments.page.spec import StudySpec
from experiments.page.tables import interval_cell

PLAIN, OURS = "lora", "bara-gate"
# Settings of a method and its rank. The ensemble has about as many trained numbers as the gate form.
ARMS: dict[str, tuple[dict[str, Any], int]] = {
    PLAIN: ({"name": "lora"}, 8),
    "ensemble": ({"name": "ensemble", "members": 3}, 5),
    OURS: ({"name": "bara-gate"}, 8),
}
LR, PAIRS_A_STEP, PASSES = 2.4e-3, 8, 2
SHARPNESS = 5.0  # log-odds of preferring a reply over one that scores 1 less, the range of the score
DRAWS = 8
KS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
PARTS: dict[str, tuple[Split, int]] = {"development": ("validation", 0), "test": ("test", 10)}
"""Part -> split of its prompts and its first seed."""
Pool = Sequence[tuple[ChatPrompt, Sequence[str], np.ndarray]]
"""Prompts with their replies and the true scores of these."""


class Preference(bp.AnswerLikelihood):
    """Bradley-Terry likelihood of rows in pairs, the preferred reply first; the reward is a log-odds."""

    def observe(self, hidden: Tensor, batch: Batch, head: Head) -> Tensor:
        """Observe which row of each pair is preferred; return the log-probabilities of both verdicts."""
        log_probs = self.scores(hidden, batch, head).log_softmax(-1)
        reward = log_probs[..., 0] - log_probs[..., 1]
        other = reward.unflatten(-2, (-1, 2)).flip(-2).flatten(-3, -2) if batch.labels is not None else 0.0
        won = None if batch.labels is None else (batch.labels == 0).float().unsqueeze(-1)
        with poutine.scale(scale=0.5):  # both rows of a pair observe the same comparison
            pyro.sample(LIKELIHOOD, Bernoulli(logits=reward - other), obs=won)
        return log_probs.squeeze(-2)


@cache
def backbone() -> Backbone:
    """Return the bundled language model."""
    return bp.load_backbone("microworld")


@cache
def verdicts() -> Tensor:
    """Return the two answer tokens whose log-odds are the reward."""
    return bp.answer_token_ids(backbone().tokenizer, ("A", "B"))


def apart(split: Split, count: int) -> list[ChatPrompt]:
    """Return prompts of a split, each about another resident."""
    first = {prompt.who.name: prompt for prompt in reversed(chat_prompts(split))}
    return list(first.values())[:count]


def written(prompts: Sequence[ChatPrompt], count: int, seed: int) -> list[list[str]]:
    """Return replies of the frozen language model to each prompt, at temperature 1."""
    model = bp.models.LoRA(backbone(), num_data=1, likelihood=bp.CompletionLikelihood())
    texts = [prompt.text for prompt in prompts]
    how: dict[str, Any] = {"replies": count, "draws": "mean", "max_new_tokens": 28, "seed": seed}
    replies: list[list[str]] = [[] for _ in prompts]
    for reply in generate(model, bp.guides.DeltaGuide(model), texts, **how):
        replies[int(reply.prompt)].append(reply.text)
    return replies


def encoded(texts: Sequence[str]) -> EncodedSplit:
    """Return texts as rows, labelled as if each even row were preferred to the next one."""
    tokens = tuple(backbone().tokenizer.encode(text) for text in texts)
    ids = tuple(map(str, range(len(texts))))
    return EncodedSplit(tokens, tuple(i % 2 for i in range(len(texts))), ids, pad_id=0)


def preferences(pairs: int, seed: int) -> EncodedSplit:
    """Return pairs of replies, the better preferred with probability `sigmoid(SHARPNESS * difference)`."""
    world, rng = World(), random.Random(f"reward {seed}")
    prompts = chat_prompts("train", seed)[: pairs // 2]
    rows = []
    for prompt, replies in zip(prompts, written(prompts, 4, seed), strict=True):
        for a, b in (replies[:2], replies[2:]):
            gain = score_reply(world, prompt, a) - score_reply(world, prompt, b)
            better = rng.random() < 1 / (1 + np.exp(-SHARPNESS * gain))
            rows += [prompt.text + reply for reply in ((a, b) if better else (b, a))]
    return encoded(rows)


def fitted(arm: str, rows: EncodedSplit, seed: int) -> tuple[AdaptedLM, SiteGuide]:
    """Return a reward model trained on preferences."""
    settings, rank = ARMS[arm]
    config = method_config(settings).for_rows(len(rows))
    steps = PASSES * len(rows) // (2 * PAIRS_A_STEP)
    with seeded(torch.device("cpu"), seed):
        model, guide = build(config, backbone(), len(rows), {"r": rank, "likelihood": Preference()})
        svi = METHODS[arm].svi(model, guide, TrainConfig(lr=LR, steps=steps), config)
        for step in range(steps):
            pairs = bp.training_batches(len(rows) // 2, PAIRS_A_STEP, seed=seed, step=step)
            svi.step(rows.batch([row for pair in pairs for row in (2 * pair, 2 * pair + 1)], verdicts()))
    return model, guide


def rewards(model: AdaptedLM, guide: SiteGuide, prompt: ChatPrompt, replies: Sequence[str]) -> np.ndarray:
    """Return the rewards of replies under each draw, less the draw's mean: `draws x replies`.

    Preferences say nothing about a reward that all replies to a prompt share, so it is taken out.
    """
    texts = list(dict.fromkeys(replies))
    rows = encoded([prompt.text + text for text in texts])
    batch = rows.batch(range(len(rows)), verdicts()).unlabelled()
    log_probs = predict(model, guide, batch, samples=DRAWS).numpy()
    found = (log_probs[..., 0] - log_probs[..., 1])[:, [texts.index(reply) for reply in replies]]
    return found - found.mean(axis=1, keepdims=True)


def curve(chosen_by: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the expected score of the reply of highest `chosen_by` among n random ones, n = 1 .. N."""
    return rank_weights(len(scores)) @ scores[np.argsort(chosen_by, kind="stable")]


def looked_at(arm: str, rows: EncodedSplit, seed: int, pool: Pool) -> dict[str, Any]:
    """Return the curve of each prompt by k, in thousandths, and how rewards and true scores correlate."""
    model, guide = fitted(arm, rows, seed)
    curves: dict[float, list[np.ndarray]] = {k: [] for k in KS}
    agreement = []
    for prompt, replies, scores in pool:
        drawn = rewards(model, guide, prompt, replies)
        center, spread = drawn.mean(axis=0), drawn.std(axis=0)
        agreement.append(float(np.corrcoef(center, scores)[0, 1]))
        for k in KS if len(set(map(tuple, drawn))) > 1 else KS[:1]:
            curves[k].append(curve(center - k * spread, scores))
    numbers = numbers_up_to(len(pool[0][1]))
    kept = {str(k): np.array(found)[:, [n - 1 for n in numbers]] for k, found in curves.items() if found}
    return {
        "curves": {k: (1000 * found).round().astype(int).tolist() for k, found in kept.items()},
        "correlation": float(np.mean(agreement)),
    }


def numbers_up_to(most: int) -> list[int]:
    """Return the powers of two up to a number."""
    return [2**power for power in range(most.bit_length())]


def main() -> None:
    """Train and look at what is missing, write after each reward model."""
    parser = command_line(__doc__)
    parser.add_argument("--prompts", **option([12, 32], "prompts of both parts, development first"))
    parser.add_argument("--seeds", **option([2, 4], "seeds of both parts"))
    parser.add_argument("--pairs", **option(640, "preferences to train on"))
    parser.add_argument("--replies", **option(256, "replies to choose from"))
    results_option(parser)
    args = parser.parse_args()
    about = {"pairs": args.pairs, "replies": args.replies, "prompts": args.prompts}
    results = resumed("reward", args.out, {"model": "microworld", **about})
    world = World()
    for (part, (split, first)), count, seeds in zip(PARTS.items(), args.prompts, args.seeds, strict=True):
        prompts = apart(split, count)
        pool = [
            (prompt, replies, np.array([score_reply(world, prompt, reply) for reply in replies]))
            for prompt, replies in zip(prompts, written(prompts, args.replies, first), strict=True)
        ]
        for seed in range(first, first + seeds):
            rows = preferences(args.pairs, seed)
            for arm in ARMS:
                if (key := f"{part} {seed} {arm}") not in results.entries:
                    place = {"part": part, "seed": seed, "arm": arm}
                    results.add(key, {**place, **looked_at(arm, rows, seed, pool)})
                    say(f"{key}: {results.path}")


# The page --------------------------------------------------------------------------------------------------

SETUP = """\
The bundled language model writes {replies} replies to each prompt of `micro-chat`. The microworld knows
their true scores. A reward model is trained on {pairs} pairs of replies to other prompts. The better reply
of a pair is preferred with probability sigmoid({sharpness:g} (difference of true scores)). The reward is
the log-odds of two answer tokens behind the reply.

- **Training**: two passes, 8 pairs a step, learning rate {lr:g}, otherwise the defaults.
- **Draws**: {draws} of the gate form and the 3 members of the ensemble. Members have rank 5, so the ensemble
  has as many trained numbers as the gate form.
- **Lower bound**: mean minus k standard deviations of the reward over draws. Each draw is taken less its
  mean over the replies to the prompt. k is chosen on {development} prompts about other residents, with other
  seeds.
- **Curve**: the mean over all choices of n of the {replies} replies. The KL of best of n is
  log n - (n - 1) / n.
- **Intervals** cover seeds and prompts ({seeds} seeds, {test} prompts). The plan was written before the run:
  `experiments/studies/reward/plan.md`.
"""


def values(results: Results, part: str, arm: str, k: float) -> np.ndarray:
    """Return the true scores in percent, `seeds x prompts x numbers`."""
    entries = having(list(results.entries.values()), part=part, arm=arm)
    return np.array([entry["curves"][str(k)] for entry in entries]) / 10


def chosen_k(results: Results, arm: str) -> float:
    """Return the positive k that is best on the development prompts, with all replies to choose from."""
    return max(KS[1:], key=lambda k: float(values(results, "development", arm, k)[..., -1].mean()))


def choices(results: Results) -> dict[str, tuple[str, float]]:
    """Return what a reply can be chosen by: name -> arm and k."""
    found = {"LoRA, plain reward": (PLAIN, 0.0)}
    for arm, name in (("ensemble", "ensemble"), (OURS, "BaRA gate")):
        k = chosen_k(results, arm)
        found |= {f"{name}, mean": (arm, 0.0), f"{name}, lower bound (k = {k:g})": (arm, k)}
    return found


def minus(results: Results, one: tuple[str, float], other: tuple[str, float]) -> dict[str, Any]:
    """Return a difference of true scores in points, all replies to choose from, with its interval."""
    gap = values(results, "test", *one)[..., -1] - values(results, "test", *other)[..., -1]
    names = [str(prompt) for prompt in range(gap.shape[1])]
    drawn = torch.from_numpy(prompt_weights(names) @ gap.T)
    return vars(crossed_interval([TaskDifference(torch.from_numpy(gap.mean(1)), drawn, frozenset(names))]))


def parts(results: Results) -> list[Part]:
    """Return the figure and the table."""
    caption = (
        "True score of the chosen reply against the number of replies to choose from, "
        "mean over seeds and test prompts."
    )
    bounds = [(arm, chosen_k(results, arm)) for arm in (OURS, "ensemble")]
    between = interval_cell(minus(results, *bounds), 1)
    return [
        Picture(lambda: over_optimisation(results), "reward-over-optimisation", caption),
        table(results),
        f"BaRA gate's lower bound minus the ensemble's, all replies to choose from: {between} points.\n",
    ]


def table(results: Results) -> Table:
    """Return the true scores by n, and differences to the plain reward and to the mean of the same draws."""
    ways, numbers = choices(results), numbers_up_to(results.about["replies"])
    shown = [n for n in numbers if n in (1, 4, 16, 64, 256) or n == numbers[-1]]
    columns = [Column("way", "chosen by"), *(Column(str(n), f"n = {n} (%)", format=".1f") for n in shown)]
    columns += [Column("plain", f"minus LoRA, n = {numbers[-1]} (points)"), Column("mean", "minus its mean")]
    rows = []
    for name, way in ways.items():
        means = values(results, "test", *way).mean(axis=(0, 1))
        row: dict[str, Any] = {"way": name, **{str(n): means[numbers.index(n)] for n in shown}}
        if way[0] != PLAIN:
            row["plain"] = interval_cell(minus(results, way, (PLAIN, 0.0)), 1)
        if way[1]:
            row["mean"] = interval_cell(minus(results, way, (way[0], 0.0)), 1)
        rows.append(row)
    return Table(tuple(columns), rows, "True score of the chosen reply on test prompts")


def over_optimisation(results: Results) -> Figure:
    """Draw the true score of the chosen reply against the number of replies."""
    numbers = numbers_up_to(results.about["replies"])
    figure = new_figure(PAGE, 3.4)
    axes = figure.add_subplot()
    for index, (name, way) in enumerate(choices(results).items()):
        axes.plot(numbers, values(results, "test", *way).mean(axis=(0, 1)), label=name, **line_style(index))
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [f"{n}\n{np.log(n) - (n - 1) / n:.1f}" for n in numbers])
    dress(axes, "Replies to choose from, n; below: KL of best of n (nats)", "True score (%)")
    legend_below(figure, 2)
    return figure


def facts(results: Results) -> dict[str, Any]:
    """Return what the setup names."""
    development, test = results.about["prompts"]
    seeds = len(values(results, "test", PLAIN, 0.0))
    fixed = {"sharpness": SHARPNESS, "lr": LR, "draws": DRAWS}
    return {**results.about, **fixed, "development": development, "test": test, "seeds": seeds}


STUDY = StudySpec(
    "Does a lower confidence bound on the reward prevent over-optimisation?",
    SETUP,
    main,
    parts,
    facts=facts,
)
