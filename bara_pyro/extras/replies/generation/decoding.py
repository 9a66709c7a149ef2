"""Decoding: its settings, and the reproducible choice of each token by the address of a random number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from bara_pyro.core.attached import changes_logits, check_attachable
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError, is_whole
from bara_pyro.extras.replies.generation.prompts import Prompt
from bara_pyro.lm.backbone import Backbone

LONGEST = 256  # default of `max_new_tokens`
# Arguments of transformers that `generate` sets itself or replaces.
OURS = (
    *("assistant_model", "cache_implementation", "do_sample", "generation_config", "logits_processor"),
    *("max_length", "max_new_tokens", "num_beam_groups", "num_beams", "num_return_sequences"),
    *("cache", "past_key_values"),
    *("eos_token_id", "prompt_lookup_num_tokens", "return_dict_in_generate", "watermarking_config"),
    *("penalty_alpha", "stop_strings", "stopping_criteria", "temperature", "tokenizer"),
    *("top_k", "top_p", "use_cache"),
)
# Arguments of transformers' sampling, which is not used here.
SAMPLED = ("epsilon_cutoff", "eta_cutoff", "min_p", "top_h", "typical_p")
TOKEN = "token"  # noqa: S105 - name of the stream of random numbers that choose tokens


@dataclass(frozen=True)
class Decoding:
    """How replies are drawn; see `generate`."""

    draws: int | str = "each"
    fresh_theta: bool = True
    mixture: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("draws", "mixture", "top_k", "max_new_tokens", "seed"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        warpers(self.temperature, self.top_p, self.top_k)
        for name, value in (("draws", self.draws), ("mixture", self.mixture)):
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"{name} is {value}: give a number of draws, 1 or more.")
        if isinstance(self.draws, str) and self.draws not in ("each", "mean"):
            raise ConfigError(f"draws is {self.draws!r}: give 'each', 'mean' or a number of draws.")
        if self.mixture is not None and self.draws != "each":
            raise ConfigError(
                f"draws={self.draws!r} and mixture={self.mixture} exclude each other, because the mixture "
                "has its own draws: give one of the two."
            )
        if self.temperature == 0 and (self.top_p < 1 or self.top_k):
            narrowing = f"top_p={self.top_p:g}" if self.top_p < 1 else f"top_k={self.top_k}"
            raise ConfigError(
                f"{narrowing} has no effect with temperature=0, which takes the likeliest token: give one of "
                "the two."
            )
        if self.draws == "mean" and not self.fresh_theta:
            raise ConfigError(
                "fresh_theta=False (--mean-theta) has no effect with draws='mean', which takes the mean of "
                "every gate: leave it out."
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}: give 1 or more.")
        if not all(self.stop):
            raise ConfigError(f"stop is {self.stop!r}: give texts that are not empty.")


def _whole(name: str, value: object) -> object:
    """Return a whole number as an int; None, and a word for "draws", are returned unchanged."""
    if value is None or (name == "draws" and isinstance(value, str)):
        return value
    if not is_whole(value):
        raise ConfigError(f"{name} is {value!r}: give a whole number.")
    return int(value)


def check_options(options: dict[str, object]) -> None:
    """Raise an error for arguments of transformers' `generate` that are set here or have no effect."""
    if options.get("num_beams", 1) != 1:
        raise ConfigError(
            f"num_beams={options['num_beams']} is not supported, because beams would mix the caches of "
            "several draws: leave it out and set replies."
        )
    if options.get("use_cache") is False:
        raise ConfigError(
            "use_cache=False is not supported, because every step would read all tokens again: leave it out."
        )
    if others := sorted(set(options) & set(SAMPLED)):
        raise ConfigError(
            f"{others[0]}={options[others[0]]} is not supported: use temperature, top_p and top_k instead."
        )
    if ours := sorted(set(options) & set(OURS)):
        raise ConfigError(
            f"{ours[0]} is set by bara_pyro.extras.replies.generation.generate: use the arguments of that "
            "function."
        )


def check_drawn(model: AdaptedLM, guide: SiteGuide, how: Decoding) -> None:
    """Raise an error if the method has no such draws, or if the language model has adapters attached."""
    if not model.members or changes_logits(model):
        check_attachable(model, guide, drawn=how.draws != "mean")
        return
    model.backbone.check_free()
    if how.draws == "mean":
        raise ConfigError(
            "draws='mean': an ensemble has no mean, so give draws='each', which takes its members in turn, "
            f"or mixture={model.members}."
        )
    if (how.mixture or 0) > model.members:
        raise ConfigError(
            f"mixture={how.mixture} exceeds the ensemble's {model.members} members: give "
            f"mixture={model.members} or less."
        )


def within_context(prompts: Sequence[Prompt], backbone: Backbone, how: Decoding) -> Decoding:
    """Return the decoding settings with `max_new_tokens` set to fit the context after every prompt."""
    room = backbone.context
    new = how.max_new_tokens or min(LONGEST, LONGEST if room is None else room // 2)
    if room is not None and prompts:
        longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
        length = len(longest.token_ids)
        left = room - length
        if how.max_new_tokens is None:
            new = max(1, min(new, left))
        what = f"The prompt with the id {longest.id!r} of {length} tokens with max_new_tokens={new}"
        way_out = (
            "shorten it" if left < 1 else f"give max_new_tokens={left} (--max-new-tokens {left}) or fewer"
        )
        backbone.check_room(length + new, what, way_out)
    return replace(how, max_new_tokens=new)


def warpers(temperature: float, top_p: float, top_k: int) -> list[LogitsProcessor]:
    """Return the logits processors that narrow a distribution before sampling, in transformers' order.

    A value out of range raises a `ConfigError`.
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
