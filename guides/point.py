"""A point mass at the mean weights: MAP estimation of LoRA."""

import torch
from pyro.distributions import Delta, TorchDistribution

from bara_pyro.guides.normal import DeviationGuide


class PointGuide(DeviationGuide):
    """Point mass at deviation 0, the mean weights.

    The "KL" is `-log p(lora_A, lora_B)`, so the ELBO is the log joint density and training gives the MAP
    estimate.
    """

    stochastic = False

    def distribution(self, name: str) -> TorchDistribution:
        """Return the point mass at 0."""
        size = self.model.latents.global_sites[name].shape
        zeros = torch.zeros(size, device=self.model.backbone.device)
        # Validation would read the value from the device, which a captured step cannot.
        return Delta(zeros, validate_args=False).to_event(2)
