"""A fitted program as an ordinary language model: `forward`, `generate`, pipelines with gates in place."""

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
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.posterior import Posterior, PosteriorMean, check_guide
from bara_pyro.core.program import AdaptedLM
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import HOLDING
from bara_pyro.lm.inputs import given_cache
from bara_pyro.types import is_whole

# A program that changes one of these is more than adapters in one language model.
LOGITS = ("logits", "finished")
MORE = ("forward", "outside")


class Fitted(Protocol):
    """What has a program and its fitted guide: a `System`."""

    @property
    def model(self) -> AdaptedLM: ...  # noqa: D102
    @property
    def guide(self) -> SiteGuide: ...  # noqa: D102


def pair_of(run: Fitted | tuple[AdaptedLM, SiteGuide]) -> tuple[AdaptedLM, SiteGuide]:
    """Return program and guide.

    Raises:
        ConfigError: it is neither a run nor a pair, or the guide belongs to another model.
    """
    given: Any = run
    pair = (
        given if isinstance(given, tuple) else (getattr(given, "model", None), getattr(given, "guide", None))
    )
    if len(pair) != 2 or not isinstance(pair[0], AdaptedLM):
        raise ConfigError(
            f"A {type(run).__name__} is neither a run nor (model, guide): give what bp.train or "
            "bp.load_system returns, or a model of bp.models with its guide."
        )
    model, guide = pair
    check_guide(guide, model)
    return model, guide


def changes_logits(model: AdaptedLM) -> bool:
    """Return whether a program does something to its logits that no adapter does."""
    return _has_own(model, LOGITS)


def _has_own(model: AdaptedLM, names: Sequence[str]) -> bool:
    return any(getattr(type(model), name) is not getattr(AdaptedLM, name) for name in names)


def check_attachable(model: AdaptedLM, guide: SiteGuide, *, drawn: bool) -> None:
    """Refuse what is more than adapters in a language model, and a language model that something hangs on.

    Args:
        model: the program.
        guide: its guide.
        drawn: whether draws are to be shown, not the mean.

    Raises:
        ConfigError, BackboneError: see `attached`.
    """
    if changes_logits(model) or _has_own(model, MORE):
        raise ConfigError(
            f"{type(model).__name__} is more than adapters in one language model, which `attached` cannot "
            "show: use bara_pyro.core.prediction.predict."
        )
    own = type(guide).predictive is not SiteGuide.predictive
    if drawn and own and not guide.stochastic:
        raise ConfigError(
            f"The draws of a {type(guide).__name__} are of answers, not of adapters, which `attached` cannot "
            "show: ask for the posterior mean, or use bara_pyro.core.prediction.predict."
        )
    model.backbone.check_free()


@contextmanager
def attached(run: Fitted | tuple[AdaptedLM, SiteGuide], seed: int | None = None) -> Iterator[PreTrainedModel]:
    """Hang a fitted program on its language model while the block runs.

    Inside, `lm.forward`, `lm.generate` and `transformers.pipeline("text-generation", model=lm, ...)` work as
    ever, with the adapters in place; afterwards, after an exception too, the language model is bit for bit
    what it was. The output embedding's adapter acts on every token that is asked for, and its layer gives
    float32 then. Gradients flow as outside: `torch.no_grad()` where none are wanted.

        with bp.attached(bp.load_system("runs/mine")) as lm:
            lm.generate(**tokens, max_new_tokens=20)

    Args:
        run: what `load_system` or `build_system` gave, or `(model, guide)`.
        seed: by default every latent is at its posterior mean, as `predict(samples=0)`. With one: one draw
            of the posterior, as `predict(samples=1, seed=...)` of rows without identifiers: one draw of the
            global latents, and of the local ones a draw for every row of the batch and every position of its
            text (padding on the left is not counted), with or without a key-value cache. Beams are rows: a
            beam search carries the cache of one to another, and so mixes their draws.

    Yields:
        The language model. Its logits are those before any temperature that is fitted after training
        (`bara_pyro.posthoc`).

    Raises:
        ConfigError: `seed` is no whole number, the guide belongs to another model, the program is more than
            adapters in a language model (an ensemble's members, a temperature of the answers), or a seed is
            given where draws are of the answers (Laplace, or `distance_aware`).
        BackboneError: a program hangs on this language model already.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")
        >>> model = bp.models.BaRA(backbone, num_data=8, form="gate")
        >>> guide = bp.guides.WeibullGuide(model)
        >>> tokens = backbone.tokenizer("the guest lives in", return_tensors="pt")
        >>> with bp.attached((model, guide), seed=7) as lm:  # one draw of the posterior
        ...     text = lm.generate(**tokens, max_new_tokens=3, do_sample=False)
        >>> text.shape  # four tokens and three more
        torch.Size([1, 7])
    """
    model, guide = pair_of(run)
    if seed is not None and not is_whole(seed):
        raise ConfigError(f"seed={seed!r}: give the seed of one draw, or None for the posterior mean.")
    check_attachable(model, guide, drawn=seed is not None)
    if seed is not None and getattr(getattr(run, "corrections", None), "distance", None) is not None:
        raise ConfigError(
            "The draws of a distance-aware program hold noise of its answers, which `attached` cannot show: "
            "leave the seed out, or use bara_pyro.core.prediction.predict."
        )
    # A guide whose draws do not differ stands for its mean, as in `predict`.
    distribution = PosteriorMean(guide) if seed is None or not guide.stochastic else OneDraw(guide, int(seed))
    with hung(model, distribution, latents_under(model, distribution)) as lm:
        yield lm


