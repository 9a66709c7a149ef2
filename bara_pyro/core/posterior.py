"""Pyro handlers that set every latent of a program to a posterior draw or to the posterior mean."""

from collections.abc import Mapping

import torch
from pyro.distributions import Delta, Gamma, Independent, TorchDistribution
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from scipy.special import gammaincinv
from torch import Tensor

from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.likelihood import LIKELIHOOD
from bara_pyro.core.modules import distribution_of, family_name
from bara_pyro.core.noise import CounterNoise
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError


class Posterior(Messenger):
    """Draw every latent from a fitted guide without recording a trace, for prediction."""

    def __init__(self, guide: SiteGuide) -> None:
        super().__init__()
        self.guide = guide

    def _pyro_sample(self, msg: Message) -> None:
        self.guide._pyro_sample(msg)
        name = msg["name"]
        if name is None or msg["is_observed"]:
            return
        if name in self.guide.model.latents.sites:
            msg["value"] = self.value(name, distribution_of(msg))
            msg["done"] = True
        elif name == LIKELIHOOD:  # an answer, which nobody reads
            shape = distribution_of(msg).shape()
            msg["value"] = torch.zeros(shape, dtype=torch.long, device=self.guide.model.backbone.device)
            msg["done"] = True

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the value of a site, here a draw; subclasses override it."""
        return fn.rsample() if fn.has_rsample else fn.sample()


class PosteriorMean(Posterior):
    """Set every latent to its posterior mean: the paper's NonLoRA limit (Eq. 19), S = 0."""

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the mean of the site's posterior; a `ConfigError` if it has none."""
        try:
            return fn.mean
        except NotImplementedError as error:
            raise ConfigError(
                f"The posterior of {name!r}, a {family_name(fn)}, has no mean, which S = 0 needs: use draws "
                "(--samples 10), or define `mean` in its class."
            ) from error


class PosteriorMedian(Posterior):
    """Set every latent to its posterior median, and keep the posteriors in `found`."""

    def __init__(self, guide: SiteGuide) -> None:
        super().__init__(guide)
        self.found: dict[str, TorchDistribution] = {}

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the median of the site's posterior."""
        self.found[name] = fn
        return quantile(fn, 0.5)


def quantile(fn: TorchDistribution, level: float) -> Tensor:
    """Return the quantile of every entry of a distribution, of the shape of a draw.

    Raises:
        ConfigError: the level is not between 0 and 1, or the distribution has no quantile function.
    """
    if not 0 < level < 1:
        raise ConfigError(f"The quantile {level} must lie between 0 and 1.")
    while isinstance(fn, Independent):
        fn = fn.base_dist
    if isinstance(fn, Delta):
        return fn.v
    if isinstance(fn, Gamma):  # torch has no inverse of the incomplete gamma function
        standard = gammaincinv(fn.concentration.double().cpu().numpy(), level)
        return torch.as_tensor(standard, dtype=fn.rate.dtype, device=fn.rate.device) / fn.rate
    try:
        return fn.icdf(torch.full(fn.batch_shape, level, device=fn.mean.device))
    except NotImplementedError as error:
        raise ConfigError(
            f"A {family_name(fn)} has no quantile function: give its class an `icdf`, or use draws."
        ) from error


class Addressed(Posterior):
    """Posterior draws whose noise depends only on seed, site, draw, row and position of the forward pass."""

    def __init__(self, guide: SiteGuide, addresses: CounterNoise) -> None:
        super().__init__(guide)
        self.addresses = addresses
        self._drawn: dict[str, Tensor] = {}  # global latents: the tokens may be read in several passes

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the draws: `draws x 1 x (1 or modules) x event` or `draws x B x T x event`."""
        if name in self.guide.model.latents.local_sites:
            return self.addresses.draw_local(name, fn)
        if name not in self._drawn:
            # A global posterior does not have the dimension of the outer plate of draws yet. The plates of
            # rows and tokens lie between the draws and the site's own batch dimensions.
            drawn = self.addresses.draw_global(name, fn)
            missing = max(0, 2 - len(fn.batch_shape))
            self._drawn[name] = drawn.reshape(len(drawn), *(1,) * missing, *drawn.shape[1:])
        return self._drawn[name]


def addresses_of(
    batch: Batch,
    seed: int,
    draws: slice,
    repeats: int = 1,
    sites: Mapping[str, tuple[int, ...]] | None = None,
) -> CounterNoise:
    """Return the noise of a range of draws for a left-padded batch; see `CounterNoise` for `sites`."""
    device = batch.input_ids.device
    lengths = batch.attention_mask.sum(-1, keepdim=True)
    columns = torch.arange(batch.input_ids.shape[1], device=device)
    positions = lengths - len(columns) + columns
    numbers = torch.arange(draws.start, draws.stop, device=device)
    return CounterNoise(seed, numbers, batch.ids, positions, repeats, sites)
