"""What is left to run of a batch once some of it was read, for rows that begin alike or for all draws."""

from dataclasses import replace

from torch import Tensor

from bara_pyro.core.guide import PosteriorMean, SiteGuide
from bara_pyro.core.prefix import LEAST, after, beginning, common_tokens, split
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError


def shared(model: AdaptedLM, batch: Batch) -> Batch:
    """Return the rows as going on from what they all begin with, where that is long enough to be worth it."""
    if len(batch) == 1 or batch.segments is not None or not model.backbone.continues:
        return batch
    if not model.likelihood.looks_at_asked:  # it looks at all tokens
        return batch
    tokens = common_tokens(batch)
    if tokens < LEAST:
        return batch
    lengths = batch.attention_mask.sum(-1)
    uneven = int(lengths.min()) < int(lengths.max())  # the shorter ones go on after padding
    if uneven and not model.backbone.goes_on_after_gaps(int(lengths.max())):
        return batch
    begin = beginning(batch, tokens)
    rest = after(batch, tokens, model.read(begin, states=model.lower(begin)))
    return _with_rest(rest, model.lower(batch))


def narrowed(model: AdaptedLM, batch: Batch) -> Batch:
    """Return the tokens whose last hidden states the likelihood looks at, going on from all others.

    Exact: what the last layer does with the others beside attending to them reaches no answer. To be called
    under the same latents as what goes on from it.
    """
    width = model.asked_alone(batch)
    past = None if width is None else model.read_last(batch, width)
    return batch if width is None or past is None else batch.last(width, past)


def drawn_last(model: AdaptedLM, guide: SiteGuide, batch: Batch, last: int) -> Batch:
    """Return the last tokens of the rows, going on from the others, which are read at the posterior mean."""
    if last >= batch.input_ids.shape[1]:
        return batch
    if not model.likelihood.looks_at_asked:
        raise ConfigError(
            f"A {type(model.likelihood).__name__} looks at all tokens (`looks_at_asked` is False): leave out "
            f"last={last}."
        )
    if not model.backbone.continues:
        raise ConfigError(
            f"{type(model.backbone.lm).__name__} cannot go on from tokens that were read before: leave out "
            f"last={last}, which draws for all of them."
        )
    begin, counted = split(batch, last)
    states = model.lower(batch)
    with PosteriorMean(guide):
        past = model.read(begin, counted, None if states is None else states[:, :-last])
    return _with_rest(batch.last(last, past), states)


def _with_rest(rest: Batch, states: Tensor | None) -> Batch:
    """Return the rest of some rows with its part of what the layers below the adapters give whole rows."""
    if states is None:
        return rest
    return replace(rest, past=replace(rest.past, rest=states[:, -rest.input_ids.shape[1] :]))
