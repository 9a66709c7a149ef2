"""What is added to one frozen layer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.modules import Module
from bara_pyro.errors import BackboneError
from bara_pyro.lm.targets import Target
from bara_pyro.moved import old_names

LayerLatents: TypeAlias = Any
"""What a program's `global_latents` gives one adapter: a type of the program's own."""


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


__getattr__ = old_names(__name__)
