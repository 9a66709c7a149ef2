"""The probabilistic program that every method shares: adapters in a frozen language model, a likelihood.

    global latents  ->  hidden states of the language model, each target layer changed by its adapter
                    ->  the likelihood, which asks for the logits that it needs  ->  y

A method is a subclass of `AdaptedLM` (which adapters, which global latents) and of `Adapter` (how one layer
is changed, which local latents it samples). What is observed is the likelihood's business: an answer, unless
another is given. Nothing of the language model is modified: the changes hang on forward hooks that exist only
while the program runs.
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
from bara_pyro.core.handlers import check_conditions
from bara_pyro.core.latents import Gates, Latents
from bara_pyro.core.likelihood import AnswerLikelihood, Likelihood, predicting
from bara_pyro.core.modules import Module, by_name
from bara_pyro.core.next_token import NextToken
from bara_pyro.core.sampling import draw_plate_shape
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target, checked_ranks, find_targets
from bara_pyro.lm.verifying import verify_once
from bara_pyro.types import is_whole


class AdapterOptions(TypedDict, total=False):
    """What every program is told about its adapters; see `AdaptedLM`."""

    r: int
    lora_alpha: float
    target_modules: str | list[str] | None
    full_vocab: bool
    rank_pattern: Mapping[str, int] | None
    likelihood: Likelihood | None


class AdaptedLM(Module):
    """Base program: a frozen language model with one adapter a target layer, and a likelihood.

    Args:
        backbone: the frozen language model.
        num_data: number N of training examples; likelihood and local KL are scaled by N / batch size.
        make_adapter: `(target, rank, scaling) -> adapter` of one layer.
        r: rank.
        lora_alpha: the change is scaled by `lora_alpha / r`.
        target_modules: see `bara_pyro.lm.targets.find_targets`.
        full_vocab: compute the logits of the whole vocabulary before taking those asked for (same result).
        rank_pattern: path of a module -> its rank where that is less than r, as PEFT has it; the scaling
            stays `lora_alpha / r`.
        likelihood: what is observed; an answer by default.

    Raises:
        ConfigError: a size is not positive, or the rank pattern names an unknown module or a rank above r.
        BackboneError: a target matches nothing.
    """

    adapters: Mapping[str, Adapter]  # by `sites.module_key` of their path, in the order of the targets
    # Whether units can be taken out of an adapter one by one, which leaves a program with a rank pattern.
    prunable = False
    has_activations = False  # whether `lora_A x` is what each rank unit passes on
    # Whether draws reach the body: where they do not, it is run once for all draws.
    drawn_body = True
    members = 0  # of an ensemble, which stand for draws, and whose numbers its adapters take as `latents`

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        make_adapter: Callable[[Target, int, float], Adapter],
        *,
        r: int = 8,
        lora_alpha: float = 16.0,
        target_modules: str | list[str] | None = None,
        full_vocab: bool = False,
        rank_pattern: Mapping[str, int] | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise ConfigError(
                f"The language model is a {type(backbone).__name__}: give bp.Backbone(model, tokenizer)."
            )
        for name, number in (("num_data", num_data), ("r", r)):
            if not is_whole(number) or number < 1:
                raise ConfigError(f"{name}={number} must be a whole number of at least 1.")
        if not 0 < lora_alpha < math.inf:
            raise ConfigError(f"lora_alpha={lora_alpha} must be a finite number above 0.")
        verify_once(backbone)
        # In tuples, here and below, so that neither torch nor Pyro registers what they hold.
        self._frozen = (backbone,)
        self.num_data = num_data
        self.r = r
        self.full_vocab = full_vocab
        self.likelihood = likelihood or AnswerLikelihood()
        self.targets = find_targets(backbone.lm, target_modules)
        # Decoder layers below all adapters, which are run once a row.
        self.frozen_layers = backbone.frozen_layers(self.targets)
        self.rank_pattern = checked_ranks(rank_pattern or {}, self.targets, r)
        adapters = [make_adapter(t, self.rank_pattern.get(t.path, r), lora_alpha / r) for t in self.targets]
        self.adapters = by_name({a.target.path: a for a in adapters})
        self._heads = tuple(a for a in adapters if a.target.is_head)  # looked up once, as is the body
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
        """Sample what is shared by all rows and tokens; return what each adapter is given, a target each."""
        return [None] * len(self.targets)

    def outside(self) -> AbstractContextManager[None]:
        """Return what stands around the program's own plates: by default nothing."""
        return nullcontext()

    def counted(self, batch: Batch) -> Tensor:
        """Return the tokens whose local sites enter the objective, `B x T`: by default the real ones."""
        return batch.attention_mask

    @cached_property
    def latents(self) -> Latents:
        """The latent sites, for guides."""
        return Latents(self.r)

    @cached_property
    def gates(self) -> Gates | None:
        """The gates, for diagnostics; None where the method has none."""
        return None

    def forward(self, batch: Batch) -> Tensor:
        """Run the program on a batch; return what its likelihood returns: log-probabilities, float32.

        Raises:
            BackboneError: the language model is in training mode, or a program hangs on it.
        """
        self.backbone.check()
        check_conditions()
        if predicting():
            batch = batch.unlabelled()
        rows = len(batch)
        indices = torch.arange(rows, device=batch.input_ids.device)
        with beside_foreign(batch) or nullcontext(), self.outside():
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
        """Hang the adapters of the body on the language model while the block runs, in the plate of tokens.

        Args:
            batch: the rows that are run meanwhile.
            latents: what each adapter is given.

        Yields:
            The shape of the draws that the body is run for; empty: it is run once, whatever the draws.
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
            latents: of all adapters.
            hidden: `[draws x] B x P x d`.
            rows: long, `C`: the tokens whose logits are wanted; the whole vocabulary if None.
        """
        wanted = None if self.full_vocab else rows
        if wanted is None:  # of a view torch would make a product a row, each with a copy of the weight
            hidden = hidden.contiguous()
        out = self.backbone.logits(hidden, wanted).float()
        for adapter in self._heads:
            out = out + adapter.change(hidden, latents[adapter.target.index], wanted)
        out = self.finished(out)
        return out[..., rows] if self.full_vocab and rows is not None else out

    def next_token(self, latents: Sequence[LayerLatents], hidden: Tensor) -> NextToken:
        """Return the distribution of the token behind each position; see `bara_pyro.core.likelihood.Head`.

        What the output embedding's adapter samples is sampled here, at all positions.
        """
        hidden = hidden.contiguous()
        heads = [(a, latents[a.target.index]) for a in self._heads]
        made = [(adapter, given, adapter.units(hidden, given)) for adapter, given in heads]

        def logits(places: slice) -> Tensor:
            out = self.backbone.logits(hidden[..., places, :].contiguous()).float()
            for adapter, given, units in made:
                out = out + adapter.output(units if units.shape[-2] == 1 else units[..., places, :], given)
            return self.finished(out)

        return NextToken(logits, hidden.shape[:-1], self.backbone.vocabulary)

    def finished(self, logits: Tensor) -> Tensor:
        """Do to logits, adapted or not, what is done to them last: here what the architecture does."""
        return self.backbone.finished(logits)


class _Head(NamedTuple):
    """What a likelihood is given of a program: see `bara_pyro.core.likelihood.Head`."""

    program: AdaptedLM
    latents: Sequence[LayerLatents]

    def __call__(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.program.logits(self.latents, hidden, rows)

    def next_token(self, hidden: Tensor) -> NextToken:
        return self.program.next_token(self.latents, hidden)
