"""Point posteriors: MAP gates (NonLoRA), or maximum likelihood for a program without latents."""

from pyro.distributions import Delta
from torch import Tensor

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("delta")
class DeltaGuide(AmortizedGuide):
    """Point mass at the mean.

    For a program without latents (LoRA) the guide has no parameters and the ELBO is the log-likelihood. For
    BaRA the "KL" of a point mass is `-log p(mean)`, so training gives the MAP estimate of the gates.
    """

    noisy = False
    stochastic = False

    def family(self, mean: Tensor, kappa: Tensor) -> Delta:
        """Return a point mass at `mean`; `kappa` is not used."""
        return Delta(mean, validate_args=False)
