"""Point posteriors: maximum likelihood where there is no latent, MAP gates (NonLoRA) where there is one."""

from pyro.distributions import Delta
from torch import Tensor

from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.families import register_guide


@register_guide("delta")
class DeltaGuide(AmortizedGuide):
    """All mass on the mean.

    For a program without latents (LoRA) it has no parameters and the ELBO is the log-likelihood. For BaRA the
    "KL" of a point mass is `-log p(mean)`: training gives the MAP estimate of the gates.
    """

    noisy = False
    stochastic = False

    def family(self, mean: Tensor, kappa: Tensor) -> Delta:
        """Return a point mass at `mean`; the noise level is not used."""
        return Delta(mean)
