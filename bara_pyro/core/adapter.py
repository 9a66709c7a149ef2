"""Base class of adapters: the trainable update that is added to the output of one frozen layer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.modules import Module
from bara_pyro.errors import BackboneError
from bara_pyro.lm.targets import Target

LayerLatents: TypeAlias = Any
"""Latents that a program's `global_latents` passes to one adapter; each program defines the type."""


class Adapter(Module):
    """Low-rank update of one frozen linear layer, computed from r rank units. Subclasses define `shrink`.

    Args:
        target: the adapted layer.
        r: rank.
        scaling: `lora_alpha / r`.
    """

    lora_B: Tensor  # LoRA's up-projection, `out x r`, in adapters that have one
    # If set, receives input and output of every forward under the layer's path (see `tapped`).
    tap: dict[str, tuple[Tensor, Tensor]] | None = None
    home: torch.device | None = None  # device of parameters and latents; the layer may be on another GPU

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__()
        self.target = target
        self.r = r
        self.scaling = scaling

    def shrink(self, x: Tensor, latents: LayerLatents) -> Tensor:
        """Return the values of the rank units; sample the layer's local latents, if it has any.

        Args:
            x: the layer's input, float32, `[draws x] B x T x in_features`.
            latents: this layer's entry of the program's `global_latents`.

        Returns:
            Float32, `[draws x] B x T x r`; a dimension on which the values do not depend may be 1.
        """
        raise NotImplementedError

    def expand(self, units: Tensor, latents: LayerLatents, rows: Tensor | None = None) -> Tensor:
        """Return the update of the layer's output, `... x out_features`, by default `s B units`.

        It must not sample, because it may be called for a few positions at a time.

        Args:
            units: the result of `shrink`, or some positions of it.
            latents: as in `shrink`.
            rows: output features to compute, for the answer head; all if None.
        """
        return F.linear(units, chosen_rows(self.lora_B, rows) * self.scaling)

    def change(self, x: Tensor, latents: LayerLatents, rows: Tensor | None = None) -> Tensor:
        """Return the update for an input of any dtype, computed in float32 outside autocast."""
        x = x.to(device=self.home, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            # Methods instead of calls: inside a running program Pyro's module context is already active, and
            # outside one (our SVI, prediction) this reads parameters without `pyro.param` statements.
            out = self.expand(self.shrink(x, latents), latents, rows)
            if out.shape[:-1] != x.shape[:-1]:  # the units do not depend on row or token
                out = out.expand(*x.shape[:-1], out.shape[-1])
        if self.tap is not None:
            self.tap[self.target.path] = (x.detach(), out)
        return out

    def units(self, x: Tensor, latents: LayerLatents) -> Tensor:
        """Run only the first half of `change`; `output` continues from it, for some positions at a time."""
        x = x.to(device=self.home, dtype=torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            return self.shrink(x, latents)

    def output(self, units: Tensor, latents: LayerLatents) -> Tensor:
        """Run only the second half of `change`; see `units`."""
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
        """Return the update in the shape and dtype of the layer's output; called from a forward hook.

        Args:
            latents: as in `shrink`.
            lead: shape `[draws x] B` into which the first dimension of the layer's input is unfolded; None if
                that dimension is the rows.
            layer: the layer.
            args: the layer's arguments.
            output: the layer's output.

        Raises:
            BackboneError: the layer's input is not `B x T x in_features`. Experts of a mixture, for example,
                may receive single tokens.
        """
        if args[0].dim() != 3:
            raise BackboneError(
                f"{self.target.path} receives an input of shape {tuple(args[0].shape)}, not rows x tokens x "
                "features: leave it out of target_modules."
            )
        x = args[0] if lead is None else args[0].reshape(*lead, *args[0].shape[1:])
        return self.change(x, latents).reshape(output.shape).to(output)


def chosen_rows(weight: Tensor, rows: Tensor | None) -> Tensor:
    """Return the given rows of a weight, `... out x in`; all rows if None."""
    return weight if rows is None else weight[..., rows, :]


@contextmanager
def tapped(adapters: Iterable[Adapter]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record inputs and outputs of adapters while the block runs.

    Yields:
        Module path -> input and output of the last forward. Inputs are float32, `[draws x] B x T x
        in_features` (T = 1 at the answer head), without gradient.
    """
    recorded: dict[str, tuple[Tensor, Tensor]] = {}
    adapters = tuple(adapters)
    try:
        for adapter in adapters:
            adapter.tap = recorded
        yield recorded
    finally:
        for adapter in adapters:
            adapter.tap = None
