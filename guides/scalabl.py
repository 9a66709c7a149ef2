"""ScalaBL's posterior of the singular values, with KL(q || p) or the reversed KL of the public code."""

import torch
import torch.distributions as td
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn
from torch.distributions import kl_divergence, register_kl

from bara_pyro.core.guide import SiteGuide
from bara_pyro.errors import ConfigError
from bara_pyro.models.scalabl import ScalaBL


class ReversedNormal(Normal):
    """Normal posterior whose registered divergence from a normal prior is KL(prior || posterior), in nats.

    The public ScalaBL code minimises this divergence. It does not give a bound on the evidence. For the prior
    Normal(0, 1), KL(q || p) has slope `sigma^2 - 1` in `log sigma`; this divergence has slope
    `1 - (1 + mean^2) / sigma^2`, which is hundreds of times steeper at the usual initial values and drives
    sigma to `sqrt(1 + mean^2)`.
    """


# Registered for torch's Normal, the parent of Pyro's: otherwise torch's rule for KL(q || p) would be used.
@register_kl(ReversedNormal, td.Normal)
def kl_reversed(q: ReversedNormal, p: td.Normal) -> Tensor:
    """Return KL(p || q) in nats, of the batch shape."""
    return kl_divergence(p, Normal(q.loc, q.scale, validate_args=False))


class ScalaBLGuide(SiteGuide):
    """`Normal(exp(log_s), exp(log_sigma))` for every singular value: means are positive, draws need not be.

    Args:
        model: the program.
        init_scale: sigma starts uniform on `[init_scale / sqrt(2), init_scale]`; the means start at the
            singular values of LoRA's initial A.
        kl: "q||p", the KL of the ELBO, or "p||q", the reversed KL of the public code.

    Raises:
        ConfigError: `kl` is unknown, or `init_scale` is not positive.
    """

    program = ScalaBL

    def __init__(self, model: ScalaBL, *, init_scale: float = 0.05, kl: str = "q||p") -> None:
        super().__init__(model)
        if kl not in ("q||p", "p||q") or init_scale <= 0:
            raise ConfigError(f"kl={kl!r} must be 'q||p' or 'p||q', init_scale={init_scale} positive.")
        self.family = Normal if kl == "q||p" else ReversedNormal
        start = torch.stack([adapter.singular_values for adapter in model.adapters.values()])
        self.log_s = nn.Parameter(start.log())
        self.log_sigma = nn.Parameter(torch.empty_like(start).uniform_(init_scale / 2**0.5, init_scale).log())
        self.to(model.backbone.device)

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the posterior of all modules' singular values: batch shape `modules`, event shape `r`."""
        return self.family(self.log_s.exp(), self.log_sigma.exp(), validate_args=False).to_event(1)