@torch.no_grad()
def latents_under(model: AdaptedLM, distribution: Posterior) -> Sequence[LayerLatents]:
    """Return what each adapter is given where global latents come from a posterior, whatever the rows."""
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
    """Hang a program's adapters on its language model while the block runs; see `attached`.

    Args:
        model: the program.
        distribution: what local latents are taken from; one that has a `place` is told where tokens stand.
        latents: what each adapter is given.
        lead: what the first dimension of a layer's input unfolds to, `draws x rows`; None: it is rows.
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
    """Adds an adapter's change to its layer's output, its local latents taken from a posterior."""

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
    """A posterior whose draws depend on where a token stands, which it is told before every forward."""

    def check(self, lm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse to give the output embedding tokens by their places, which it is not told."""
        if isinstance(kwargs.get("logits_to_keep"), Tensor):
            raise ConfigError(
                "logits_to_keep is a tensor of places, and a draw's noise is of the last tokens: give their "
                "number, or attach without a seed."
            )

    def place(self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note where the tokens of a forward stand in their texts; called before it."""
        self.see(going_on(positions_of(*args[:1], **kwargs), kwargs))

    def see(self, positions: Tensor) -> None:
        """Note the positions of the tokens of a forward, long, `B x T`."""
        raise NotImplementedError


class OneDraw(Placed):
    """One draw of the posterior, whose noise is a function of seed, site, row and position alone.

    Args:
        guide: the fitted guide.
        seed: of the draw.
    """

    def __init__(self, guide: SiteGuide, seed: int) -> None:
        super().__init__(guide)
        self.seed = seed
        self._own = threading.local()  # addresses: of the forward that a thread runs
        self.see(torch.zeros(1, 1, dtype=torch.long, device=guide.model.backbone.device))

    def see(self, positions: Tensor) -> None:
        """Make the addresses of a forward's tokens."""
        first = torch.zeros(1, dtype=torch.long, device=positions.device)
        ids = tuple(map(str, range(len(positions))))
        sites = self.guide.model.latents.local_shapes
        self._own.addresses = CounterNoise(self.seed, first, ids, positions, sites=sites)

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the draw of a site, of the distribution's batch and event shape."""
        if name in self.guide.model.latents.local_sites:
            return cast(CounterNoise, self._own.addresses).draw_local(name, fn)[0]
        return cast(CounterNoise, self._own.addresses).draw_global(name, fn)[0]


# Last position of each row that a state was made of, which does not know how many tokens it has read.
_READ: "WeakKeyDictionary[object, Tensor]" = WeakKeyDictionary()


def going_on(positions: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """Return the positions of a forward, behind those that its state has read.

    Mamba and its kin go on from a state (`cache_params`) that does not say how long it is, and are then given
    neither positions nor a mask.
    """
    state = arguments.get("cache_params")
    if state is None:
        return positions
    told = any(arguments.get(name) is not None for name in ("position_ids", "attention_mask"))
    if not told and (last := _READ.get(state)) is not None and len(last) == len(positions):
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
    """Return the position of every token that a decoder is given, from its first real one: long, `B x T`.

    Arguments are those of a Hugging Face decoder: by its positions, if it is given any, else by its mask (of
    all tokens, cached ones included), else by the length of its cache.
    """
    given = inputs_embeds if input_ids is None else input_ids
    if given is None:
        raise ConfigError("The language model was given neither input_ids nor inputs_embeds: give one.")
    rows, width = given.shape[:2]
    if position_ids is not None:
        # Those of images have several planes, of which the first counts tokens.
        return position_ids.reshape(-1, *position_ids.shape[-2:])[0].expand(rows, width)
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(-1) - 1)[:, -width:]
    cache = given_cache(others)
    start = 0 if cache is None else int(cache.get_seq_length())
    return torch.arange(start, start + width, device=given.device).expand(rows, width)
