"""Answer lm-eval's generation requests under draws of the posterior, with `generation.generate`."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation import Prompt, generate
from bara_pyro.extras.replies.generation.decoding import Decoding
from bara_pyro.runs.system import System
from bara_pyro.types import Json

HONOURED = ("do_sample", "max_gen_toks", "num_beams", "temperature", "top_k", "top_p", "until")


@dataclass(frozen=True)
class Request:
    """A context to continue.

    Attributes:
        prompt: the context; requests with the same identifier are repeats of one request.
        number: number of the reply, 0 unless the request is repeated.
        settings: settings of the text.
    """

    prompt: Prompt
    number: int
    settings: Decoding


def most_tokens(gen_kwargs: Json, default: int, max_length: int) -> int:
    """Return the most tokens that a request's text may have.

    Args:
        gen_kwargs: settings of the request.
        default: number of tokens if they give none.
        max_length: the language model's limit in tokens.

    Raises:
        ConfigError: the number leaves no room for a context, or the settings cannot be read.
    """
    most = int(_normal(gen_kwargs, default)["max_gen_toks"])
    if not 0 < most < max_length:
        raise ConfigError(
            f"max_gen_toks is {most}, and the language model's limit is {max_length} tokens including the "
            f"context: give 1 to {max_length - 1} in the task's generation_kwargs."
        )
    return most


def settings_of(gen_kwargs: Json, default: int, eos: str) -> Decoding:
    """Return a request's settings.

    Args:
        gen_kwargs: settings of the request. Without `do_sample` and a temperature, decoding is greedy.
        default: number of tokens if they give none.
        eos: text of the end-of-text token, which ends a reply in addition to `until`.

    Raises:
        ConfigError: a setting is not supported under draws of the posterior, or out of range.
    """
    settings = _normal(gen_kwargs, default)
    for name, value in settings.items():
        if name not in HONOURED or (name == "num_beams" and value != 1):
            raise ConfigError(
                f"The task's generation_kwargs have {name}={value!r}, which is not supported with posterior "
                f"draws: give only {', '.join(HONOURED)}, or choose mean or base."
            )
    temperature = float(settings.get("temperature", 0.0))
    if settings["do_sample"] and temperature == 0:
        raise ConfigError(
            "The task's generation_kwargs have do_sample=True, but no temperature above 0: give "
            "temperature=1, or leave out do_sample for greedy decoding."
        )
    until = handle_stop_sequences(list(settings["until"]), eos=eos)
    if not all(isinstance(text, str) for text in until):
        raise ConfigError(f"The task's generation_kwargs have until={until[:-1]!r}: give texts.")
    stop = tuple(dict.fromkeys(text for text in until if text))
    top_p = settings.get("top_p")
    return Decoding(
        temperature=temperature,
        top_p=1.0 if top_p is None else float(top_p),
        top_k=int(settings.get("top_k") or 0),
        max_new_tokens=int(settings["max_gen_toks"]),
        stop=stop,
    )


def _normal(gen_kwargs: Json, default: int) -> Json:
    """Return settings normalised by lm-eval, with one name for each."""
    try:
        return dict(normalize_gen_kwargs(gen_kwargs, default))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The task's generation_kwargs {gen_kwargs!r} cannot be read: {error}.") from error


def generated_texts(
    system: System, requests: Sequence[Request], *, seed: int, size: int
) -> Iterator[tuple[int, str]]:
    """Yield the place and text of each request as soon as it is ready.

    A text is a function of the seed, the context's tokens and the number of the reply. Apart from rounding it
    does not depend on the batch or on other requests.

    Args:
        system: the run.
        requests: requests in any order; those with the same settings are batched, the longest first.
        seed: seed of the draws.
        size: requests per batch.

    Raises:
        ConfigError: see `generation.generate`.
    """
    alike: dict[Decoding, list[int]] = defaultdict(list)
    for place in sorted(range(len(requests)), key=lambda i: -len(requests[i].prompt.token_ids)):
        alike[requests[place].settings].append(place)
    for settings, places in alike.items():
        for start in range(0, len(places), size):
            some = {(requests[i].prompt.id, requests[i].number): i for i in places[start : start + size]}
            prompts = {requests[i].prompt.id: requests[i].prompt for i in some.values()}
            count = 1 + max(number for _, number in some)
            for reply in generate(
                system.model,
                system.guide,
                list(prompts.values()),
                replies=count,
                skip={(name, n) for name in prompts for n in range(count)} - some.keys(),
                memory_budget=sys.maxsize,  # the caller limits the requests
                **asdict(replace(settings, seed=seed)),
            ):
                yield some[reply.prompt, reply.number], reply.text
