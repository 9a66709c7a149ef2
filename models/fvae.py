r"""FVAE-LoRA (Kumar et al., NeurIPS 2025, arXiv 2510.19640): LoRA's A replaced by an encoder.

One pair of latents per module, row and token; x is the layer's input:

z1 ~ Normal(0, I)        the part used by the task      y = W0 x + s B z1,   s = alpha / (r + 1e-5)
z2 ~ Normal(m, I)        the rest of x, m = 1.5
x  ~ Normal(dec([z1, z2]), diag(c)^2)                   an auxiliary likelihood of the layer's input

The posteriors q(z1 | x), q(z2 | x) are those of `guides.fvae`. Only z1 reaches the answer. In prediction,
without labels, nothing depends on z2 and the reconstruction, so the program leaves them out.

As published, B starts at Normal(0, 0.02^2) rather than at 0: draws of z1 disturb the layers from the first
step, so training does not start at the backbone. The posterior means start at 0, so the model at the
posterior mean (S = 0) does start there.

Parameters per module, for r latents, an encoder of h units and a decoder of K layers of w units:
    B                  out r
    encoders           2 (d h + h + 2 (h r + r))
    decoder            2 r w + w + (K - 1)(w^2 + w) + w d + d, and d for c if it is learned
docs/methods.md compares them with the published counts.

The published code also applies dropout of 0.1 in encoders and decoder during training; this program does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Unpack

import pyro
import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.latents import Latents, Site, sample_per_token, tempered
from bara_pyro.core.modules import Module, seen_by_pyro
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target

Z1, Z2 = "z1", "z2"
RECONSTRUCTION, GAMMA = "reconstruction", "gamma"
INIT_SCALE = 0.02  # of B, as published
BETA = 1e-5  # of the autoencoders' terms: sums over modules and tokens, which at 1 far outweigh the answers
EPSILON = 1e-5  # added to the rank and to the decoder's scale, as published


@dataclass(frozen=True)
class Weights:
    """Weights of the parts of the objective, relative to the negative log-likelihood of the answer.

    Attributes:
        kl_z1, kl_z2: weights of KL(q(z) || p(z)).
        reconstruction: weight of `-log p(x | z1, z2)`.
        spread, pull: weights of the two parts of the published factor `Gamma`: `-mean(z1^2)` and
            `mean((z2 - m)^2)`, means over the r entries.
        averaged: average each part over modules, rows and tokens (the published code) instead of summing.
        padding: count padding tokens as well.
        detach: stop the gradient of the reconstruction from reaching the layers below through its target x.
    """

    kl_z1: float = BETA
    kl_z2: float = BETA
    reconstruction: float = BETA
    spread: float = 0.0
    pull: float = 0.0
    averaged: bool = False
    padding: bool = False
    detach: bool = True


class Pass(NamedTuple):
    """Inputs of an adapter for one forward pass.

    Attributes:
        prior_z1, prior_z2: priors of one entry.
        training: whether the answer is observed.
        share: weight of one token.
    """

    prior_z1: TorchDistribution
    prior_z2: TorchDistribution
    training: bool
    share: float


class MLP(Module):
    """Linear layers with ReLU between them; `widths` lists the sizes from input to output."""

    def __init__(self, widths: Sequence[int], device: torch.device | None = None) -> None:
        super().__init__()
        linear = seen_by_pyro(nn.Linear)
        self._layers = tuple(linear(a, b, device=device) for a, b in pairwise(widths))
        self.layers = seen_by_pyro(nn.ModuleList)(self._layers)

    @property
    def heads(self) -> nn.Linear:
        """The last linear layer."""
        return self._layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, `... x widths[-1]`."""
        for layer in self._layers[:-1]:
            x = F.relu(layer.forward(x))
        return self._layers[-1].forward(x)


class FVAEAdapter(Adapter):
    """Update of one layer; samples z1, in training also z2 and the reconstruction of the layer's input."""

    def __init__(
        self, target: Target, r: int, scaling: float, weights: Weights, decoder: MLP, learn_scale: bool
    ) -> None:
        super().__init__(target, r, scaling)
        self.weights = weights
        self.lora_B = nn.Parameter(INIT_SCALE * torch.randn(target.out_features, r))
        self.decoder = decoder
        self.decoder_scale = nn.Parameter(torch.ones(target.in_features)) if learn_scale else None

    def shrink(self, x: Tensor, latents: Pass) -> Tensor:
        """Return z1."""
        z1 = self._draw(Z1, latents.prior_z1, x, latents.share * self.weights.kl_z1)
        if latents.training:
            self._reconstruct(x, z1, latents)
        return z1

    def _draw(self, family: str, prior: TorchDistribution, x: Tensor, weight: float) -> Tensor:
        return sample_per_token(self.target.site(family), prior, x, self.r, weight)

    def _reconstruct(self, x: Tensor, z1: Tensor, latents: Pass) -> None:
        """Sample z2, observe x, and add the factor that replaces KL(z2) in the published code."""
        w, share = self.weights, latents.share
        z2 = self._draw(Z2, latents.prior_z2, x, share * w.kl_z2)
        mean = self.decoder.forward(torch.cat([z1, z2], dim=-1))
        # The absolute value of c: the published code has no density once an entry crosses 0.
        scale = mean.new_ones(()) if self.decoder_scale is None else self.decoder_scale.abs() + EPSILON
        with tempered(share * w.reconstruction):
            distribution = Normal(mean, scale, validate_args=False).to_event(1)
            pyro.sample(self.target.site(RECONSTRUCTION), distribution, obs=x.detach() if w.detach else x)
        if w.spread or w.pull:
            gamma = w.spread * z1.square().mean(-1) - w.pull * (z2 - latents.prior_z2.mean).square().mean(-1)
            with tempered(share):
                pyro.factor(self.target.site(GAMMA), gamma)


