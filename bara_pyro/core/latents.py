"""Latent sites of a program: their descriptions, those of its gates, and the statements that sample them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass(frozen=True)
class Site:
    """Description of one sample statement.

    Attributes:
        family: kind of the site ("phi", "theta"); logs sum over the sites of a family.
        shape: for a global site the shape of its value, batch and event shape together; for a local site its
            event shape.
        path: module that the site belongs to; None for the whole program.
        local: whether there is one value per row and token, inside the plates "data" and "tokens".
        width: for a local site, width of the layer input that its guide sees.
    """

    family: str
    shape: tuple[int, ...] = ()
    path: str | None = None
    local: bool = False
    width: int = 0


@dataclass(frozen=True)
class Latents:
    """Latent sites of a program, from which a guide builds its posteriors.

    Attributes:
        r: the rank.
        sites: name -> latent site, in sampling order.
        auxiliary: name -> further observed site: an auxiliary likelihood or a factor.
        modulating: whether the local latents multiply another function of the layer's input (gate form), so
            that this function carries the input's size; otherwise the update consists of the latents only.
    """

    r: int
    sites: Mapping[str, Site] = field(default_factory=dict)
    auxiliary: Mapping[str, Site] = field(default_factory=dict)
    modulating: bool = False

    @cached_property
    def global_sites(self) -> dict[str, Site]:
        """Sites with one draw per forward pass."""
        return {name: site for name, site in self.sites.items() if not site.local}

    @cached_property
    def local_sites(self) -> dict[str, Site]:
        """Sites with one draw per row and token."""
        return {name: site for name, site in self.sites.items() if site.local}

    @cached_property
    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        """Event shapes of the local sites."""
        return {name: site.shape for name, site in self.local_sites.items()}

    def __bool__(self) -> bool:
        """Whether the program has latent sites; LoRA has none."""
        return bool(self.sites)


@dataclass(frozen=True)
class Gates:
    """Gates of a program: non-negative r-vectors that multiply the rank units of a module.

    Attributes:
        modules: paths of the M modules, in the order of the targets.
        r: number of units per gate; a module of smaller rank uses the first of them.
        phi: site of the global gates, with value `[draws x 1 x] M x r`; None without global gates.
        theta: path -> site of the local gate, `[draws x] B x T x r`; empty without local gates.
        modulating: whether the gates multiply `A x` (gate form); in the additive form they are B's input.
        centre: value subtracted from theta before use (additive form, centred); else 0.
    """

    modules: tuple[str, ...]
    r: int
    phi: str | None
    theta: Mapping[str, str]
    modulating: bool
    centre: float = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of "phi" and "theta" that the program has."""
        return (*(["phi"] if self.phi else []), *(["theta"] if self.theta else []))

    def global_gates(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """Return the draws of Phi from the sites' values, `draws x M x r`; None without global gates."""
        return None if self.phi is None else values[self.phi].reshape(-1, len(self.modules), self.r)

    def of(self, values: Mapping[str, Tensor], path: str) -> Tensor:
        """Return a module's effective gate, the product of its parts: `draws x B x T x r`.

        Dimensions on which the gate does not depend are 1, as are the draws of a posterior mean. `values` is
        site -> value.
        """
        phi = self.global_gates(values)
        global_gate = None if phi is None else phi[:, self.modules.index(path), None, None]
        if path not in self.theta:
            return torch.as_tensor(global_gate)
        theta = values[self.theta[path]]
        theta = theta.reshape(-1, *theta.shape[-3:])
        theta = theta - self.centre if self.centre else theta
        return theta if global_gate is None else global_gate * theta


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

    `Predictive(parallel=True)` may put the draws next to the site's own dimensions, those of its prior, where
    the program would read them as rows. The result is `draws x 1 .. x own dimensions`, or one value for all
    draws. Another number of draws than the program runs raises a `ConfigError`.
    """
    shape = prior.shape()
    value = value.expand(torch.broadcast_shapes(value.shape, shape))  # as its density broadcasts it
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


def expand_prior(entry: TorchDistribution, shape: tuple[int, ...], modules: int = 1) -> TorchDistribution:
    """Return the prior of r-vectors from the prior of one entry.

    Args:
        entry: its batch shape may have dimensions for draws, modules and r: `[draws x 1 x] modules x r`.
        shape: the site's dimensions, r last.
        modules: number of modules in `shape`; 1 for a site of one module.

    Raises:
        ConfigError: the prior has another batch shape. Where it broadcasts, each row would silently get the
            hyperparameter of another draw.
    """
    got, wanted = tuple(entry.batch_shape), (*draw_plate_shape(), 1, modules, shape[-1])
    pairs = zip(reversed(got), reversed(wanted), strict=False)
    if len(got) > len(wanted) or any(size not in (1, most) for size, most in pairs):
        raise ConfigError(
            f"The batch shape {got} of the prior does not broadcast to {wanted}, [draws x 1 x] modules x r: "
            "if a sampled hyperparameter lacks the dimension of r, add it with .unsqueeze(-1)."
        )
    return entry.expand(torch.broadcast_shapes(got, shape)).to_event(1)


def sample_per_module(site: str, entry: TorchDistribution, modules: int, r: int, beta: float) -> Tensor:
    """Sample one r-vector per adapted module in one statement, with its KL weighted by `beta`.

    `entry` is the prior of one entry, see `expand_prior`. The result is `[draws x 1 x] modules x r`, see
    `by_module`.
    """
    prior = expand_prior(entry, (modules, r), modules)
    with pyro.plate("modules", modules, dim=-1), tempered(beta):
        return by_draw(site, pyro.sample(site, prior), prior)


def sample_per_token(
    site: str, entry: TorchDistribution, x: Tensor, r: int, beta: float, shared: Tensor | None = None
) -> Tensor:
    """Sample one r-vector per row and token of one module, with its KL weighted by `beta`.

    `entry` is the prior of one entry, see `expand_prior`; `x` and `shared` are those of `local_sample`. The
    result is `[draws x] B x T x r`.
    """
    with tempered(beta):
        return local_sample(site, expand_prior(entry, (*x.shape[:-1], r)), x, shared)


def by_module(drawn: Tensor) -> Sequence[Tensor]:
    """Split `[draws x 1 x] modules x r` into one `[draws x 1 x] 1 x r` per module, for all tokens."""
    return drawn.unsqueeze(-2).unbind(-3)
