r"""A deep ensemble of LoRAs (Lakshminarayanan et al., NeurIPS 2017), a baseline of BLoB and ScalaBL.

m ~ Uniform{1 .. M}                  one for all rows
y = W0 x + s B_m A_m x

The index m is the only latent variable, and its posterior is fixed to the prior: every member is trained on
all the data, the KL is 0, and the bound is the mean of the members' log-likelihoods. The plate "members"
enumerates m exactly, so the program has no site for it: one forward pass runs all members, with a site `y` of
shape `M x B`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Unpack

import pyro
import torch
from pyro import poutine
from torch import Tensor, nn

from bara_pyro.core.adapter import Adapter, chosen_rows
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.models.lora import down_projection


class EnsembleAdapter(Adapter):
    """Update of one layer in every member: `lora_A`, `M x r x in`, and `lora_B`, `M x out x r`.

    `latents` is None to run every member on all rows, or holds one member index per row, long, `B`.
    """

    def __init__(self, target: Target, r: int, scaling: float, members: int) -> None:
        super().__init__(target, r, scaling)
        self.lora_A = nn.Parameter(torch.empty(members, r, target.in_features))
        self.lora_B = nn.Parameter(torch.zeros(members, target.out_features, r))

    def shrink(self, x: Tensor, latents: Tensor | None) -> Tensor:
        """Return `A_m x` for x of shape `[draws x] M x B x T x in_features` or `B x 1 x T x in_features`."""
        return _by_member(x, _of(self.lora_A, latents).mT)

    def expand(self, units: Tensor, latents: Tensor | None, rows: Tensor | None = None) -> Tensor:
        """Return `s B_m units`."""
        return _by_member(units, _of(chosen_rows(self.lora_B, rows), latents).mT * self.scaling)


def _of(weights: Tensor, members: Tensor | None) -> Tensor:
    """Return the weights of the given members; those of all members if None."""
    return weights if members is None else weights[members]


def _by_member(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply x, `.. x M x B x T x in`, by one weight per member, `M x in x out`: one product per member."""
    return (x.flatten(-3, -2) @ weights).unflatten(-2, x.shape[-3:-1])


class Ensemble(AdaptedLM):
    """M independent LoRAs in one Pyro model.

    A forward pass runs M times the rows of the batch and needs M times the memory; `train.accumulate` splits
    a step into smaller pieces.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        members: number M of members. Initial values are drawn member by member, so member m is the same in
            every larger ensemble of the same seed, and the first member equals the LoRA of that seed.

    Raises:
        ConfigError: `members` is below 1.
    """

    adapters: Mapping[str, EnsembleAdapter]

    def __init__(
        self, backbone: Backbone, num_data: int, *, members: int = 3, **adapter: Unpack[AdapterOptions]
    ) -> None:
        if members < 1:
            raise ConfigError(f"members={members} must be at least 1.")
        super().__init__(backbone, num_data, partial(EnsembleAdapter, members=members), **adapter)
        self.members = members
        with torch.no_grad():
            for member in range(members):
                for a in self.adapters.values():
                    a.lora_A[member].copy_(down_projection(self.r, a.target.in_features))

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Run every member: a forward pass returns log-probabilities of answers, `[draws x] M x B x C`."""
        # Scaled by each member's probability, so that the likelihood term is the mean over the members.
        with poutine.scale(scale=1 / self.members), pyro.plate("members", self.members, dim=-3):
            yield
