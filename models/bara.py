r"""BaRA (arXiv 2606.29184): a sparse Bayesian gate in place of LoRA's fixed rank.

Phi    ~ p_Phi      one r-vector a module: what can be adapted
theta  ~ p_theta    one r-vector a module, row and token: how much of it this token uses
y = W0 x + s B (Phi * theta)                additive form (Eq. 13 of the paper, Algorithm 1)
y = W0 x + s B ((Phi * theta) * (A x))      gate form (Definition 1 of the paper)
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, get_args

import pyro
from pyro.distributions import Distribution
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.priors import make_prior
from bara_pyro.core.program import AdaptedLM, Adapter, Latents, chosen_rows, tempered
from bara_pyro.core.targets import Target
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.models.lora import down_projection, up_projection

Form = Literal["additive", "gate"]
Latent = Literal["phi*theta", "phi", "theta"]
PHI = "phi"


def theta_site(path: str) -> str:
    """Return the site name of the local gate of the module at `path`."""
    return f"theta/{path}"


class BaRAAdapter(Adapter):
    """The change of one layer; samples its `theta` where the decomposition has one."""

    def __init__(self, target: Target, r: int, scaling: float, form: Form, latent: Latent) -> None:
        super().__init__(target, r, scaling)
        self.site = theta_site(target.path)
        self.latent = latent
        if form == "gate":
            self.lora_A = down_projection(r, target.in_features)
        self.form = form
        self.lora_B = up_projection(r, target.out_features)

    def forward(
        self,
        x: Tensor,
        latents: tuple[Sequence[Tensor] | None, Distribution, float],
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the change of the layer's output; see `Adapter.forward`.

        Args:
            x: `[draws x] B x T x in_features`.
            latents: `phi` by module (each `[draws x 1 x] 1 x r`; None for "theta"), theta's prior, its KL
                weight.
            rows: output features to compute.
        """
        phi, prior, beta = latents
        parts = []
        if phi is not None:
            own = phi[self.target.index]
            parts.append(own if own.shape[-1] == self.r else own[..., : self.r])
        if self.latent != "phi":
            with tempered(beta):
                fn = prior.expand([*x.shape[:-1], self.r]).to_event(1)
                parts.append(pyro.sample(self.site, fn, infer={"input": x}))
        if self.form == "gate":
            parts.append(F.linear(x, self.lora_A))
        change = parts[0]
        for part in parts[1:]:
            change = change * part
        up = chosen_rows(self.lora_B, rows)
        out = F.linear(change, up * self.scaling)
        # Phi alone in the additive form knows neither row nor token: give it the layer's shape.
        return out.expand(*x.shape[:-1], out.shape[-1])


class BaRA(AdaptedLM):
    """The BaRA program.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        form: "additive" or "gate".
        latent: "phi*theta" (the paper), "phi" or "theta" (the ablations of its Table on decomposition).
        phi_prior, theta_prior: name of a prior and its hyper-parameters, for example
            `{"name": "gamma", "concentration": 1.0, "rate": 1.0}` (the paper's).
        beta_phi, beta_theta: weights of the KL terms; both 1 is the exact ELBO.

    Raises:
        ConfigError: unknown form, latent or prior, or a negative weight.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        form: Form = "additive",
        latent: Latent = "phi*theta",
        phi_prior: dict | None = None,
        theta_prior: dict | None = None,
        beta_phi: float = 1.0,
        beta_theta: float = 1.0,
        **adapter: object,
    ) -> None:
        if form not in get_args(Form):
            raise ConfigError(unknown("form", form, get_args(Form)))
        if latent not in get_args(Latent):
            raise ConfigError(unknown("latent", latent, get_args(Latent)))
        if beta_phi < 0 or beta_theta < 0:
            raise ConfigError(f"beta_phi={beta_phi} and beta_theta={beta_theta} must not be negative.")
        # Before the base class builds the adapters, which depend on them.
        self.form: Form = form
        self.latent: Latent = latent
        super().__init__(backbone, num_data, **adapter)  # type: ignore[arg-type]
        self.phi_prior = make_prior(**(phi_prior or {"name": "gamma"}), device=backbone.device)
        self.theta_prior = make_prior(**(theta_prior or {"name": "gamma"}), device=backbone.device)
        self.beta_phi = beta_phi
        self.beta_theta = beta_theta

    def make_adapter(self, target: Target, r: int, scaling: float) -> BaRAAdapter:
        """Return a BaRA adapter."""
        return BaRAAdapter(target, r, scaling, self.form, self.latent)

    @cached_property
    def latents(self) -> Latents:
        """`phi`, `modules x r`, and one `theta/<path>` a module."""
        with_phi, with_theta = self.latent != "theta", self.latent != "phi"
        return Latents(
            global_sites={PHI: (len(self.targets), self.r)} if with_phi else {},
            local_sites={theta_site(t.path): t.in_features for t in self.targets} if with_theta else {},
            r=self.r,
            modulating=self.form == "gate",
            ranks={theta_site(path): rank for path, rank in self.rank_pattern.items()} if with_theta else {},
        )

    def global_latents(self) -> tuple[Sequence[Tensor] | None, Distribution, float]:
        """Sample `phi`; make theta's prior once for all layers."""
        by_module = None
        if self.latent != "theta":
            by_module = self.one_per_module(PHI, self.phi_prior, self.beta_phi)
        return by_module, self.theta_prior, self.beta_theta
