"""Encoders of FVAE-LoRA: amortised Gaussian posteriors of z1 and z2, one encoder per site.

    q(z | x) = Normal(mean, diag(exp(logvar)))      [mean, logvar] = heads(ReLU(W x + b)),  |logvar| <= 20

The heads start at 0, so q starts at Normal(0, I), the prior of z1, for every x.
"""

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import nn

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.modules import by_name
from bara_pyro.errors import ConfigError
from bara_pyro.models.fvae import FVAE, MLP

MAX_LOGVAR = 20.0


class FVAEGuide(SiteGuide):
    """Independent Gaussian posteriors of z1 and z2, given the layer's input.

    Args:
        model: the program.
        hidden: units of an encoder's hidden layer; the rank by default, as published.

    Raises:
        ConfigError: `hidden` is not positive.
    """

    program = FVAE

    def __init__(self, model: FVAE, *, hidden: int | None = None) -> None:
        super().__init__(model)
        width = model.r if hidden is None else hidden
        if width < 1:
            raise ConfigError(f"hidden={hidden} must be at least 1.")
        encoders: dict[str, MLP] = {}
        for name, site in model.latents.local_sites.items():
            encoder = MLP([site.width, width, 2 * site.shape[-1]])
            nn.init.zeros_(encoder.heads.weight)
            nn.init.zeros_(encoder.heads.bias)
            encoders[name] = encoder
        self.sites = by_name(encoders)
        self._encoders = encoders
        self.to(model.backbone.device)

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return `q(z | x)` of one site."""
        mean, logvar = self._encoders[name].forward(self.input).chunk(2, dim=-1)
        scale = torch.exp(0.5 * logvar.clamp(-MAX_LOGVAR, MAX_LOGVAR))
        return Normal(mean, scale, validate_args=False).to_event(1)

    def local_parameters(self) -> list[nn.Parameter]:
        """Return the encoders' weights; `train.local_lr_scale` scales their learning rate."""
        return list(self.parameters())
