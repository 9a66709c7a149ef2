r"""MC-dropout LoRA (Gal and Ghahramani, 2016): the input of A under a random mask, also when predicting.

keep ~ Bernoulli(1 - p)     one entry per module, row, token and input feature
y    = W0 x + s B A (keep / (1 - p) * x)

The mask is a latent variable whose posterior is its prior (`guides.prior.PriorGuide`); A and B are
parameters. Training maximises `E log p(y | keep)`, the exact ELBO of this program, whose KL is 0. By Jensen's
inequality it is a lower bound on the log-likelihood of the mixture over masks that the predictive averages.

This is variational inference only in part. Gal and Ghahramani read `A diag(keep)` as a draw from `q(A)` and
weight decay as the KL to a Gaussian prior. Neither holds here: the compared papers set the decay to 0 (a flat
prior and no KL), and dropout draws a mask for every token, so no single draw of A explains a whole question.
The noise level p is not learned. The spread of the predictive comes from the noise used in training, scaled
by A and B, and does not shrink with the number of training rows.

Source: PEFT's `lora_dropout`, kept on at test time as in the public code of BLoB and ScalaBL.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Unpack

import pyro
from pyro.distributions import Bernoulli
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import chosen_rows
from bara_pyro.core.latents import Latents, Site
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.models.lora import LowRankAdapter

KEEP = "keep"


class DropoutAdapter(LowRankAdapter):
    """Update of one layer; samples the mask of its input."""

    def __init__(self, target: Target, r: int, scaling: float, p: float) -> None:
        super().__init__(target, r, scaling)
        self.kept = 1 - p

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `A (keep * x)`."""
        distribution = Bernoulli(x.new_full((), self.kept), validate_args=False)
        keep = pyro.sample(self.target.site(KEEP), distribution.expand(x.shape).to_event(1))
        return F.linear(x * keep, self.lora_A)

    def expand(self, units: Tensor, latents: None, rows: Tensor | None = None) -> Tensor:
        """Return `s B units / (1 - p)`; dividing here saves a pass over the wide input."""
        return F.linear(units, chosen_rows(self.lora_B, rows) * (self.scaling / self.kept))


class DropoutLoRA(AdaptedLM):
    """LoRA with dropout on the input of every A.

    At the mean of the mask (S = 0) it equals LoRA without dropout.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        p: probability of dropping an input feature.

    Raises:
        ConfigError: `p` is not in [0, 1).
    """

    adapters: Mapping[str, DropoutAdapter]
    has_activations = True

    def __init__(
        self, backbone: Backbone, num_data: int, *, p: float = 0.1, **adapter: Unpack[AdapterOptions]
    ) -> None:
        if not 0 <= p < 1:
            raise ConfigError(f"p={p} must be at least 0 and below 1.")
        super().__init__(backbone, num_data, partial(DropoutAdapter, p=p), **adapter)
        self.p = p

    @cached_property
    def latents(self) -> Latents:
        """One site `keep/<path>` per module, of event shape `in_features`."""
        sites = {
            t.site(KEEP): Site(KEEP, (t.in_features,), t.path, local=True, width=t.in_features)
            for t in self.targets
        }
        return Latents(self.r, sites)
