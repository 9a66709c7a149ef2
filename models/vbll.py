r"""A variational Bayesian last layer over LoRA (Harrison, Willes and Snoek, ICLR 2024, arXiv 2404.11599).

w_k ~ Normal(0, prior_scale^2 I)               k = 1 .. K, a d-vector an answer
z_k = (what the language model with LoRA gives answer k) + w_k . phi,    phi = h / |h|
y   ~ Categorical(softmax(z))

h is the head's input at the last token, of width d. The head's own rows stay as they are and have no LoRA:
w_k is the deviation of an answer's row from its frozen one, where the publication, whose classes are new,
has the row itself. All else of the discriminative classifier is as published (Section 2.2 there) but for two
things: h is divided by its length, so that `prior_scale` is in nats of an answer's logit on every language
model, and the logits have no Gaussian noise of their own beside that of w.

Where the architecture bends its logits, w is added to what comes out, so that z is linear in w everywhere.
Nothing random reaches the layers: all draws share one run of the language model.
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
from bara_pyro.core.latents import Latents, Site
from bara_pyro.core.likelihood import require_answer_tokens
from bara_pyro.core.modules import frozen, read
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.core.sampling import by_draw, tempered
from bara_pyro.data.types import Batch
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import find_targets
from bara_pyro.models.lora import LoRAAdapter

LAST = "last_layer"
NONE = -1  # the token of a row that belongs to no answer


class VBLL(AdaptedLM):
    """LoRA in the layers, random rows of the answers behind them.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`; of `target_modules` the output
            embedding is left out.
        answers: K, the number of rows there is room for; those beyond a task's answers are left alone.
        prior_scale: standard deviation, in nats, that the prior gives the logit of an answer.
        beta: weight of the KL; 1 is the exact ELBO.

    Raises:
        ConfigError: a number out of range, or another likelihood than that of answers of one token.
        BackboneError: `target_modules` names the output embedding alone.
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
                f"answers={answers} must be at least 2, prior_scale={prior_scale} positive and beta={beta} "
                "not negative."
            )
        targets = find_targets(backbone.lm, adapter.get("target_modules"))
        adapter["target_modules"] = [target.path for target in targets if not target.is_head]
        if not adapter["target_modules"]:
            raise BackboneError(
                "target_modules is empty without the output embedding, whose place a Bayesian last layer "
                "takes: name a layer below it."
            )
        super().__init__(backbone, num_data, self.adapter_class, **adapter)
        require_answer_tokens(self.likelihood, "Bayesian last layers")
        self.answers = answers
        self.prior_scale = prior_scale
        self.beta = beta
        self.width = backbone.lm.get_output_embeddings().weight.shape[1]
        self.tokens = frozen(torch.full((answers,), NONE, device=backbone.device))

    @cached_property
    def latents(self) -> Latents:
        """`last_layer`, `K x d`."""
        return Latents(self.r, {LAST: Site(LAST, (self.answers, self.width))})

    def global_latents(self, batch: Batch) -> Sequence[LayerLatents]:
        """Sample the rows; return what each adapter is given and, behind it, the rows of the batch's answers.

        These are `[draws x 1 x] C x d`. Rows of no answer of the batch do not count.
        """
        places = self.places(batch.answer_ids)
        counted = torch.zeros(self.answers, dtype=torch.bool, device=places.device)
        counted[places] = True
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
        """Return which row belongs to each answer, long, `C`: the first C until `set_tokens` says whose.

        An answer that was not trained has a row that was not either, whose posterior is the prior.

        Raises:
            ConfigError: there are more answers than rows, or an answer that has none.
        """
        known = read(self, "tokens")
        if not bool((known != NONE).any()):
            if len(answer_ids) > self.answers:
                raise ConfigError(
                    f"The task has {len(answer_ids)} answers and the last layer rows for {self.answers}: "
                    f"give method.answers={len(answer_ids)}."
                )
            return torch.arange(len(answer_ids), device=known.device)
        same = known == answer_ids.unsqueeze(-1)
        found, places = same.any(-1), same.int().argmax(-1)
        spare = (known == NONE).nonzero()[:, 0]
        if (~found).sum() > len(spare):
            raise ConfigError(
                f"The last layer was trained for the answer tokens {known[known != NONE].tolist()}, "
                f"the batch has {answer_ids.tolist()}: train it on a task with these answers."
            )
        places[~found] = spare[: int((~found).sum())]
        return places

    @torch.no_grad()
    def set_tokens(self, answer_ids: Tensor) -> None:
        """Remember whose rows the first C are, once they are trained."""
        read(self, "tokens")[: len(answer_ids)] = answer_ids.to(read(self, "tokens").device)

    def features(self, hidden: Tensor) -> Tensor:
        """Return phi of last hidden states, `... x d`, float32."""
        return F.normalize(hidden.float(), dim=-1)

    def logits(self, latents: Sequence[LayerLatents], hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return z, `[draws x] B x P x C`; see `AdaptedLM.logits`."""
        weights = latents[-1]
        base = super().logits(latents, hidden, rows)
        with torch.autocast(hidden.device.type, enabled=False):
            phi = self.features(hidden)
            if weights.dim() == 2:
                return base + F.linear(phi, weights)
            # One product a draw: `... x 1 x C x d` with `B x P x d`, rows and positions in a row.
            flat = phi.flatten(-3, -2) @ weights.squeeze(-3).mT
            return base + flat.unflatten(-2, hidden.shape[-3:-1])
