"""Distributions that have the batch shape of their plates already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pyro.distributions import Independent


class Whole(Independent):
    """``to_event`` of a distribution that is itself where it is expanded to the shape that it has.

    Each plate around a site expands the site's distribution, also where that changes nothing: 2 objects a
    plate and site, which in a step of a small model cost as much as the draws.
    """

    def expand(self, batch_shape: Sequence[int], _instance: Independent | None = None) -> Independent:
        """Return the distribution with the given batch shape; itself where it has it."""
        if _instance is None and torch.Size(batch_shape) == self.batch_shape:
            return self
        expanded: Independent = super().expand(torch.Size(batch_shape), _instance)
        return expanded
