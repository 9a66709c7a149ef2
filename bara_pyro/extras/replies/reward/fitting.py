"""Train a reward model on pairs of rows: only its head, or the head and LoRA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bara_pyro.core.noise import seeded
from bara_pyro.core.optimizers import linear_schedule
from bara_pyro.data import training_batches
from bara_pyro.errors import BackboneError, TrainingError
from bara_pyro.extras.replies.reward.bradley_terry import bradley_terry
from bara_pyro.extras.replies.reward.model import HEAD, RewardModel
from bara_pyro.extras.replies.reward.rows import pad_right
from bara_pyro.extras.replies.reward.scoring import forward
from bara_pyro.extras.replies.reward.settings import RewardConfig

if TYPE_CHECKING:
    from peft import LoraModel

TOKENS = 2048
"""Most tokens, including padding, per forward pass while the model keeps states for a gradient."""
WARMUP = 0.1
"""Share of the steps in which the learning rate rises."""
LARGEST_NORM = 1.0
"""Largest norm of the gradient; larger gradients are scaled down."""

PairRows = tuple[list[int], list[int]]
"""Tokens of a prompt with the preferred reply, and with the other reply."""
OnStep = Callable[[int, float], object]
"""Called after each step with the number of steps done and the loss of the step, in nats."""
OnRows = Callable[[int], object]
Scored = Callable[[Sequence[int]], tuple[Tensor, Tensor]]
"""Indices of pairs -> scores of their preferred replies, and of the others."""


@dataclass(frozen=True)
class LastEpoch:
    """Statistics of the last epoch of training.

    Attributes:
        nll: mean loss, in nats per pair.
        accuracy: percentage of pairs whose preferred reply had the higher score at their step.
    """

    nll: float
    accuracy: float


def fit_head(
    reward: RewardModel,
    pairs: Sequence[PairRows],
    config: RewardConfig,
    on_step: OnStep | None = None,
    on_rows: OnRows | None = None,
) -> LastEpoch:
    """Train the head of a reward model in place, on features that are computed once.

    `on_rows` is called after each batch of features with its number of rows.

    Raises:
        BackboneError: the model has no linear head.
        TrainingError: the loss is not finite.
    """
    states = features(reward, [row for pair in pairs for row in pair], on_rows)
    chosen, rejected = states[0::2], states[1::2]
    head = head_of(reward)

    def scored(places: Sequence[int]) -> tuple[Tensor, Tensor]:
        at = list(places)
        return head(chosen[at])[:, 0], head(rejected[at])[:, 0]

    return _fit(scored, lambda places: [places], list(head.parameters()), len(pairs), config, on_step)


def fit_lora(
    reward: RewardModel, pairs: Sequence[PairRows], config: RewardConfig, on_step: OnStep | None = None
) -> LastEpoch:
    """Train the head and LoRA in all linear layers below it in place, then merge LoRA into the weights.

    Raises:
        BackboneError: the package peft is not installed, or the model has no linear head.
        TrainingError: the loss is not finite.
    """
    tuner = _with_lora(reward, config)
    trained = [p for p in reward.model.parameters() if p.requires_grad]
    widths = [2 * max(map(len, pair)) for pair in pairs]

    def scored(places: Sequence[int]) -> tuple[Tensor, Tensor]:
        sides = [pairs[place][side] for side in (0, 1) for place in places]
        chosen, rejected = forward(reward, sides).chunk(2)
        return chosen, rejected

    def parts(places: Sequence[int]) -> list[Sequence[int]]:
        return _parts(places, widths)

    last = _fit(scored, parts, trained, len(pairs), config, on_step)
    with torch.no_grad():
        tuner.merge_and_unload()
    return last


def features(reward: RewardModel, rows: Sequence[Sequence[int]], on_rows: OnRows | None = None) -> Tensor:
    """Return the head's input for each row, the state of its last token (float32, `n x H`)."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    pad = reward.model.config.get_text_config().pad_token_id
    states: list[Tensor] = [torch.empty(0)] * len(rows)
    for places in _parts(order, [len(row) for row in rows]):
        ids, mask = pad_right([rows[place] for place in places], pad)
        with torch.no_grad():
            out = reward.model.base_model(ids.to(reward.device), attention_mask=mask.to(reward.device))
        for at, place in enumerate(places):
            states[place] = out.last_hidden_state[at, len(rows[place]) - 1].float()
        if on_rows is not None:
            on_rows(len(places))
    return torch.stack(states)


