"""Use a fitted program as an ordinary language model, with `forward`, `generate` and pipelines."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from transformers import PreTrainedModel

from bara_pyro.core.adapter import Adapter, LayerLatents
from bara_pyro.core.guide import SiteGuide, check_guide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.posterior import Posterior, PosteriorMean
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, is_whole
from bara_pyro.lm.backbone import HOLDING
from bara_pyro.lm.inputs import given_cache

# A program that overrides one of these does more than add adapters to one language model.
LOGITS = ("logits", "finished")
MORE = ("forward", "outside")


class Fitted(Protocol):
    """Protocol of objects that hold a program and its fitted guide, such as a `System`.

    If one has a true attribute `noisy_answers`, its answers have noise that no draw of its adapters has.
    """

    @property
    def model(self) -> AdaptedLM: ...  # noqa: D102
    @property
    def guide(self) -> SiteGuide: ...  # noqa: D102


def pair_of(run: Fitted | tuple[AdaptedLM, SiteGuide]) -> tuple[AdaptedLM, SiteGuide]:
    """Return program and guide of a run, or the given pair; a `ConfigError` for anything else."""
    value: Any = run
    pair = (
        value if isinstance(value, tuple) else (getattr(value, "model", None), getattr(value, "guide", None))
    )
    if len(pair) != 2 or not isinstance(pair[0], AdaptedLM):
        raise ConfigError(
            f"A {type(run).__name__} is neither a run nor (model, guide): pass the result of bp.train or "
            "bp.load_system, or a model of bp.models with its guide."
        )
    model, guide = pair
    check_guide(guide, model)
    return model, guide


def changes_logits(model: AdaptedLM) -> bool:
    """Return whether a program changes its logits other than by adapters."""
    return _has_own(model, LOGITS)


def _has_own(model: AdaptedLM, names: Sequence[str]) -> bool:
    return any(getattr(type(model), name) is not getattr(AdaptedLM, name) for name in names)


def check_attachable(model: AdaptedLM, guide: SiteGuide, *, drawn: bool) -> None:
    """Raise the errors of `attached` for a program; `drawn`: attach a draw, not the posterior mean."""
    if changes_logits(model) or _has_own(model, MORE):
        raise ConfigError(
            f"`attached` supports only adapters in one language model, and {type(model).__name__} does more: "
            "use bara_pyro.core.prediction.predict."
        )
    overridden = type(guide).predictive is not SiteGuide.predictive
    if drawn and overridden and not guide.stochastic:
        raise ConfigError(
            f"A {type(guide).__name__} draws answers, not adapters, so a draw cannot be attached: attach "
            "without a seed, or use bara_pyro.core.prediction.predict."
        )
    model.backbone.check_free()


@contextmanager
def attached(run: Fitted | tuple[AdaptedLM, SiteGuide], seed: int | None = None) -> Iterator[PreTrainedModel]:
    """Attach a fitted program to its language model while the block runs.

    Inside the block `lm.forward`, `lm.generate` and `transformers.pipeline("text-generation", model=lm, ...)`
    work as usual, with the adapters in place. Afterwards, even after an exception, the language model is bit
    for bit the same as before. The adapter of the output embedding acts on every position whose logits are
    computed, and that layer then returns float32. Gradients flow; use `torch.no_grad()` if you need none.

        with bp.attached(bp.load_system("runs/mine")) as lm:
            lm.generate(**tokens, max_new_tokens=20)

    Args:
        run: the result of `load_system` or `build_system`, or `(model, guide)`.
        seed: None sets every latent to its posterior mean, as `predict(samples=0)` does. A whole number takes
            one draw of the posterior, as `predict(samples=1, seed=...)` does for rows without identifiers:
            one draw of the global latents, and one draw of the local latents per row and text position. Left
            padding does not count, and a key-value cache does not change the draws. Beams are rows: beam
            search copies caches between beams and so mixes their draws.

    Yields:
        The language model. Its logits do not include corrections fitted after training, such as a
        temperature (`bara_pyro.posthoc`).

    Raises:
        ConfigError: `seed` is not a whole number; the guide belongs to another model; the program does more
            than add adapters (ensembles); or a seed is given for a method that draws answers (Laplace) or a
            run that adds noise to them.
        BackboneError: another program is attached to this language model.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")
        >>> model = bp.models.BaRA(backbone, num_data=8, form="gate")
        >>> guide = bp.guides.WeibullGuide(model)
        >>> tokens = backbone.tokenizer("the guest lives in", return_tensors="pt")
        >>> with bp.attached((model, guide), seed=7) as lm:  # one draw of the posterior
        ...     text = lm.generate(**tokens, max_new_tokens=3, do_sample=False)
        >>> text.shape  # four tokens and three new ones
        torch.Size([1, 7])
    """
    model, guide = pair_of(run)
    if seed is not None and not is_whole(seed):
        raise ConfigError(f"seed={seed!r} must be a whole number, or None for the posterior mean.")
    check_attachable(model, guide, drawn=seed is not None)
    if seed is not None and getattr(run, "noisy_answers", False):
        raise ConfigError(
            "This run adds noise to its answers, which cannot be attached: leave the seed out, or use "
            "bara_pyro.core.prediction.predict."
        )
    # If the guide's draws do not differ, use its mean, as `predict` does.
    distribution = PosteriorMean(guide) if seed is None or not guide.stochastic else OneDraw(guide, int(seed))
    with hung(model, distribution, latents_under(model, distribution)) as lm:
        yield lm


@torch.no_grad()
def latents_under(model: AdaptedLM, distribution: Posterior) -> Sequence[LayerLatents]:
    """Return each adapter's latents, with the global latents taken from a posterior."""
    nothing = torch.zeros(1, 1, dtype=torch.long, device=model.backbone.device)
    with PROGRAM, distribution:
        return model.global_latents(Batch(nothing, nothing == 0, nothing[0]))


