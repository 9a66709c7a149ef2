r"""A variational Bayesian last layer over LoRA (Harrison, Willes and Snoek, ICLR 2024, arXiv 2404.11599).

w_k ~ Normal(0, prior_scale^2 I)               k = 1 .. K, one d-vector per answer
z_k = (logit of answer k from the language model with LoRA) + w_k . phi,    phi = h / |h|
y   ~ Categorical(softmax(z))

h is the head's input at the last token, of width d. This is the discriminative classifier of Section 2.2 of
the publication, with three differences:

- w_k is the deviation of an answer's row from its frozen row in the head, which has no LoRA. In the
  publication, whose classes are new, w_k is the row itself.
- h is divided by its length, so that `prior_scale` is in nats of an answer's logit for every language model.
- The logits have no Gaussian noise beside that of w.

If the architecture transforms its logits (soft-capping, scaling), w is added after the transformation, so
that z is linear in w for every model. Nothing random reaches the layers: all draws share one run of the
language model.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Unpack, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Normal
from torch import BoolTensor, Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter, LayerLatents
from bara_pyro.core.latents import Latents, Site, by_draw, tempered
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import frozen, read
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.models.lora import LoRAAdapter

LAST = "last_layer"
NONE = -1  # token id of a row that is not assigned to an answer


class VBLL(AdaptedLM):
    """LoRA in the layers and a Bayesian last layer over the answers, as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`; the output embedding is removed
            from `target_modules`.
        answers: K, the number of rows of the last layer; a task with fewer answers leaves the rest unused.
        prior_scale: prior standard deviation of an answer's logit, in nats.
        beta: weight of the KL; 1 is the exact ELBO.

    Raises:
        ConfigError: a number is out of range, or the likelihood is not that of one-token answers.
        BackboneError: `target_modules` names only the output embedding.
    """

    adapters: Mapping[str, Adapter]
    adapter_class: type[Adapter] = LoRAAdapter
    drawn_body = False

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        answers: int = 5,
        prior_scale: float = 1.0,
        beta: float = 1.0,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        if answers < 2 or prior_scale <= 0 or beta < 0:
            raise ConfigError(
                f"answers={answers} must be at least 2, prior_scale={prior_scale} must be positive and "
                f"beta={beta} must not be negative."
            )
        chosen = adapter.get("target_modules"), adapter.pop("top_layers", None)
        targets = find_targets(backbone.lm, *chosen)
        adapter["target_modules"] = [target.path for target in targets if not target.is_head]
        if not adapter["target_modules"]:
            raise BackboneError(
                "target_modules names only the output embedding, which the Bayesian last layer replaces: "
                "name a layer below it."
            )
        super().__init__(backbone, num_data, self.adapter_class, **adapter)
        require_answer_tokens(self.likelihood, "Bayesian last layers")
        self.answers = answers
        self.prior_scale = prior_scale
        self.beta = beta
        self.width = backbone.lm.get_output_embeddings().weight.shape[1]
        # On the CPU even if the weights are not: every step reads it, and a GPU would have to synchronise.
        self.tokens = frozen(torch.full((answers,), NONE))

    @cached_property
    def latents(self) -> Latents:
        """The site `last_layer`, `K x d`."""
        return Latents(self.r, {LAST: Site(LAST, (self.answers, self.width))})

    def global_latents(self, batch: Batch) -> Sequence[LayerLatents]:
        """Sample the rows; return each adapter's latents, then the rows of the batch's answers.

        The rows are `[draws x 1 x] C x d`. Rows that belong to no answer of the batch do not enter the KL.
        """
        places = self.places(batch.answer_ids)
        counted = torch.zeros(self.answers, dtype=torch.bool, device=places.device)
        counted.index_fill_(0, places, True)
        zero = torch.zeros((), device=places.device)
        prior = Normal(zero, zero + self.prior_scale, validate_args=False)
        with (
            pyro.plate("answers", self.answers, dim=-1),
            poutine.mask(mask=cast(BoolTensor, counted)),
            tempered(self.beta),
        ):
            prior = prior.expand([self.answers, self.width]).to_event(1)
            drawn = by_draw(LAST, pyro.sample(LAST, prior), prior)
        return [*super().global_latents(batch), drawn[..., places, :]]

    def places(self, answer_ids: Tensor) -> Tensor:
        """Return the index of each answer's row, long, `C`: before `set_tokens`, simply 0 .. C-1.

        An answer that training did not see gets an unused row, whose posterior is the prior.

        Raises:
            ConfigError: there are more answers than rows, or no unused row is left for a new answer.
        """
        known = read(self, "tokens")
        if max(known.tolist()) == NONE:
            if len(answer_ids) > self.answers:
                raise ConfigError(
                    f"The task has {len(answer_ids)} answers, but the last layer has rows for only "
                    f"{self.answers}: set method.answers={len(answer_ids)}."
                )
            return torch.arange(len(answer_ids), device=answer_ids.device)
        known = known.to(answer_ids.device)
        same = known == answer_ids.unsqueeze(-1)
        matched, places = same.any(-1), same.int().argmax(-1)
        spare = (known == NONE).nonzero()[:, 0]
        if (~matched).sum() > len(spare):
            raise ConfigError(
                f"The last layer was trained for the answer tokens {known[known != NONE].tolist()}, not for "
                f"{answer_ids.tolist()}: train it on a task with these answers."
            )
        places[~matched] = spare[: int((~matched).sum())]
        return places

    @torch.no_grad()
    def set_tokens(self, answer_ids: Tensor) -> None:
        """Record, after training, that the first C rows belong to these answer tokens, long, `C`."""
        read(self, "tokens")[: len(answer_ids)] = answer_ids.to(read(self, "tokens").device)

    def features(self, hidden: Tensor) -> Tensor:
        """Return phi, the last hidden states divided by their length, `... x d`, float32."""
        return F.normalize(hidden.float(), dim=-1)

    def logits(self, latents: Sequence[LayerLatents], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return z, `[draws x] B x P x C`; see `AdaptedLM.logits`."""
        weights = latents[-1]
        base = super().logits(latents, hidden, rows)
        with torch.autocast(hidden.device.type, enabled=False):
            phi = self.features(hidden)
            if weights.dim() == 2:
                return base + F.linear(phi, weights)
            # One product per draw: `... x 1 x C x d` with `B x P x d`, rows and positions flattened.
            flat = phi.flatten(-3, -2) @ weights.squeeze(-3).mT
            return base + flat.unflatten(-2, hidden.shape[-3:-1])
