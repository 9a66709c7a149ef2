"""Guide that keeps the prior, for noise that is part of the model and is not inferred."""

from pyro.distributions import TorchDistribution

from bara_pyro.core.guide import SiteGuide


class PriorGuide(SiteGuide):
    """Guide without parameters: every latent keeps its prior.

    The KL is 0, so the ELBO is the expected log-likelihood under the noise.
    """

    def get_posterior(self, name: str, prior: TorchDistribution) -> TorchDistribution:
        """Return the prior object itself; the ELBO recognises it and leaves the KL out."""
        return prior
