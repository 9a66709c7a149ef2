"""Choose tokens reproducibly: narrow the distribution as transformers does, then sample by an address."""

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

TOKEN = "token"  # noqa: S105 - name of the stream of random numbers that choose tokens


def warpers(temperature: float, top_p: float, top_k: int) -> list[LogitsProcessor]:
    """Return the logits processors that narrow a distribution before sampling, in transformers' order.

    Raises:
        ConfigError: a value is out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise ConfigError(
            f"temperature is {temperature}: give a number above 0, or 0 for the likeliest token."
        )
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p}: give a number above 0 and at most 1.")
    if top_k < 0:
        raise ConfigError(f"top_k is {top_k}: give a number of tokens, or 0 for all tokens.")
    processors: list[LogitsProcessor] = []
    if temperature not in (0, 1):
        processors.append(TemperatureLogitsWarper(float(temperature)))
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(float(top_p)))
    return processors


class Choice(LogitsProcessor):
    """Samples one token per reply and gives all others a score of -inf, so that greedy decoding takes it.

    It inverts the distribution function at a random number that depends only on seed, prompt, reply and
    position, so the token does not depend on the batch or on the state of a generator.

    Args:
        dice: addresses of the replies, `R` draws with one row each.
        together: number of rows per reply whose distributions are averaged: K for the mixture decoder, else
            1.
        narrowing: processors from `warpers`; not used for the likeliest token.
        likeliest: whether to take the likeliest token.
        width: number of tokens of the prompts, including padding.

    Attributes:
        log_probs: log-probabilities of the chosen tokens (nats), a list with `R` float32 per step, under the
            model's distribution or the mean of the K distributions before narrowing.
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
        """Return scores, `rows x V`, that are 0 for one token per reply and -inf for all others."""
        by_draw = scores.float().unflatten(0, (-1, self.together)).log_softmax(-1)
        mean = (
            by_draw[:, 0] if self.together == 1 else by_draw.logsumexp(1) - torch.tensor(self.together).log()
        )
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
        number = (coarse - 2.0**-24 + fine * 2.0**-23).unsqueeze(-1)  # 46 bits, so that rare tokens occur
        below = narrowed.double().softmax(-1).cumsum(-1)
        # Never a token without probability: the sum may be slightly less than 1.
        last = (narrowed > -torch.inf).long().cumsum(-1).argmax(-1)
        chosen = torch.searchsorted(below, number * below[:, -1:], right=True).squeeze(-1)
        return torch.minimum(chosen, last)
