"""Checks of a language model at loading: required behaviour, and optional abilities that make runs faster.

Its fingerprint keeps a run from being continued with another language model by mistake.
"""

import hashlib
import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bara_pyro.data.types import TokenRows
from bara_pyro.errors import BackboneError, BaraError
from bara_pyro.lm.backbone import TOLERANCE, Backbone, apart
from bara_pyro.types import Json

# Exceptions of architectures that cannot read their inputs.
UNREADABLE = (AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
# Factor from the rounding measured on a few tokens to the accepted rounding, and the largest accepted one.
TIMES, MOST = 3, 0.25


@torch.no_grad()
def verify(backbone: Backbone) -> None:
    """Check a language model on four tokens: its parts against the whole, and a padded row against itself.

    Optional abilities (reusing work, several texts in a row) are switched off if they do not work.

    Raises:
        BackboneError: answers would be wrong, because the language model does more than its parts, is not
            causal or depends on padding; it cannot read our inputs; or its tokenizer has tokens without
            embeddings.
    """
    try:
        _verify(backbone)
    except (BaraError, torch.OutOfMemoryError):
        raise
    except UNREADABLE as error:
        why = " ".join(str(error).split()).rstrip(".")[:100] or type(error).__name__
        raise BackboneError(
            f"{type(backbone.lm).__name__} cannot read the inputs of bara_pyro ({why}): choose a language "
            "model of another architecture."
        ) from error


def _verify(backbone: Backbone) -> None:
    if isinstance(backbone.tokenizer, PreTrainedTokenizerBase):
        _check_tokenizer(backbone)
    ids = backbone.few_tokens()
    exact = _rounding_of_a_size(backbone, ids)  # how far apart equal results may be
    whole = backbone.hidden(ids, torch.ones_like(ids))
    _check_parts(backbone, ids, whole, exact)
    backbone.tolerance = min(MOST, max(backbone.rounding, TIMES * _rounding(backbone, ids, whole)))
    if backbone.states.layers and not _works(_resumes, backbone, ids, exact):
        backbone.states.layers = ()  # layers that pass on more than hidden states always run completely
    backbone.last_apart = len(backbone.states.layers) > 1 and _works(_goes_on, backbone, ids, whole)
    _check_padding(backbone, ids, whole, exact)
    backbone.continues = _works(_continues, backbone, ids, whole)
    backbone.takes_segments = _works(_keeps_apart, backbone, ids, exact)


def verify_once(backbone: Backbone) -> None:
    """Verify a language model, unless it was verified before or has no weights (meta device)."""
    if not backbone.verified and backbone.device.type != "meta":
        verify(backbone)
        backbone.verified = True


def _check_tokenizer(backbone: Backbone) -> None:
    """Refuse a tokenizer of another language model, or one with tokens beyond the embeddings.

    Added tokens are accepted, because some published folders have a few that no text uses.
    """
    tokenizer, known = backbone.tokenizer, backbone.lm.get_input_embeddings().weight.shape[0]
    added = set(tokenizer.added_tokens_decoder) - {tokenizer.pad_token_id, tokenizer.eos_token_id}
    largest = max((number for number in tokenizer.get_vocab().values() if number not in added), default=0)
    if largest >= known:
        raise BackboneError(
            f"The tokenizer of {backbone.name!r} has a token {largest}, but the model has only {known} "
            "embeddings: give the model's own tokenizer, or call resize_token_embeddings."
        )


def _check_parts(backbone: Backbone, ids: Tensor, hidden: Tensor, exact: float) -> None:
    """Refuse a language model that is not causal or whose logits differ from those of its parts."""
    logits = backbone.lm(input_ids=ids, use_cache=False).logits.float()
    parts = backbone.finished(backbone.logits(hidden).float())
    off, size = float((parts - logits).abs().max()), float(logits.abs().max())
    # Both texts have the same length, so that they are rounded alike.
    others = torch.cat([ids[:, :2], ids[:, :2]], dim=1)
    with_others = backbone.hidden(others, torch.ones_like(ids))[:, :2]
    if not apart(hidden[:, :2], with_others) <= exact:
        raise BackboneError(
            f"In {type(backbone.lm).__name__} tokens attend to later ones: choose a causal language model."
        )
    if not off <= backbone.rounding * size:
        raise BackboneError(
            f"{type(backbone.lm).__name__} changes its logits in a way that bara_pyro does not support "
            f"(difference {off:.2g} of {size:.2g}): choose a language model of another architecture."
        )


def _rounding(backbone: Backbone, ids: Tensor, alone: Tensor) -> float:
    """Return the largest difference that other rows or later tokens make to the same tokens' states.

    On a GPU the kernel of a matrix product depends on its size. In bfloat16, and more so with 4-bit weights,
    another kernel rounds differently in every layer.
    """
    rows = [backbone.hidden(text, torch.ones_like(text)) for text in (ids.repeat(2, 1), ids.repeat(3, 1))]
    short = backbone.hidden(ids[:, :2], torch.ones_like(ids[:, :2]))
    return max(*(apart(alone[0], row) for row in torch.cat(rows)), apart(alone[:, :2], short))


def _check_padding(backbone: Backbone, ids: Tensor, whole: Tensor, exact: float) -> None:
    """Refuse a language model whose answers depend on padding, as with recurrent layers."""
    if not _works(_ignores_padding, backbone, ids, whole, exact):
        raise BackboneError(
            f"The results of {type(backbone.lm).__name__} depend on padding on the left of a row: choose a "
            "language model of another architecture."
        )


def _ignores_padding(backbone: Backbone, ids: Tensor, whole: Tensor, exact: float) -> bool:
    ones = torch.ones_like(ids)
    mask = torch.cat([0 * ones[:, :2], ones], dim=1)
    # Two kinds of padding are compared at one size, padding and none at two, hence two tolerances.
    padded, others = (
        backbone.hidden(torch.cat([front, ids], dim=1), mask)[:, 2:] for front in (ids[:, :2], ids[:, 2:])
    )
    return apart(padded, others) <= exact and backbone.alike(whole, padded)


def _works(ability: Callable[..., bool], *args: object) -> bool:
    """Return whether an optional ability works; architectures that lack it raise errors of many kinds."""
    try:
        return ability(*args)
    except UNREADABLE:
        return False


def _keeps_apart(backbone: Backbone, ids: Tensor, exact: float) -> bool:
    """Return whether two texts that continue the same two tokens can share a row."""
    ones, segments = torch.ones_like(ids), torch.tensor([[0, 0, 1, 2]], device=ids.device)
    both = backbone.hidden(ids, ones, segments)[:, 2:]
    beside_another = backbone.hidden(ids[:, [0, 1, 0, 3]], ones, segments)[:, 3:]
    if not apart(both[:, 1:], beside_another) <= exact:
        return False
    texts = torch.cat([ids[:, :3], ids[:, [0, 1, 3]]])
    return backbone.alike(backbone.hidden(texts, torch.ones_like(texts))[:, -1], both[0])


def _rounding_of_a_size(backbone: Backbone, ids: Tensor) -> float:
    """Return the accepted difference of states if only tokens that they do not see change, at one size.

    It is close to zero in any dtype, except with mixtures of experts, whose rounding depends on other rows.
    """
    pairs = [torch.cat([ids, row]) for row in (ids, ids.flip(1), ids[:, [0, 1, 0, 1]], ids[:, [2, 3, 2, 3]])]
    first, *others = (backbone.hidden(pair, torch.ones_like(pair))[0] for pair in pairs)
    measured = max(apart(first, other) for other in others)
    return max(TOLERANCE, torch.finfo(backbone.dtype).eps, TIMES * measured)


def _resumes(backbone: Backbone, ids: Tensor, exact: float) -> bool:
    """Return whether the upper layers can continue from the states of the lower ones."""
    half = (len(backbone.states.layers) + 1) // 2
    whole, upper = (backbone.hidden(ids, torch.ones_like(ids), below=depth) for depth in (0, half))
    return apart(whole, upper) <= exact


def _continues(backbone: Backbone, ids: Tensor, whole: Tensor) -> bool:
    """Return whether tokens can continue from the keys and values of tokens read earlier."""
    ones = torch.ones_like(ids)
    past = backbone.read(TokenRows(ids[:, :2], ones[:, :2]))
    return backbone.alike(whole[:, 2:], backbone.hidden(ids[:, 2:], ones[:, 2:], past=past))


def _goes_on(backbone: Backbone, ids: Tensor, whole: Tensor) -> bool:
    """Return whether the last layer can continue from its keys and values of earlier tokens."""
    ones = torch.ones_like(ids)
    past = backbone.read_last(TokenRows(ids, ones))
    if past is None:
        return False
    return backbone.alike(whole[:, -1:], backbone.hidden(ids[:, -1:], ones[:, -1:], past=past))


# Values hashed per tensor, spread over it: enough to distinguish two trainings, cheap for large models.
SAMPLE = 16
# Prefixes of settings of a configuration that change no hidden state.
NO_COMPUTATION = (
    "_", "attn_implementation", "bos_", "chunk_size_feed_forward", "dtype", "eos_", "id2label", "initializer",
    "is_", "model_type", "name_or_path", "output_", "pad_", "problem_type", "return_dict", "sep_", "torch_",
    "transformers_version", "use_cache",
)  # fmt: skip


def fingerprint(backbone: Backbone) -> str:
    """Return 16 hexadecimal digits over the names, shapes and some values of all frozen tensors."""
    return fingerprint_of(backbone.lm.state_dict())


def fingerprint_of(weights: Mapping[str, Tensor]) -> str:
    """Return the `fingerprint` of a language model with these weights, by their names in it.

    Values are rounded to bfloat16 first, so that the same weights in another floating-point type have the
    same fingerprint; quantised weights have another.
    """
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        numbers = getattr(value, "qdata", value)  # the integers of torchao's int8 weights
        if numbers.device.type != "meta":
            spread = numbers.flatten()[:: max(1, numbers.numel() // SAMPLE)][:SAMPLE]
            digest.update(spread.to(torch.bfloat16).view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def computation(backbone: Backbone) -> Json:
    """Return the settings of a language model that its weights do not show, such as the rotary base.

    Another version of transformers may add settings: compare with `differing`, which ignores them.
    """
    text = json.loads(backbone.lm.config.get_text_config().to_json_string(use_diff=False))
    plain = {key: value for key, value in text.items() if isinstance(value, int | float | str)}
    nested = text.get("rope_parameters") or text.get("rope_scaling") or {}
    plain |= {f"rope.{key}": value for key, value in nested.items() if isinstance(value, int | float | str)}
    return {key: value for key, value in sorted(plain.items()) if not key.startswith(NO_COMPUTATION)}


def differing(stored: Json, found: Json) -> list[str]:
    """Return the settings in both that differ, as texts like `rms_norm_eps is 1e-06, was 1e-05`."""
    both = stored.keys() & found.keys()
    return [f"{key} is {found[key]}, was {stored[key]}" for key in sorted(both) if found[key] != stored[key]]
