"""Sample statements of programs: local latents that see their layer's input, weights of the KL, draws."""

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
"""Key of a sample statement's `infer` under which a guide is given the layer's input; see `local_sample`."""


SHARED = "shared"
"""The same for the draw of a global latent that the local one meets in the program."""


UNWEIGHTED = "unweighted"
"""The same for a latent whose KL has the weight 0; see `tempered`."""


def local_sample(site: str, prior: TorchDistribution, x: Tensor, shared: Tensor | None = None) -> Tensor:
    """Sample a local latent whose posterior may depend on what the layer is given.

    Args:
        site: its name.
        prior: its prior.
        x: the layer's input, `[draws x] B x T x width`.
        shared: the draw of a global latent of all modules, `[draws x 1 x] modules x r`; None: there is none.

    Examples:
        >>> import pyro
        >>> import torch
        >>> from pyro.distributions import Gamma

        >>> x, prior = torch.randn(2, 5, 16), Gamma(1.0, 1.0).expand([8]).to_event(1)
        >>> with pyro.plate("data", 2, dim=-2), pyro.plate("tokens", 5, dim=-1):
        ...     theta = local_sample("theta/layer", prior, x)  # from the prior: no guide is around it
        >>> theta.shape  # rows x tokens x r
        torch.Size([2, 5, 8])
    """
    given = {INPUT: x, SHARED: shared}
    return pyro.sample(site, prior, infer=cast(InferDict, given))  # keys of ours, which Pyro passes on


def tempered(beta: float) -> AbstractContextManager:
    """Weight the KL of the sites inside by `beta`: 1 is the exact ELBO, 0 removes the term."""
    if beta == 1:
        return nullcontext()
    return _Unweighted() if beta == 0 else poutine.scale(scale=beta)


class _Unweighted(MaskMessenger):
    """Masks what is inside, and marks it: joined to a mask of tokens this one is a tensor of False."""

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
    """Return the value of a global site with its draws where the program has them, left of its own plates.

    From `Predictive(parallel=True)` they may stand right beside the site's own dimensions, and would be taken
    for rows.

    Args:
        site: its name.
        value: `.. x own dimensions`.
        prior: of the site, whose batch and event shape these are.

    Returns:
        `draws x 1 .. x own dimensions`, or one value for all draws.

    Raises:
        ConfigError: it has another number of draws than are run.
    """
    own = prior.shape()
    left, draws = value.shape[: value.dim() - len(own)], draw_plate_shape()
    between = (1,) * (2 - len(prior.batch_shape))  # plates of rows and tokens
    if not left or (draws and len(left) == len(draws) + len(between)):
        return value
    if left.numel() == 1:
        return value.reshape(own)
    if left.numel() == torch.Size(draws).numel():
        return value.reshape(*draws, *between, *own)
    raise ConfigError(
        f"{site!r} is given {left.numel()} values, and the program runs {torch.Size(draws).numel()} draws: "
        "give one a draw, or use Predictive with parallel=False."
    )


def sample_per_module(site: str, entry: TorchDistribution, modules: int, r: int, beta: float) -> Tensor:
    """Sample an r-vector for every adapted module in one statement, its KL weighted by `beta`.

    Args:
        site: its name.
        entry: the prior of one entry.
        modules: how many there are.
        r: entries of a vector.
        beta: weight of the KL.

    Returns:
        `[draws x 1 x] modules x r`, see `by_module`.
    """
    prior = entry.expand([modules, r]).to_event(1)
    with pyro.plate("modules", modules, dim=-1), tempered(beta):
        return by_draw(site, pyro.sample(site, prior), prior)


def by_module(drawn: Tensor) -> Sequence[Tensor]:
    """Return what each module has of `[draws x 1 x] modules x r`: `[draws x 1 x] 1 x r`, for all tokens."""
    return drawn.unsqueeze(-2).unbind(-3)
