"""Sample statements for programs: latents that pass the layer's input to the guide, KL weights, draws."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.runtime import InferDict, Message, get_plates
from torch import Tensor

from bara_pyro.errors import ConfigError

INPUT = "input"
"""Key in a sample statement's `infer` for the layer's input, which the guide reads; see `local_sample`."""


SHARED = "shared"
"""Key in `infer` for the draw of the global latent that accompanies a local one."""


UNWEIGHTED = "unweighted"
"""Key in `infer` that marks a latent whose KL has weight 0; see `tempered`."""


def local_sample(site: str, prior: TorchDistribution, x: Tensor, shared: Tensor | None = None) -> Tensor:
    """Sample a local latent whose posterior may depend on the layer's input.

    Args:
        site: name of the site.
        prior: its prior.
        x: the layer's input, `[draws x] B x T x width`.
        shared: draw of a global latent of all modules, `[draws x 1 x] modules x r`, or None.

    Returns:
        The value, with one entry per row and token.

    Examples:
        >>> import pyro
        >>> import torch
        >>> from pyro.distributions import Gamma

        >>> x, prior = torch.randn(2, 5, 16), Gamma(1.0, 1.0).expand([8]).to_event(1)
        >>> with pyro.plate("data", 2, dim=-2), pyro.plate("tokens", 5, dim=-1):
        ...     theta = local_sample("theta/layer", prior, x)  # drawn from the prior: no guide is active
        >>> theta.shape  # rows x tokens x r
        torch.Size([2, 5, 8])
    """
    infer = {INPUT: x, SHARED: shared}
    return pyro.sample(site, prior, infer=cast(InferDict, infer))  # Pyro passes our own keys on


def tempered(beta: float) -> AbstractContextManager:
    """Return a context that weights its sites' KL by `beta`: 1 is the exact ELBO, 0 removes the term."""
    if beta == 1:
        return nullcontext()
    return _Unweighted() if beta == 0 else poutine.scale(scale=beta)


class _Unweighted(MaskMessenger):
    """Masks and marks the sites inside; combined with a token mask, the mask alone would be a tensor."""

    def __init__(self) -> None:
        super().__init__(mask=False)

    def _process_message(self, msg: Message) -> None:
        super()._process_message(msg)
        if msg["type"] == "sample":
            cast(dict[str, object], msg["infer"])[UNWEIGHTED] = True


def draw_plate_shape() -> tuple[int, ...]:
    """Return the shape of the vectorised plates outside the program (dimensions left of -2).

    `Predictive(parallel=True)`, vectorised ELBO particles and `prediction.predict` all put a plate there.
    """
    sizes = {f.dim: f.size for f in get_plates() if f.dim is not None and f.dim < -2}
    return tuple(sizes.get(dim, 1) for dim in range(min(sizes, default=-2), -2))


def by_draw(site: str, value: Tensor, prior: TorchDistribution) -> Tensor:
    """Return the value of a global site with its draw dimensions left of the program's plates.

    `Predictive(parallel=True)` may put the draws next to the site's own dimensions, where the program would
    read them as rows.

    Args:
        site: name of the site.
        value: value of the site, `.. x own dimensions`.
        prior: prior of the site; its batch and event shape are the site's own dimensions.

    Returns:
        `draws x 1 .. x own dimensions`, or one value for all draws.

    Raises:
        ConfigError: the value has another number of draws than the program runs.
    """
    shape = prior.shape()
    left, draws = value.shape[: value.dim() - len(shape)], draw_plate_shape()
    between = (1,) * (2 - len(prior.batch_shape))  # plates of rows and tokens
    if not left or (draws and len(left) == len(draws) + len(between)):
        return value
    if left.numel() == 1:
        return value.reshape(shape)
    if left.numel() == torch.Size(draws).numel():
        return value.reshape(*draws, *between, *shape)
    raise ConfigError(
        f"{site!r} has {left.numel()} values, but the program runs {torch.Size(draws).numel()} draws: give "
        "one value per draw, or use Predictive with parallel=False."
    )


def sample_per_module(site: str, entry: TorchDistribution, modules: int, r: int, beta: float) -> Tensor:
    """Sample one r-vector per adapted module in one statement, with its KL weighted by `beta`.

    Args:
        site: name of the site.
        entry: prior of one entry.
        modules: number of modules.
        r: number of entries per vector.
        beta: weight of the KL.

    Returns:
        `[draws x 1 x] modules x r`, see `by_module`.
    """
    prior = entry.expand([modules, r]).to_event(1)
    with pyro.plate("modules", modules, dim=-1), tempered(beta):
        return by_draw(site, pyro.sample(site, prior), prior)


def by_module(drawn: Tensor) -> Sequence[Tensor]:
    """Split `[draws x 1 x] modules x r` into one `[draws x 1 x] 1 x r` per module, for all tokens."""
    return drawn.unsqueeze(-2).unbind(-3)