def head_of(reward: RewardModel) -> nn.Linear:
    """Return the head of a classifier made from a causal language model.

    Raises:
        BackboneError: the model has no linear head.
    """
    head = getattr(reward.model, HEAD, None)
    if not isinstance(head, nn.Linear):
        raise BackboneError(
            f"{reward.name} is a {type(reward.model).__name__} without a linear head named {HEAD!r}: give a "
            "causal language model."
        )
    return head


def _with_lora(reward: RewardModel, config: RewardConfig) -> "LoraModel":
    try:
        from peft import LoraConfig, LoraModel
    except ImportError as error:
        raise BackboneError("The package peft is not installed: pip install 'bara-pyro[peft]'.") from error
    how = LoraConfig(
        r=config.r, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="FEATURE_EXTRACTION"
    )
    reward.model.requires_grad_(False)
    with seeded(torch.device(reward.device), config.seed):
        tuner = LoraModel(reward.model.base_model, how, "default")
    for parameter in [p for p in reward.model.parameters() if p.requires_grad]:
        parameter.data = parameter.data.float()
    head_of(reward).requires_grad_(True)
    return tuner


def _parts(places: Sequence[int], lengths: Sequence[int]) -> list[Sequence[int]]:
    """Split indices of pairs into batches of at most `TOKENS` padded tokens, with at least one pair each."""
    parts: list[list[int]] = []
    for place in sorted(places, key=lambda place: lengths[place]):
        if not parts or (len(parts[-1]) + 1) * lengths[place] > TOKENS:
            parts.append([])
        parts[-1].append(place)
    return list(parts)


def _fit(
    scored: Scored,
    parts: Callable[[Sequence[int]], list[Sequence[int]]],
    parameters: list[nn.Parameter],
    pairs: int,
    config: RewardConfig,
    on_step: OnStep | None,
) -> LastEpoch:
    steps = config.steps(pairs)
    optimizer = torch.optim.AdamW(parameters, lr=config.rate, weight_decay=config.weight_decay)
    schedule = linear_schedule(optimizer, steps, WARMUP)
    losses: list[tuple[float, float]] = []  # and the share of pairs in the right order
    for step in range(steps):
        places = training_batches(pairs, config.batch_size, config.seed, step)
        optimizer.zero_grad()
        losses.append(_backward(scored, parts(places), len(places)))
        if not torch.isfinite(torch.tensor(losses[-1][0])):
            raise TrainingError(
                f"The loss is not finite at step {step + 1} of {steps}: lower lr ({config.rate:g}), or train "
                "in float32."
            )
        nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step + 1, losses[-1][0])
    last = torch.tensor(losses[-max(1, steps // config.epochs) :], dtype=torch.float64).mean(0).tolist()
    return LastEpoch(last[0], 100 * last[1])


def _backward(scored: Scored, parts: Sequence[Sequence[int]], pairs: int) -> tuple[float, float]:
    """Accumulate the gradient of a step; return its loss and the share of pairs in the right order."""
    loss = right = 0.0
    for part in parts:
        chosen, rejected = scored(part)
        piece = bradley_terry(chosen, rejected) * (len(part) / pairs)
        piece.backward()
        loss += piece.item()
        right += float(((chosen - rejected).detach().sign() + 1).sum()) / 2 / pairs
    return loss, right
