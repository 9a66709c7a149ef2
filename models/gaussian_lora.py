r"""LoRA with Gaussian weights: the program of MAP, BLoB, Laplace-LoRA, IVON-LoRA and TFB.

A ~ Normal(0, prior_scale), optionally B as well
y = W0 x + s B A x

Each weight is written as `lora_A + deviation`. The parameter `lora_A` is the posterior mean; the latent site
is the deviation, with prior Normal(-lora_A, prior_scale). This change of variable leaves the model the same.
Every guide is then centred at 0, and the saved `lora_A` and `lora_B` are the mean, an ordinary LoRA.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import NamedTuple, Unpack

import pyro
from pyro.distributions import Normal
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import chosen_rows
from bara_pyro.core.distributions import Signs
from bara_pyro.core.latents import Latents, Site, by_draw, tempered
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.models.lora import LowRankAdapter

SIGNS = "signs"


class Deviations(NamedTuple):
    """One module's deviations from the means, `[draws x 1 x 1 x] rows x columns`; None if not latent."""

    lora_A: Tensor | None
    lora_B: Tensor | None


class GaussianAdapter(LowRankAdapter):
    """Update of one layer under one draw of its weights.

    With `flipout` the deviation of A gets random signs for every token, `(t u^T) * deviation`. For a single
    token the distribution is unchanged, since a Gaussian is symmetric; gradients of different tokens are less
    correlated (Wen et al., 2018, Section 2).
    """

    def __init__(self, target: Target, r: int, scaling: float, flipout: bool) -> None:
        super().__init__(target, r, scaling)
        self.flipout = flipout

    def shrink(self, x: Tensor, latents: Deviations) -> Tensor:
        """Return `(A + dA) x`."""
        units = F.linear(x, self.lora_A)
        if latents.lora_A is not None:
            units = units + (self._flipped(x, latents.lora_A) if self.flipout else apply(x, latents.lora_A))
        return units

    def expand(self, units: Tensor, latents: Deviations, rows: Tensor | None = None) -> Tensor:
        """Return `s (B + dB) units`."""
        out = super().expand(units, latents, rows)
        if latents.lora_B is not None:
            out = out + apply(units, chosen_rows(latents.lora_B, rows) * self.scaling)
        return out

    def _flipped(self, x: Tensor, deviation: Tensor) -> Tensor:
        distribution = Signs([*x.shape[:-1], x.shape[-1] + self.r], x.device).to_event(1)
        signs = pyro.sample(self.target.site(SIGNS), distribution)
        before, after = signs.split((x.shape[-1], self.r), dim=-1)
        return after * apply(before * x, deviation)


def apply(x: Tensor, weight: Tensor) -> Tensor:
    """Return `weight x` for one weight (`out x in`) or one per draw (`draws x 1 x 1 x out x in`)."""
    if weight.dim() == 2:
        return F.linear(x, weight)
    flat = x.flatten(1, -2) @ weight.squeeze(-3).squeeze(-3).mT  # draws x (B T) x out
    return flat.unflatten(1, x.shape[1:-1])


class GaussianLoRA(AdaptedLM):
    """LoRA with Gaussian priors on its factors, as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        random: which factors are latent: "A", "B" or "AB".
        prior_scale: standard deviation of the prior.
        beta: weight of the KL; 1 is the exact ELBO, 0 a flat prior.
        flipout: random signs per token for the deviation of A; see `GaussianAdapter`.

    Raises:
        ConfigError: `random` is unknown, `prior_scale` is not positive, or `beta` is negative.
    """

    adapters: Mapping[str, GaussianAdapter]
    has_activations = True

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        random: str,
        prior_scale: float,
        beta: float = 1.0,
        flipout: bool = False,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        if random not in ("A", "B", "AB") or prior_scale <= 0 or beta < 0:
            raise ConfigError(
                f"random={random!r} must be 'A', 'B' or 'AB', prior_scale={prior_scale} must be positive and "
                f"beta={beta} must not be negative."
            )
        flipout = flipout and "A" in random
        super().__init__(backbone, num_data, partial(GaussianAdapter, flipout=flipout), **adapter)
        self.weights = tuple(f"lora_{letter}" for letter in random)
        self.flipout = flipout
        self.prior_scale = prior_scale
        self.beta = beta

    @cached_property
    def latents(self) -> Latents:
        """The sites `lora_A/<path>`, `r x in`, and `lora_B/<path>`, `out x r`; flipout's signs are local."""
        sites = {}
        for a in self.adapters.values():
            for weight in self.weights:
                shape = tuple(getattr(a, weight).shape)
                sites[a.target.site(weight)] = Site(weight, shape, a.target.path)
        for a in self.adapters.values() if self.flipout else ():
            width = a.target.in_features
            sites[a.target.site(SIGNS)] = Site(SIGNS, (width + a.r,), a.target.path, local=True, width=width)
        return Latents(self.r, sites)

    def global_latents(self, batch: Batch) -> Sequence[Deviations]:
        """Sample the deviations of every module."""
        with tempered(self.beta):
            return [
                Deviations(*(self._draw(a, weight) for weight in Deviations._fields))
                for a in self.adapters.values()
            ]

    def _draw(self, adapter: GaussianAdapter, weight: str) -> Tensor | None:
        if weight not in self.weights:
            return None
        mean = getattr(adapter, weight)
        scale = mean.new_full((), self.prior_scale)  # filled on the device, which a captured step needs
        prior = Normal(-mean, scale, validate_args=False).to_event(2)
        site = adapter.target.site(weight)
        return by_draw(site, pyro.sample(site, prior), prior)


@contextmanager
def unflipped(model: AdaptedLM) -> Iterator[None]:
    """Switch flipout off while the block runs, so that all tokens see the same draw of the weights.

    The posterior of the weights stays the same. Programs without flipout are not changed.
    """
    if not (isinstance(model, GaussianLoRA) and model.flipout):
        yield
        return
    _flip(model, on=False)
    try:
        yield
    finally:
        _flip(model, on=True)


def _flip(model: GaussianLoRA, *, on: bool) -> None:
    model.flipout = on
    for adapter in model.adapters.values():
        adapter.flipout = on
    model.__dict__.pop("latents", None)
