"""Gaussian posteriors whose scales are set by a method (TFB, IVON) and not by gradients."""

import torch
from pyro.distributions import Normal, TorchDistribution
from torch import Tensor

from bara_pyro.core.modules import module_key, read
from bara_pyro.guides.normal import DeviationGuide, scales
from bara_pyro.models.posthoc import PosthocLoRA


class PosthocGuide(DeviationGuide):
    """`Normal(0, scale)` for every deviation, with frozen scales; nothing is random before `mark_fitted`.

    Args:
        model: the program.
        by_row: one scale per row of the weight (TFB) instead of one per entry (IVON).
    """

    model: PosthocLoRA
    program = PosthocLoRA

    def __init__(self, model: PosthocLoRA, *, by_row: bool = False) -> None:
        super().__init__(model)
        raw = {
            name: torch.zeros((site.shape[0], 1) if by_row else site.shape, device=model.backbone.device)
            for name, site in model.latents.global_sites.items()
        }
        self.sites = scales(raw, trainable=False)

    @property
    def stochastic(self) -> bool:
        """Whether the posterior has been fitted, so that draws differ."""
        return self.model.fitted

    @property
    def stochastic_once_fitted(self) -> bool:
        """True: after the fit weights are drawn."""
        return True

    def scale(self, site: str) -> Tensor:
        """Return the frozen scales of a deviation, `rows x columns` or `rows x 1`, to read or to fill."""
        return read(self.sites[module_key(site)], "scale")

    def distribution(self, name: str) -> TorchDistribution:
        """Return the posterior of a deviation."""
        # A scale of 0 has no density; it occurs for a weight on which no output depends.
        scale = self.scale(name).clamp_min(torch.finfo(torch.float32).tiny)
        scale = scale.expand(self.model.latents.global_sites[name].shape)
        return Normal(torch.zeros_like(scale), scale, validate_args=False).to_event(2)
