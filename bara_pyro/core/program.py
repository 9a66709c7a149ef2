"""Pyro model that all methods share: a frozen language model with adapters, and a likelihood.

    global latents  ->  hidden states of the language model, each target layer updated by its adapter
                    ->  the likelihood, which computes the logits that it needs  ->  y

A method defines a subclass of `AdaptedLM` (its adapters and global latents) and a subclass of `Adapter` (the
update of one layer and its local latents). The likelihood defines the observed site, by default an answer.
The language model is not modified: adapters act through forward hooks that exist only while the program runs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import NamedTuple, TypedDict, cast

import pyro
import torch
from pyro import poutine
from torch import BoolTensor, Tensor

from bara_pyro.core.adapter import Adapter, LayerLatents
from bara_pyro.core.foreign import beside_foreign
from bara_pyro.core.handlers import check_stack, own_parameters
from bara_pyro.core.latents import Gates, Latents, draw_plate_shape
from bara_pyro.core.likelihood import LIKELIHOOD, AnswerLikelihood, Likelihood, predicting
from bara_pyro.core.modules import Module, by_name
from bara_pyro.core.next_token import NextToken
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, is_whole
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target, checked_ranks, find_targets
from bara_pyro.lm.verifying import verify_once
from bara_pyro.moved import refuse_removed


class AdapterOptions(TypedDict, total=False):
    """Options of the adapters, common to all programs; see `AdaptedLM`."""

    r: int
    lora_alpha: float
    target_modules: str | list[str] | None
    top_layers: int | None
    rank_pattern: Mapping[str, int] | None
    likelihood: Likelihood | None


class AdaptedLM(Module):
    """Base Pyro model: a frozen language model with one adapter per target layer, and a likelihood.

    Args:
        backbone: the frozen language model.
        num_data: number N of training examples; likelihood and local KL are scaled by N / batch size.
        make_adapter: function `(target, rank, scaling) -> adapter` for one layer.
        r: rank.
        lora_alpha: updates are scaled by `lora_alpha / r`.
        target_modules, top_layers: which layers are adapted, see `bara_pyro.lm.targets.find_targets`.
        rank_pattern: module path -> rank below r, as in PEFT; the scaling stays `lora_alpha / r`.
        likelihood: the likelihood; `AnswerLikelihood` by default.

    Raises:
        ConfigError: a size is not positive, or the rank pattern has an unknown module or a rank above r.
        BackboneError: a target matches no layer, or the language model is not supported.
    """

    adapters: Mapping[str, Adapter]  # by `module_key` of their path, in the order of the targets
    has_activations = False  # whether the program has `lora_A`, so that `A x` are its activations
    # Whether draws change the hidden states; if not, the body runs once for all draws.
    drawn_body = True
    members = 0  # number of ensemble members; its adapters take member indices as `latents`

    @refuse_removed
    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        make_adapter: Callable[[Target, int, float], Adapter],
        *,
        r: int = 8,
        lora_alpha: float = 16.0,
        target_modules: str | list[str] | None = None,
        top_layers: int | None = None,
        rank_pattern: Mapping[str, int] | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise ConfigError(
                f"The backbone is a {type(backbone).__name__}: pass bp.Backbone(model, tokenizer)."
            )
        for name, number in (("num_data", num_data), ("r", r)):
            if not is_whole(number) or number < 1:
                raise ConfigError(f"{name}={number} must be a whole number of at least 1.")
        if not 0 < lora_alpha < math.inf:
            raise ConfigError(f"lora_alpha={lora_alpha} must be a finite number above 0.")
        verify_once(backbone)
        # Tuples, here and below, because neither torch nor Pyro registers modules inside tuples.
        self._frozen = (backbone,)
        self.num_data = num_data
        self.r = r
        self.likelihood = likelihood or AnswerLikelihood()
        self.targets = find_targets(backbone.lm, target_modules, top_layers)
        # Decoder layers below all adapters, which run once per row.
        self.frozen_layers = backbone.frozen_layers(self.targets)
        self.rank_pattern = checked_ranks(rank_pattern or {}, self.targets, r)
        adapters = [make_adapter(t, self.rank_pattern.get(t.path, r), lora_alpha / r) for t in self.targets]
        self.adapters = by_name({a.target.path: a for a in adapters})
        self._heads = tuple(a for a in adapters if a.target.is_head)  # looked up once, like the body
        self._body = tuple(
            (a, backbone.lm.get_submodule(a.target.path)) for a in adapters if not a.target.is_head
        )
        self.to(backbone.device)
        for adapter in adapters:
            adapter.home = backbone.device

    @property
    def backbone(self) -> Backbone:
        """The frozen language model."""
        return self._frozen[0]

    def global_latents(self, batch: Batch) -> Sequence[LayerLatents]:
        """Sample the latents that all rows and tokens share; return one adapter's latents per target."""
        return [None] * len(self.targets)

    def outside(self) -> AbstractContextManager[None]:
        """Return a context around the program's plates; empty by default, an ensemble adds its members."""
        return nullcontext()

    def counted(self, batch: Batch) -> Tensor:
        """Return a mask of tokens whose local sites enter the objective, `B x T`; default: the real ones."""
        return batch.attention_mask

    @cached_property
    def latents(self) -> Latents:
        """Latent sites of the program, for guides."""
        return Latents(self.r)

    @cached_property
    def gates(self) -> Gates | None:
        """Gates of the program, for diagnostics; None for methods without gates."""
        return None

    def forward(self, batch: Batch) -> Tensor:
        """Run the program on a batch; return the likelihood's result: log-probabilities, float32.

        Raises:
            BackboneError: the language model is in training mode, or another program is attached to it.
        """
        self.backbone.check()
        check_stack(LIKELIHOOD)
        if predicting():
            batch = batch.unlabelled()
        rows = len(batch)
        indices = torch.arange(rows, device=batch.input_ids.device)
        # Weights of Pyro's own guides, a check of replaced parameters, and the ensemble's plate of members.
        with beside_foreign(batch) or nullcontext(), own_parameters(), self.outside():
            latents = self.global_latents(batch)
            with pyro.plate("data", self.num_data, subsample=indices, dim=-2):
                with self.adapted(batch, latents) as draws:
                    hidden = self.backbone.hidden(
                        batch.input_ids,
                        batch.attention_mask,
                        batch.segments,
                        copies=draws.numel(),
                        below=self.frozen_layers,
                        past=batch.past,
                    )
                hidden = hidden.reshape(*draws, rows, *hidden.shape[1:])
                return self.likelihood.observe(hidden, batch, _Head(self, latents))

    @contextmanager
    def adapted(self, batch: Batch, latents: Sequence[LayerLatents]) -> Iterator[torch.Size]:
        """Attach the body's adapters to the language model while the block runs, inside the plate of tokens.

        Args:
            batch: the rows that the block runs.
            latents: the latents of each adapter.

        Yields:
            Shape of the draws for which the body runs; empty if it runs once for all draws.
        """
        draws = torch.Size(draw_plate_shape() if self.drawn_body else ())
        changes = {
            layer: partial(adapter.change_of, latents[adapter.target.index], (*draws, len(batch)))
            for adapter, layer in self._body
        }
        with (
            pyro.plate("tokens", batch.input_ids.shape[1], dim=-1),
            poutine.mask(mask=cast(BoolTensor, self.counted(batch))),
            self.backbone.changed(changes, below=self.frozen_layers),
        ):
            yield draws

    def logits(self, latents: Sequence[LayerLatents], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Apply the output embedding and its adapter; see `bara_pyro.core.likelihood.Head`.

        Args:
            latents: the latents of all adapters.
            hidden: last hidden states, `[draws x] B x P x d`.
            rows: token ids of the wanted logits, long, `C`; None for the whole vocabulary.
        """
        out = self.backbone.logits(hidden, rows).float()
        for adapter in self._heads:
            out = out + adapter.change(hidden, latents[adapter.target.index], rows)
        return self.finished(out)

    def next_token(self, latents: Sequence[LayerLatents], hidden: Tensor) -> NextToken:
        """Return the distribution of the token after each position; see `bara_pyro.core.likelihood.Head`.

        The local latents of the output embedding's adapter are sampled here, at all positions.
        """
        heads = [(a, latents[a.target.index]) for a in self._heads]
        parts = [(adapter, latent, adapter.units(hidden, latent)) for adapter, latent in heads]

        def logits(places: slice) -> Tensor:
            out = self.backbone.logits(hidden[..., places, :]).float()
            for adapter, latent, units in parts:
                out = out + adapter.output(units if units.shape[-2] == 1 else units[..., places, :], latent)
            return self.finished(out)

        return NextToken(logits, hidden.shape[:-1], self.backbone.vocabulary)

    def finished(self, logits: Tensor) -> Tensor:
        """Apply the architecture's last step to logits, such as soft-capping; subclasses may add to it."""
        return self.backbone.finished(logits)


class _Head(NamedTuple):
    """Implements `bara_pyro.core.likelihood.Head` for a program and its latents."""

    program: AdaptedLM
    latents: Sequence[LayerLatents]

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.program.logits(self.latents, hidden, rows)

    def next_token(self, hidden: Tensor) -> NextToken:
        return self.program.next_token(self.latents, hidden)
