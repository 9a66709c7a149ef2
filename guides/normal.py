"""Independent Gaussian posteriors of LoRA weights."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.modules import Module, by_name, module_key
from bara_pyro.errors import ConfigError
from bara_pyro.models.gaussian_lora import GaussianLoRA

SCALE_MIN = 1e-12  # G may cross 0, where sigma = 0 has no density


class DeviationGuide(SiteGuide):
    """Base of the guides for `GaussianLoRA`: deviations have mean 0, flipout signs keep their prior.

    The means belong to the model (`lora_A`, `lora_B`). Subclasses define `distribution`.
    """

    model: GaussianLoRA
    program: ClassVar[type[GaussianLoRA] | None] = GaussianLoRA

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the distribution of a deviation; random signs keep their prior."""
        return self.distribution(name) if name in self.model.latents.global_sites else prior

    def distribution(self, name: str) -> TorchDistribution:
        """Return the posterior of a deviation, of event shape `rows x columns`."""
        raise NotImplementedError


class Scale(Module):
    """The unconstrained scales of one site."""

    def __init__(self, raw: Tensor, trainable: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(raw, requires_grad=trainable)


def scales(raw: dict[str, Tensor], *, trainable: bool = True) -> Mapping[str, Scale]:
    """Return one `Scale` per site."""
    return by_name({name: Scale(value, trainable) for name, value in raw.items()})


class NormalGuide(DeviationGuide):
    """`Normal(0, sigma)` for every deviation, `sigma = G^2` (BLoB, Wang et al., 2024) or `softplus(G)`.

    Args:
        model: the program.
        init_scale: with "square", G starts uniform on `[init_scale / sqrt(2), init_scale]` as in BLoB's code,
            so sigma starts in `[init_scale^2 / 2, init_scale^2]`. With "softplus" sigma starts in the same
            range.
        transform: "square" or "softplus", from G to sigma.

    Raises:
        ConfigError: an unknown transform, or a scale that is not positive.
    """

    def __init__(self, model: GaussianLoRA, *, init_scale: float = 0.05, transform: str = "square") -> None:
        super().__init__(model)
        if transform not in ("square", "softplus") or init_scale <= 0:
            raise ConfigError(
                f"transform={transform!r} must be 'square' or 'softplus', and init_scale={init_scale} must "
                "be positive."
            )
        self.transform = transform
        raw = {}
        for name, site in model.latents.global_sites.items():
            start = torch.empty(site.shape).uniform_(init_scale / 2**0.5, init_scale)
            if transform == "softplus":
                sigma = start.square()
                start = sigma + (-sigma).expm1().neg().log()  # log(exp(sigma) - 1), which does not overflow
            raw[name] = start
        self.sites = scales(raw)
        self.to(model.backbone.device)

    def distribution(self, name: str) -> TorchDistribution:
        """Return the posterior of a deviation."""
        raw: Tensor = self.sites[module_key(name)].scale
        sigma = raw.square() if self.transform == "square" else F.softplus(raw)
        sigma = sigma.clamp_min(SCALE_MIN)
        return Normal(torch.zeros_like(sigma), sigma, validate_args=False).to_event(2)
