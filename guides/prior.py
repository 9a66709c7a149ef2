"""The posterior that is the prior: for noise that is part of the model and not inferred."""

from pyro.distributions import TorchDistribution

from bara_pyro.core.guide import SiteGuide


class PriorGuide(SiteGuide):
    """Every latent keeps its prior; no parameters.

    The KL is 0 and no site enters it, so that the ELBO is the expected log-likelihood under the noise.
    """

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the prior itself, by which the ELBO recognises that there is no KL."""
        return prior
