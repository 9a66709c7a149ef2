"""What is added to one frozen layer, and what its author needs: local latents, weights of the KL, draws."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import TorchDistribution
from pyro.poutine.mask_messenger import MaskMessenger
from pyro.poutine.runtime import InferDict, Message, get_plates
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.modules import Module
from bara_pyro.errors import BackboneError, ConfigError
from bara_pyro.lm.targets import Target

LayerLatents: TypeAlias = Any
"""What a program's `global_latents` gives one adapter: a type of the program's own."""

INPUT = "input"
"""Key of a sample statement's `infer` under which a guide is given the layer's input; see `local_sample`."""

SHARED = "shared"
"""The same for the draw of a global latent that the local one meets in the program."""

UNWEIGHTED = "unweighted"
"""The same for a latent whose KL has the weight 0; see `tempered`."""


class Adapter(Module):
    """What is added to one frozen linear layer, by way of its r rank units. Subclasses define `shrink`.

    Args:
        target: the layer.
        r: rank.
        scaling: `lora_alpha / r`.
    """

    lora_B: Tensor  # of those that end in LoRA's up-projection, `out x r`
    # Where input and output of every forward are noted, under the layer's path (`tapped`).
    tap: dict[str, tuple[Tensor, Tensor]] | None = None
    home: torch.device | None = None  # where parameters and latents are; the layer may be on another GPU

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__()
        self.target = target
        self.r = r
        self.scaling = scaling

    def shrink(self, x: Tensor, latents: LayerLatents) -> Tensor:
        """Return what the rank units pass on, `... x r`; the layer's local latents are sampled here.

        Args:
            x: float32, `[draws x] B x T x in_features`, the layer's input.
            latents: what the program's `global_latents` returned for this layer.

        Returns:
            Float32, `[draws x] B x T x r`; 1 in place of dimensions that it does not depend on.
        """
        raise NotImplementedError

    def expand(self, units: Tensor, latents: LayerLatents, rows: Tensor | None = None) -> Tensor:
        """Return the change of the layer's output, `... x out_features`, by default `s B units`.

        Nothing is sampled: it may be called for some positions at a time.

        Args:
            units: what `shrink` returned, or some positions of it.
            latents: as of `shrink`.
            rows: output features to compute, for the answer head; all if None.
        """
        return F.linear(units, chosen_rows(self.lora_B, rows) * self.scaling)

    def change(self, x: Tensor, latents: LayerLatents, rows: Tensor | None = None) -> Tensor:
        """Return the change that an input makes, in float32, outside autocast, whatever its type."""
        x = x.to(device=self.home, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            # Methods, not __call__: inside a running program Pyro's context is already active, and outside
            # one (our SVI, prediction) parameters are read without a `pyro.param` statement each.
            out = self.expand(self.shrink(x, latents), latents, rows)
            if out.shape[:-1] != x.shape[:-1]:  # units that know neither row nor token
                out = out.expand(*x.shape[:-1], out.shape[-1])
        if self.tap is not None:
            self.tap[self.target.path] = (x.detach(), out)
        return out

    def units(self, x: Tensor, latents: LayerLatents) -> Tensor:
        """Run `shrink` alone as `change` does, for `output` to go on from, some positions at a time."""
        x = x.to(device=self.home, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return self.shrink(x, latents)

    def output(self, units: Tensor, latents: LayerLatents) -> Tensor:
        """Run `expand` alone; see `units`."""
        with torch.autocast(units.device.type, enabled=False):
            return self.expand(units, latents)

    def change_of(
        self,
        latents: LayerLatents,
        lead: tuple[int, ...] | None,
        layer: nn.Module,
        args: tuple[Tensor],
        output: Tensor,
    ) -> Tensor:
        """Return the change of a layer's output, of its shape and type.

        Args:
            latents: as of `shrink`.
            lead: what the first dimension of the layer's input unfolds to, `[draws x] B`; None: it is rows.
            layer: the layer, whose forward hook this is.
            args: what it was given.
            output: what it returned.

        Raises:
            BackboneError: the layer is not given rows of tokens, `B x T x in_features`, but single tokens, as
                a mixture's experts may be.
        """
        if args[0].dim() != 3:
            raise BackboneError(
                f"{self.target.path} is given {tuple(args[0].shape)} numbers, not rows of tokens: leave it "
                "out of target_modules."
            )
        x = args[0] if lead is None else args[0].reshape(*lead, *args[0].shape[1:])
        return self.change(x, latents).reshape(output.shape).to(output)


def chosen_rows(weight: Tensor, rows: Tensor | None) -> Tensor:
    """Return the rows of a weight, `... out x in`, that an adapter is asked to compute; all if None."""
    return weight if rows is None else weight[..., rows, :]


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
        >>> from bara_pyro.core.adapter import local_sample
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


@contextmanager
def tapped(adapters: Iterable[Adapter]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Note what adapters see and give while the block runs: path -> input and output of the last forward.

    Inputs are float32, `[draws x] B x T x in_features` (T = 1 at the answer head), and carry no gradient.
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    adapters = tuple(adapters)
    try:
        for adapter in adapters:
            adapter.tap = seen
        yield seen
    finally:
        for adapter in adapters:
            adapter.tap = None
