"""Write replies with transformers' `generate`, with a separate posterior draw for each row of a batch."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from bara_pyro.core.attached import attached, hung
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.chat import turn_end
from bara_pyro.data.tokens import Tokenizer
from bara_pyro.data.types import pad_left
from bara_pyro.errors import ConfigError
from bara_pyro.extras.replies.generation.decoding import (
    LONGEST,
    Choice,
    Decoding,
    check_drawn,
    check_options,
    warpers,
    within_context,
)
from bara_pyro.extras.replies.generation.draws import RowDraws
from bara_pyro.extras.replies.generation.prompts import Prompt, PromptLike, encode_prompts
from bara_pyro.extras.replies.generation.stopping import Stop
from bara_pyro.lm.backbone import Backbone

CPU_BUDGET, ACCELERATOR_BUDGET = 2**28, 2**32


@dataclass(frozen=True)
class Reply:
    """A reply to a prompt.

    Attributes:
        prompt: the prompt's identifier.
        number: number of the reply to this prompt, from 0.
        text: the reply, without its end token or stop text. After a plain text prompt it is the exact
            continuation, which may begin with a space.
        token_ids: its tokens, including its end.
        log_probs: log-probability of each token (nats) under the reply's draw, or under the average
            distribution of the mixture decoder, at temperature 1 over the whole vocabulary. Options of
            transformers that change scores, such as a repetition penalty, are applied first.
        ended: whether the reply ended; False if it was cut at `max_new_tokens`.
    """

    prompt: str
    number: int
    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    ended: bool


def generate(
    model: AdaptedLM,
    guide: SiteGuide,
    prompts: Sequence[PromptLike] | Sequence[Prompt],
    *,
    replies: int = 1,
    draws: int | str = "each",
    fresh_theta: bool = True,
    mixture: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    seed: int = 0,
    memory_budget: int | None = None,
    skip: Collection[tuple[str, int]] = (),
    **options: object,
) -> Iterator[Reply]:
    """Yield replies to prompts, in order, as soon as they are ready.

    Global latents (BaRA's Phi) are drawn once per reply; local latents (theta) are drawn at every token of
    prompt and reply. Keys and values are cached. Reply n to a prompt depends only on the seed, on n and on
    the prompt's tokens, not on the batch (apart from rounding). Draw n of the global latents is the same for
    all prompts.

    Args:
        model: the program.
        guide: its fitted guide.
        prompts: texts, which are continued; messages, which go through the chat template; or prompts encoded
            by `encode_prompts`.
        replies: number of replies per prompt.
        draws: "each" for a new draw per reply; a number K to use draw n mod K for reply n; "mean" for the
            posterior mean. Draw n of an ensemble of M is its member n mod M; ensembles have no mean.
        fresh_theta: whether to draw local latents; if False, they are at their posterior mean given the
            global draw.
        mixture: number of draws of the mixture decoder, which samples tokens from their average distribution;
            each draw has a separate cache. An ensemble uses its first members.
        temperature: temperature of the tokens' distribution; 0 for greedy decoding.
        top_p: sample from the likeliest tokens with this total probability.
        top_k: sample from this many likeliest tokens; 0 for all.
        max_new_tokens: most tokens of a reply; by default 256, or half of a context shorter than 512.
        stop: text or texts that end a reply; they are not part of it.
        seed: seed of the draws and of the tokens.
        memory_budget: approximate bytes for keys, values, activations and logits of a batch; by default
            256 MiB on a CPU and 4 GiB on an accelerator. A batch has at least one reply.
        skip: (prompt identifier, reply number) pairs that exist already.
        options: further arguments of transformers' `generate`, for example `repetition_penalty`.

    Raises:
        ConfigError: an argument is out of range or not supported, a prompt and its reply exceed the language
            model's context, or the method has no such draws: a temperature, Laplace, or an ensemble's mean.
        DataError: a prompt has no tokens.

    Examples:
        >>> import bara_pyro as bp
        >>> from bara_pyro.extras.replies.generation import generate
        >>> backbone = bp.load_backbone("microworld")
        >>> model = bp.models.BaRA(backbone, num_data=640, form="gate", likelihood=bp.CompletionLikelihood())
        >>> guide = bp.guides.WeibullGuide(model)
        >>> prompts = ["the guest lives in"]
        >>> replies = list(generate(model, guide, prompts, replies=2, max_new_tokens=4, seed=1))
        >>> [(reply.prompt, reply.number, len(reply.token_ids)) for reply in replies]
        [('0', 0, 4), ('0', 1, 4)]
    """
    ends = (stop,) if isinstance(stop, str) else tuple(stop)
    how = Decoding(draws, fresh_theta, mixture, temperature, top_p, top_k, max_new_tokens, ends, seed)
    if replies < 1:
        raise ConfigError(f"replies is {replies}: give 1 or more.")
    check_options(options)
    check_guide(guide, model)
    check_drawn(model, guide, how)
    encoded = _encoded(prompts, model.backbone)
    how = within_context(encoded, model.backbone, how)
    pairs = [(p, n) for p in encoded for n in range(replies) if (p.id, n) not in skip]
    return _batches(model, guide, pairs, how, memory_budget, options)


def _batches(
    model: AdaptedLM,
    guide: SiteGuide,
    pairs: Sequence[tuple[Prompt, int]],
    how: Decoding,
    budget: int | None,
    options: dict[str, object],
) -> Iterator[Reply]:
    if budget is None:
        budget = CPU_BUDGET if model.backbone.device.type == "cpu" else ACCELERATOR_BUDGET
    start = 0
    while start < len(pairs):
        end = start + 1
        longest = len(pairs[start][0].token_ids)
        while end < len(pairs):
            longest = max(longest, len(pairs[end][0].token_ids))
            # Options of transformers would also apply to padding, so do not pad with them.
            padded = longest > len(pairs[start][0].token_ids) or longest > len(pairs[end][0].token_ids)
            if (options and padded) or (end + 1 - start) * _bytes(model.backbone, longest, how) > budget:
                break
            end += 1
        yield from _some(model, guide, pairs[start:end], how, options)
        start = end


@torch.no_grad()
def _some(
    model: AdaptedLM,
    guide: SiteGuide,
    pairs: Sequence[tuple[Prompt, int]],
    how: Decoding,
    options: dict[str, object],
) -> list[Reply]:
    """Return the replies of one batch."""
    backbone = model.backbone
    drawn = how.draws != "mean" and (guide.stochastic or model.members > 0)
    together = how.mixture if how.mixture and drawn else 1
    rows = [(prompt, number, k) for prompt, number in pairs for k in range(together)]
    ids = pad_left(_pad_id(backbone), [[*p.token_ids] for p, _, _ in rows]).to(backbone.device)
    backbone.check_tokens(ids)
    mask = pad_left(0, [[1] * len(p.token_ids) for p, _, _ in rows]).to(backbone.device)
    numbers = torch.tensor([n for _, n in pairs], device=backbone.device)
    dice = CounterNoise.paired(how.seed, numbers, numbers, [p.key for p, _ in pairs])
    choice = Choice(
        dice,
        together,
        warpers(how.temperature, how.top_p, how.top_k),
        likeliest=how.temperature == 0,
        width=ids.shape[1],
    )
    fitted = _adapted(model, guide, rows, how, together) if drawn else attached((model, guide))
    stop = Stop(how.stop, backbone.tokenizer, ids.shape[1]) if how.stop else None
    ends = _ends(backbone, how.stop)
    with fitted as lm, _plainly(lm, backbone, how, ends):
        rows_of_tokens = lm.generate(
            input_ids=ids,
            attention_mask=mask,
            logits_processor=LogitsProcessorList([choice]),
            stopping_criteria=StoppingCriteriaList([stop] if stop else []),
            **options,
        )
    new = rows_of_tokens[::together, ids.shape[1] :]
    log_probs = torch.stack(choice.log_probs, dim=-1)
    counts = stop.counts[::together] if stop else [None] * len(pairs)
    return [
        _reply(*pairs[i], tokens, log_p, backbone.tokenizer, ends, how.stop, stopped)
        for i, (tokens, log_p, stopped) in enumerate(
            zip(new.tolist(), log_probs.tolist(), counts, strict=True)
        )
    ]


def _adapted(
    model: AdaptedLM,
    guide: SiteGuide,
    rows: Sequence[tuple[Prompt, int, int]],
    how: Decoding,
    together: int,
) -> AbstractContextManager[PreTrainedModel]:
    """Attach the program to its language model, with one draw per row."""
    device = model.backbone.device
    if how.mixture:
        shared = [k for _, _, k in rows]
    elif isinstance(how.draws, int):
        shared = [n % how.draws for _, n, _ in rows]
    else:
        shared = [n for _, n, _ in rows]
    distribution = RowDraws(
        guide,
        how.seed,
        [prompt.key for prompt, _, _ in rows],
        torch.tensor([n * together + k for _, n, k in rows], device=device),
        torch.tensor(shared, device=device),
        fresh_theta=how.fresh_theta,
    )
    return hung(model, distribution, distribution.latents(), (len(rows), 1))


@contextmanager
def _plainly(lm: PreTrainedModel, backbone: Backbone, how: Decoding, ends: Collection[int]) -> Iterator[None]:
    """Ignore the generation settings in a model's folder, except its end-of-text tokens."""
    original = lm.generation_config
    # transformers passes the head a view of the last states. For a view torch multiplies row by row and
    # copies the whole embedding each time, which takes seconds and gigabytes.
    head = lm.get_output_embeddings().register_forward_pre_hook(lambda _, args: (args[0].contiguous(),))
    lm.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        use_cache=True,
        max_new_tokens=how.max_new_tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=_pad_id(backbone),
    )
    try:
        yield
    finally:
        lm.generation_config = original
        head.remove()


