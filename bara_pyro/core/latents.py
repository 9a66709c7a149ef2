"""What a program says about itself: its latent sites, for guides, and its gates, for diagnostics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Site:
    """One sample statement of a program.

    Attributes:
        family: what sites of one kind share ("phi", "theta"): under it the log adds them up.
        shape: of the value of a global site, batch shape and event shape together; of a local site's event.
        path: the module that it belongs to; None: the whole program.
        local: whether every row and token has one of its own, inside the plates "data" and "tokens".
        width: of the layer input that the guide of a local site sees.
    """

    family: str
    shape: tuple[int, ...] = ()
    path: str | None = None
    local: bool = False
    width: int = 0


@dataclass(frozen=True)
class Latents:
    """The latent sites of a program, for a guide to build its posteriors from.

    Attributes:
        r: the rank.
        sites: name -> latent site, in the order in which they are sampled.
        auxiliary: name -> site that is observed beside the likelihood: an auxiliary likelihood, a factor.
        modulating: whether the local latents multiply another function of the layer's input, which then
            carries its size, rather than being all that is added to the layer.
    """

    r: int
    sites: Mapping[str, Site] = field(default_factory=dict)
    auxiliary: Mapping[str, Site] = field(default_factory=dict)
    modulating: bool = False

    @cached_property
    def global_sites(self) -> dict[str, Site]:
        """Those with one draw a forward."""
        return {name: site for name, site in self.sites.items() if not site.local}

    @cached_property
    def local_sites(self) -> dict[str, Site]:
        """Those with a draw a row and token."""
        return {name: site for name, site in self.sites.items() if site.local}

    @cached_property
    def local_shapes(self) -> dict[str, tuple[int, ...]]:
        """The event shapes of those."""
        return {name: site.shape for name, site in self.local_sites.items()}

    def __bool__(self) -> bool:
        """Whether there is any: LoRA has none."""
        return bool(self.sites)


@dataclass(frozen=True)
class Gates:
    """The gates of a program: non-negative r-vectors that multiply the rank units of a module.

    Attributes:
        modules: paths of the M modules, in the order of the targets.
        r: units of a gate; a pruned module uses the first of them.
        phi: site of the global gates, whose value is `[draws x 1 x] M x r`; None where there are none.
        theta: path -> site of the local gate, `[draws x] B x T x r`; empty where there are none.
        modulating: whether the gates multiply `A x` (gate form) rather than being what B is given.
        centre: what is taken from theta before it acts (additive form, centred); else 0.
    """

    modules: tuple[str, ...]
    r: int
    phi: str | None
    theta: Mapping[str, str]
    modulating: bool
    centre: float = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of "phi" and "theta" there are."""
        return (*(["phi"] if self.phi else []), *(["theta"] if self.theta else []))

    def global_gates(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """Return the draws of Phi among sites' values, `draws x M x r`; None where there are none."""
        return None if self.phi is None else values[self.phi].reshape(-1, len(self.modules), self.r)

    def of(self, values: Mapping[str, Tensor], path: str) -> Tensor:
        """Return a module's gate as it acts, the product of what there is of it: `draws x B x T x r`.

        A dimension that no part has is 1; so are the draws of a posterior mean.
        """
        phi = self.global_gates(values)
        own = None if phi is None else phi[:, self.modules.index(path), None, None]
        if path not in self.theta:
            return torch.as_tensor(own)
        theta = values[self.theta[path]]
        theta = theta.reshape(-1, *theta.shape[-3:])
        theta = theta - self.centre if self.centre else theta
        return theta if own is None else own * theta