@contextmanager
def hung(
    model: AdaptedLM,
    distribution: Posterior,
    latents: Sequence[LayerLatents],
    lead: tuple[int, ...] | None = None,
) -> Iterator[PreTrainedModel]:
    """Attach a program's adapters to its language model while the block runs; see `attached`.

    Args:
        model: the program.
        distribution: posterior of the local latents; a `Placed` one receives the positions of the tokens.
        latents: the latents of each adapter.
        lead: shape `draws x rows` into which the first dimension of a layer's input is unfolded; None if that
            dimension is the rows.
    """
    lm = model.backbone.lm
    with ExitStack() as stack:
        for adapter in model.adapters.values():
            layer = lm.get_submodule(adapter.target.path)
            hook = _Hook(adapter, latents[adapter.target.index], distribution, lead)
            stack.callback(layer.register_forward_hook(hook).remove)
        if isinstance(distribution, Placed):
            for part, before in ((lm, distribution.check), (lm.get_decoder(), distribution.place)):
                stack.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(HOLDING.discard, lm)
        HOLDING.add(lm)
        yield lm


class _Hook:
    """Forward hook that adds an adapter's update, with local latents from a posterior."""

    def __init__(
        self,
        adapter: Adapter,
        latents: LayerLatents,
        distribution: Posterior,
        lead: tuple[int, ...] | None,
    ) -> None:
        self.adapter, self.latents = adapter, latents
        self.distribution, self.lead = distribution, lead

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self.adapter.target.is_head:
            output = output.float()  # as `AdaptedLM.logits` adds it
        with PROGRAM, self.distribution:
            return output + self.adapter.change_of(self.latents, self.lead, layer, args, output)


class Placed(Posterior):
    """Posterior whose draws depend on token positions, which it receives before every forward."""

    def check(self, lm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a tensor of positions in `logits_to_keep`: draws exist for the last positions only."""
        if isinstance(kwargs.get("logits_to_keep"), Tensor):
            raise ConfigError(
                "logits_to_keep is a tensor of positions, but draws are available for the last tokens only: "
                "give a number of last tokens, or attach without a seed."
            )

    def place(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the text positions of the tokens of the next forward pass."""
        self.see(going_on(positions_of(*args[:1], **kwargs), kwargs))

    def see(self, positions: Tensor) -> None:
        """Record the positions of the tokens of the next forward pass, long, `B x T`."""
        raise NotImplementedError


class OneDraw(Placed):
    """One draw of the posterior; its noise depends only on seed, site, row and position."""

    def __init__(self, guide: SiteGuide, seed: int) -> None:
        super().__init__(guide)
        self.seed = seed
        self._own = threading.local()  # addresses: of the forward that a thread runs
        self.see(torch.zeros(1, 1, dtype=torch.long, device=guide.model.backbone.device))

    def see(self, positions: Tensor) -> None:
        """Set the noise addresses of the tokens of the next forward pass."""
        first = torch.zeros(1, dtype=torch.long, device=positions.device)
        ids = tuple(map(str, range(len(positions))))
        sites = self.guide.model.latents.local_shapes
        self._own.addresses = CounterNoise(self.seed, first, ids, positions, sites=sites)

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the draw of a site, in the distribution's batch and event shape."""
        if name in self.guide.model.latents.local_sites:
            return cast(CounterNoise, self._own.addresses).draw_local(name, fn)[0]
        return cast(CounterNoise, self._own.addresses).draw_global(name, fn)[0]


# State -> last position of each row: a recurrent state does not know how many tokens it has read.
_READ: "WeakKeyDictionary[object, Tensor]" = WeakKeyDictionary()


def going_on(positions: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """Return the positions of a forward pass, counted on from the tokens that its state has read.

    Mamba-like models continue from a state (`cache_params`) without a length, and then receive neither
    positions nor a mask.
    """
    state = arguments.get("cache_params")
    if state is None:
        return positions
    has_positions = any(arguments.get(name) is not None for name in ("position_ids", "attention_mask"))
    if not has_positions and (last := _READ.get(state)) is not None and len(last) == len(positions):
        positions = last + 1 + positions
    _READ[state] = positions[:, -1:]
    return positions


def positions_of(
    input_ids: Tensor | None = None,
    *,
    inputs_embeds: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    **others: object,
) -> Tensor:
    """Return each token's position in its text, counted from the first real token: long, `B x T`.

    The arguments are those of a Hugging Face decoder, which needs `input_ids` or `inputs_embeds`. The
    positions come from `position_ids` if given, else from the mask (of all tokens, including cached ones),
    else from the length of the cache.
    """
    inputs = inputs_embeds if input_ids is None else input_ids
    if inputs is None:
        raise ConfigError("The language model received neither input_ids nor inputs_embeds: pass one.")
    rows, width = inputs.shape[:2]
    if position_ids is not None:
        # Models for images have several planes of positions, the first of which counts tokens.
        return position_ids.reshape(-1, *position_ids.shape[-2:])[0].expand(rows, width)
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1)[:, -width:]
    cache = given_cache(others)
    start = 0 if cache is None else int(cache.get_seq_length())
    return torch.arange(start, start + width, device=inputs.device).expand(rows, width)