def _reply(
    prompt: Prompt,
    number: int,
    tokens: list[int],
    log_probs: list[float],
    tokenizer: Tokenizer,
    ends: Collection[int],
    stop: Sequence[str],
    stopped: int | None,
) -> Reply:
    """Return a reply, cut after its end token or before a stop text, complete at token `stopped`."""
    count = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
    ended = bool(tokens) and tokens[count - 1] in ends
    if stopped is not None and stopped <= count:
        count = stopped
        text = _text(prompt, tokens[:count], tokenizer)
        text, ended = text[: min((text.find(end) for end in stop if end in text), default=len(text))], True
    else:
        text = _text(prompt, tokens[: count - ended], tokenizer)
    return Reply(prompt.id, number, text, tuple(tokens[:count]), tuple(log_probs[:count]), ended)


def _text(prompt: Prompt, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """Return the text of a reply's tokens.

    Decoders strip the first space, or put one between words. So the continuation of a text prompt is decoded
    together with the prompt.
    """
    alone: str = tokenizer.decode(tokens, skip_special_tokens=True)
    if not prompt.goes_on:
        return alone
    before, both = (
        tokenizer.decode(ids, skip_special_tokens=True)
        for ids in (prompt.token_ids, [*prompt.token_ids, *tokens])
    )
    return both[len(before) :] if both.startswith(before) else alone


def _ends(backbone: Backbone, stop: Sequence[str] = ()) -> set[int]:
    """Return the tokens that end a text: the model's own, and those that training puts after replies.

    Also those of `stop` that are a special token, because decoded text does not contain them.
    """
    of_model, tokenizer = backbone.lm.generation_config.eos_token_id, backbone.tokenizer
    ends = {of_model} if isinstance(of_model, int) else set(of_model or ())
    of_tokenizer = (getattr(tokenizer, "eos_token_id", None), turn_end(tokenizer))
    special = {
        token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    of_stop = {special[text] for text in stop if text in special}
    return ends | {token for token in of_tokenizer if token is not None} | of_stop


def _pad_id(backbone: Backbone) -> int:
    pad = backbone.tokenizer.pad_token_id
    return int(pad if pad is not None else next(iter(_ends(backbone)), 0))


def _encoded(prompts: Sequence[PromptLike] | Sequence[Prompt], backbone: Backbone) -> list[Prompt]:
    if isinstance(prompts, str):
        raise ConfigError(f"prompts is the text {prompts[:40]!r}: give a list of prompts.")
    encoded = [p for p in prompts if isinstance(p, Prompt)]
    if len(encoded) == len(prompts):
        return encoded
    if encoded:
        raise ConfigError(
            f"{len(encoded)} of the {len(prompts)} prompts are encoded: encode all of them, or none."
        )
    return encode_prompts([p for p in prompts if not isinstance(p, Prompt)], backbone.tokenizer)


def _bytes(backbone: Backbone, prompt: int, how: Decoding) -> int:
    """Estimate the bytes of a reply: keys and values, the logits of one token, the prompt's activations."""
    config = backbone.lm.config.get_text_config()
    size = torch.empty((), dtype=backbone.dtype).element_size()
    hidden = int(config.hidden_size)
    heads = int(getattr(config, "num_attention_heads", 1))
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    width = int(getattr(config, "head_dim", None) or hidden // heads)
    tokens = prompt + (how.max_new_tokens or LONGEST)
    cached = 2 * int(config.num_hidden_layers) * kv_heads * width * size * tokens
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    read = prompt * (8 * hidden + 3 * inner + heads * prompt) * size
    logits = 40 * backbone.vocabulary  # float32, float64 and sorted copies
    return (how.mixture or 1) * (cached + read + logits)
