"""Settings of decoding, and their checks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bara_pyro.core.attached import changes_logits, check_attachable
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation.prompts import Prompt
from bara_pyro.extras.replies.generation.sampling import warpers
from bara_pyro.lm.backbone import Backbone
from bara_pyro.types import is_whole

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
