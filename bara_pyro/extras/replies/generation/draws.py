"""Posterior draws for each row of a batch: global latents per reply, local latents per token."""

from collections.abc import Sequence

import pyro
from pyro.distributions import TorchDistribution
from torch import Tensor

from bara_pyro.core.adapter import LayerLatents
from bara_pyro.core.attached import Placed, latents_under
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.noise import CounterNoise
from bara_pyro.core.posterior import Addressed


class RowDraws(Placed, Addressed):
    """One draw per row, with the noise of `prediction.predict` for the same identifier and draw number.

    Draw n of an ensemble of M is its member n mod M.

    Args:
        guide: the fitted guide.
        seed: seed of the draws.
        ids: identifiers of the rows.
        numbers: long, `B`: draw numbers of local latents.
        shared: long, `B`: draw numbers of global latents.
        fresh_theta: whether to draw local latents; if False, they are at their mean given the global draw.
    """

    def __init__(
        self,
        guide: SiteGuide,
        seed: int,
        ids: Sequence[str],
        numbers: Tensor,
        shared: Tensor,
        *,
        fresh_theta: bool = True,
    ) -> None:
        sites = guide.model.latents.local_shapes
        Addressed.__init__(self, guide, CounterNoise.paired(seed, numbers, shared, ids, sites))
        self.fresh_theta = fresh_theta

    def see(self, positions: Tensor) -> None:
        """Set the positions of a forward pass's tokens, long, `B x T`."""
        self.addresses.move(positions.unsqueeze(1))

    def value(self, name: str, fn: TorchDistribution) -> Tensor:
        """Return the draws of a site, `B x 1 x ...`."""
        if not self.fresh_theta and name in self.guide.model.latents.local_sites:
            return fn.mean
        return super().value(name, fn)

    def latents(self) -> Sequence[LayerLatents]:
        """Return each adapter's global latents, one draw per row, or an ensemble's members."""
        model, numbers = self.guide.model, self.addresses.shared
        if model.members:
            return [numbers % model.members] * len(model.targets)
        with PROGRAM, pyro.plate("draws", len(self.addresses.draws), dim=-3):
            return latents_under(model, self)