class FVAE(AdaptedLM):
    """FVAE-LoRA as a Pyro model.

    With `Weights(beta, beta, beta)` the objective, given each layer's input x from the layers below, is

        E log p(y | z1) + beta sum_{modules, tokens} [ E log p(x | z1, z2) - KL(q1 || p1) - KL(q2 || p2) ]

    in nats. At `beta` 1 it is the ELBO with the answer and every layer's input as observations: a bound on
    `log p(y, inputs)`, not on `log p(y)`. Above the lowest adapted layer the inputs change with the draws in
    the layers below; they are treated as data, as in any autoencoder of activations. Other weights give the
    published objective (`bara_pyro.methods.fvae`).

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        weights: weights of the parts of the objective; all `BETA` by default.
        z2_mean: mean m of z2's prior.
        decoder_layers: number K of hidden layers of the decoder.
        decoder_width: units w per hidden layer.
        learn_scale: learn c, which starts at 1; otherwise c stays at 1.

    Raises:
        ConfigError: a size is not positive, or a weight is negative.
    """

    adapters: Mapping[str, FVAEAdapter]

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        weights: Weights | None = None,
        z2_mean: float = 1.5,
        decoder_layers: int = 3,
        decoder_width: int = 128,
        learn_scale: bool = True,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        if decoder_layers < 1 or decoder_width < 1:
            raise ConfigError(
                f"decoder_layers={decoder_layers} and decoder_width={decoder_width} must be at least 1."
            )
        weights = Weights() if weights is None else weights
        for name, value in vars(weights).items():
            if value < 0:
                raise ConfigError(f"The weight {name}={value} must not be negative.")
        device = backbone.device

        def make_adapter(target: Target, r: int, scaling: float) -> FVAEAdapter:
            widths = [2 * r, *[decoder_width] * decoder_layers, target.in_features]
            # Initial values are drawn on the CPU, so that they do not depend on the device; "meta" has none.
            decoder = MLP(widths, device if device.type == "meta" else None)
            return FVAEAdapter(target, r, scaling * r / (r + EPSILON), weights, decoder, learn_scale)

        super().__init__(backbone, num_data, make_adapter, **adapter)
        self.weights = weights
        one = torch.ones((), device=backbone.device)
        self.prior_z1 = Normal(0 * one, one, validate_args=False)
        self.prior_z2 = Normal(z2_mean * one, one, validate_args=False)

    @cached_property
    def latents(self) -> Latents:
        """The sites `z1/<path>` and `z2/<path>`; auxiliary: the reconstruction and the published factor."""
        sites, auxiliary = {}, {}
        for t in self.targets:
            for family in (Z1, Z2):
                sites[t.site(family)] = Site(family, (self.r,), t.path, local=True, width=t.in_features)
            for family in (RECONSTRUCTION, GAMMA):
                auxiliary[t.site(family)] = Site(family, (), t.path, local=True)
        return Latents(self.r, sites, auxiliary)

    def counted(self, batch: Batch) -> Tensor:
        """Return the tokens that count in the objective, `B x T`: all if `padding`, else the real ones."""
        return torch.ones_like(batch.attention_mask) if self.weights.padding else batch.attention_mask

    def global_latents(self, batch: Batch) -> Sequence[Pass]:
        """Return the adapters' inputs for this pass; nothing is sampled. Without labels z2 is left out."""
        share = head_share = 1.0
        if self.weights.averaged:  # over tokens; the output embedding sees only the scored positions
            of_a_row = len(batch) / len(self.targets)
            share = of_a_row / int(self.counted(batch).sum())
            head_share = of_a_row / batch.positions
        training = self.likelihood.observed(batch)
        return [
            Pass(self.prior_z1, self.prior_z2, training, head_share if target.is_head else share)
            for target in self.targets
        ]
