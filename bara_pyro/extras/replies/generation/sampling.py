"""How a token is chosen: by the logits processors of transformers, and a number that its place decides."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from bara_pyro.core.noise import CounterNoise
from bara_pyro.errors import ConfigError

TOKEN = "token"  # noqa: S105 - the stream of numbers that tokens are chosen by


def warpers(temperature: float, top_p: float, top_k: int) -> list[LogitsProcessor]:
    """Return what narrows a distribution before a token is drawn from it, in transformers' order.

    Raises:
        ConfigError: a value is out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise ConfigError(f"temperature is {temperature}: give 0 for the likeliest token, or more.")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}: give more than 0 and at most 1.")
    if top_k < 0:
        raise ConfigError(f"top_k is {top_k}: give 0 for all tokens, or more.")
    found: list[LogitsProcessor] = []
    if temperature not in (0, 1):
        found.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        found.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        found.append(TopPLogitsWarper(float(top_p)))
    return found


class Choice(LogitsProcessor):
    """Chooses a token a reply and leaves it alone possible, so that greedy decoding takes it.

    By the inverse of the distribution function, at a number that seed, prompt, reply and place decide:
    neither the batch nor a generator has a part in it.

    Args:
        dice: addresses of the replies, `R` draws of one row each.
        together: rows a reply, whose distributions are averaged: K of the mixture decoder, else 1.
        narrowing: see `warpers`; nothing is narrowed for the likeliest token.
        likeliest: take the likeliest token.
        width: tokens of the prompts, padding included.

    Attributes:
        log_probs: of the tokens chosen so far, a list of `R` float32 a step: under the distribution of the
            model, or the mean of the K distributions, before it is narrowed.
    """

    def __init__(
        self,
        dice: CounterNoise,
        together: int,
        narrowing: Sequence[LogitsProcessor],
        *,
        likeliest: bool,
        width: int,
    ) -> None:
        self.dice = dice
        self.together = together
        self.narrowing = narrowing
        self.likeliest = likeliest
        self.width = width
        self.log_probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores, `rows x V`, that leave one token a reply."""
        own = scores.float().unflatten(0, (-1, self.together)).log_softmax(-1)
        mean = own[:, 0] if self.together == 1 else own.logsumexp(1) - torch.tensor(self.together).log()
        token = mean.argmax(-1) if self.likeliest else self._drawn(input_ids, mean)
        self.log_probs.append(mean.gather(-1, token.unsqueeze(-1)).squeeze(-1))
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(-1, token.repeat_interleave(self.together).unsqueeze(-1), 0.0)

    def _drawn(self, input_ids: Tensor, distribution: Tensor) -> Tensor:
        narrowed = distribution
        for warper in self.narrowing:
            narrowed = warper(input_ids, narrowed)
        step = input_ids.shape[1] - self.width
        self.dice.move(torch.full((len(distribution), 1, 1), step))
        coarse, fine = self.dice.numbers(TOKEN, 2)[:, 0, 0].double().unbind(-1)
        number = (coarse - 2.0**-24 + fine * 2.0**-23).unsqueeze(-1)  # 46 bits: rare tokens are as rare
        below = narrowed.double().softmax(-1).cumsum(-1)
        # Never the first of no probability: the sum of all may be a little less than 1.
        last = (narrowed > -torch.inf).long().cumsum(-1).argmax(-1)
        chosen = torch.searchsorted(below, number * below[:, -1:], right=True).squeeze(-1)
        return torch.minimum(chosen, last)
