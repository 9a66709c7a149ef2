"""Descriptions of a program's latent sites, for guides, and of its gates, for diagnostics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


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
        r: number of units per gate; a pruned module uses the first of them.
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

        Dimensions on which the gate does not depend are 1, as are the draws of a posterior mean.

        Args:
            values: site -> value.
            path: path of the module.
        """
        phi = self.global_gates(values)
        global_gate = None if phi is None else phi[:, self.modules.index(path), None, None]
        if path not in self.theta:
            return torch.as_tensor(global_gate)
        theta = values[self.theta[path]]
        theta = theta.reshape(-1, *theta.shape[-3:])
        theta = theta - self.centre if self.centre else theta
        return theta if global_gate is None else global_gate * theta
