"""C-LoRA's amortised posterior: one small network per module maps `A x` to mean and scale of E."""

import math

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.modules import Module, by_name
from bara_pyro.errors import ConfigError
from bara_pyro.models.clora import CLoRA

SIGMA_MIN = 1e-6  # the square of a sigmoid can underflow to 0, where the KL is infinite


class ContextNetwork(Module):
    """Two linear layers with biases and a ReLU between them, with torch's initial values.

    Args:
        width: width of the input.
        hidden: width of the hidden layer.
        outputs: number of outputs.
        offset: added to the biases of the second half of the outputs.
    """

    def __init__(self, width: int, hidden: int, outputs: int, offset: float) -> None:
        super().__init__()
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, outputs)
        self.weight_in, self.bias_in = first.weight, first.bias
        self.weight_out, self.bias_out = last.weight, last.bias
        with torch.no_grad():
            self.bias_out[outputs // 2 :] += offset

    def forward(self, h: Tensor) -> Tensor:
        """Return the outputs, `... x outputs`."""
        hidden = F.linear(h, self.weight_in, self.bias_in).relu()
        return F.linear(hidden, self.weight_out, self.bias_out)


class ContextualGuide(SiteGuide):
    """`Normal(e_mu, sigmoid(e_raw)^2 + 1e-6)` for the entries of E; `e_mu, e_raw = network(A x)`.

    Args:
        model: the program.
        hidden: width of the networks.
        init_scale: approximate initial posterior scale, in (0, 1). The default 0.25 is that of the published
            code, whose networks have no offset.

    Raises:
        ConfigError: a number is out of range.
    """

    program = CLoRA

    def __init__(self, model: CLoRA, *, hidden: int = 64, init_scale: float = 0.25) -> None:
        super().__init__(model)
        if hidden < 1 or not 0 < init_scale < 1:
            raise ConfigError(f"hidden={hidden} must be at least 1, init_scale={init_scale} in (0, 1).")
        root = math.sqrt(init_scale)
        offset = math.log(root / (1 - root))  # sigmoid(offset)^2 = init_scale
        networks = {
            name: ContextNetwork(site.width, hidden, 2 * site.shape[-1], offset)
            for name, site in model.latents.local_sites.items()
        }
        self.sites = by_name(networks)
        self._networks = networks
        self.to(model.backbone.device)

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the posterior of one module's E at every token."""
        # `forward` instead of a call, which would enter Pyro's module context: see `bara_pyro.core.adapter`.
        mean, raw = self._networks[name].forward(self.input).chunk(2, dim=-1)
        return Normal(mean, raw.sigmoid().square() + SIGMA_MIN, validate_args=False).to_event(1)

    def local_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the networks."""
        return list(self.parameters())
