r"""BaRA (arXiv 2606.29184): a sparse Bayesian gate in place of LoRA's fixed rank.

Phi    ~ p_Phi      one r-vector per module: which rank units are available
theta  ~ p_theta    one r-vector per module, row and token: how much this token uses each unit
y = W0 x + s B (Phi * theta)                additive form (Eq. 13 of the paper, Algorithm 1)
y = W0 x + s B (Phi * (theta - E[theta]))   additive form, centred (ours: `centred`)
y = W0 x + s B ((Phi * theta) * (A x))      gate form (Definition 1 of the paper)
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial, reduce
from operator import mul
from typing import Literal, NamedTuple, Unpack

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter
from bara_pyro.core.latents import Gates, Latents, Site, by_module, sample_per_module, sample_per_token
from bara_pyro.core.priors import Prior, centre_of, current_prior, given_prior
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError, check_choice
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.models.lora import down_projection

Form = Literal["additive", "gate"]
Latent = Literal["phi*theta", "phi", "theta"]
PHI, THETA = "phi", "theta"


class Gate(NamedTuple):
    """The parts of one layer's gate.

    Attributes:
        phi: this module's draw of Phi, `[draws x 1 x] 1 x r`; None for a program without Phi.
        prior: prior of one entry of theta; None for a program without theta.
        beta: weight of theta's KL.
        shared: draw of Phi for all modules, `[draws x 1 x] modules x r`, which the guide of theta may use.
    """

    phi: Tensor | None
    prior: TorchDistribution | None
    beta: float
    shared: Tensor | None


class BaRAAdapter(Adapter):
    """Update of one layer; samples the layer's `theta`, if the program has theta."""

    def __init__(self, target: Target, r: int, scaling: float, form: Form, centre: float = 0.0) -> None:
        super().__init__(target, r, scaling)
        if form == "gate":
            self.lora_A = down_projection(r, target.in_features)
        self.form = form
        self.centre = centre
        self.lora_B = nn.Parameter(torch.zeros(target.out_features, r, dtype=torch.float32))

    def shrink(self, x: Tensor, latents: Gate) -> Tensor:
        """Return the gate, in the gate form multiplied by `A x`."""
        phi, prior, beta, shared = latents
        parts = [] if phi is None else [phi[..., : self.r]]  # a lower rank uses the first gates
        if prior is not None:
            theta = sample_per_token(self.target.site(THETA), prior, x, self.r, beta, shared)
            parts.append(theta - self.centre if self.centre else theta)
        if self.form == "gate":
            parts.append(F.linear(x, self.lora_A))
        return reduce(mul, parts)


class BaRA(AdaptedLM):
    """BaRA as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        form: "additive" or "gate".
        centred: additive form only: subtract the prior mean from theta. The update then has mean 0 under the
            prior, and its units take both signs. Without it, as in the paper, every token first receives
            about the same vector, `s B (E[Phi] * E[theta])`.
        latent: "phi*theta" (the paper), or the paper's ablations "phi" and "theta".
        phi_prior, theta_prior: prior of one entry: a name; a name with hyperparameters, for example
            `{"name": "gamma", "concentration": 1.0, "rate": 1.0}` (the paper's); a distribution such as
            `dist.Gamma(0.5, 1.0)`; or a function without arguments that returns a distribution. The function
            is called in every run of the program, so its hyperparameters can be learned or sampled. A
            distribution may have the batch shape `modules x r` for Phi, and `r` for theta.
        beta_phi, beta_theta: weights of the KL terms; both 1 give the exact ELBO. The KL of theta is a sum
            over modules, rows and tokens; at weight 1 it outweighs the answers and nothing is learned. The
            default is 1e-5. The paper tempers both terms without giving the weights.

    Raises:
        ConfigError: unknown form, latent or prior; a negative weight; or `centred` without an additive theta.

    Examples:
        >>> import bara_pyro as bp
        >>> backbone = bp.load_backbone("microworld")
        >>> prior = {"name": "lognormal", "scale": 0.5}
        >>> model = bp.models.BaRA(backbone, num_data=640, form="gate", theta_prior=prior)
        >>> len(model.targets), model.r
        (9, 8)
        >>> sorted(model.latents.sites)[:2]
        ['phi', 'theta/lm_head']
        >>> import pyro.distributions as dist
        >>> bp.models.BaRA(backbone, num_data=640, phi_prior=dist.Gamma(0.5, 1.0)).phi_prior
        Gamma(concentration: 0.5, rate: 1.0)
    """

    adapters: Mapping[str, BaRAAdapter]

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        form: Form = "additive",
        centred: bool = False,
        latent: Latent = "phi*theta",
        phi_prior: Prior = "gamma",
        theta_prior: Prior = "gamma",
        beta_phi: float = 1.0,
        beta_theta: float = 1e-5,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        check_choice("form", form, Form)
        check_choice("latent", latent, Latent)
        if not (0 <= beta_phi < math.inf and 0 <= beta_theta < math.inf):
            raise ConfigError(f"beta_phi={beta_phi} and beta_theta={beta_theta} must not be negative.")
        if centred and (form == "gate" or latent == "phi"):
            raise ConfigError(
                f"centred needs the theta of the additive form, which form={form!r} with latent={latent!r} "
                "does not have: leave it out."
            )
        centre = centre_of(theta_prior) if centred else 0.0
        super().__init__(backbone, num_data, partial(BaRAAdapter, form=form, centre=centre), **adapter)
        self.form = form
        self.centre = centre
        self.latent = latent
        self._priors = {
            PHI: given_prior(phi_prior, backbone.device),
            THETA: given_prior(theta_prior, backbone.device),
        }
        self.beta_phi = beta_phi
        self.beta_theta = beta_theta

    @property
    def phi_prior(self) -> TorchDistribution:
        """The prior of one entry of Phi."""
        return current_prior(self._priors[PHI])

    @property
    def theta_prior(self) -> TorchDistribution:
        """The prior of one entry of theta."""
        return current_prior(self._priors[THETA])

    @cached_property
    def latents(self) -> Latents:
        """The sites `phi`, `modules x r`, and one `theta/<path>` per module."""
        sites = {}
        if self.latent != "theta":
            sites[PHI] = Site(PHI, (len(self.targets), self.r))
        if self.latent != "phi":
            for a in self.adapters.values():
                t = a.target
                sites[t.site(THETA)] = Site(THETA, (a.r,), t.path, local=True, width=t.in_features)
        return Latents(self.r, sites, modulating=self.form == "gate")

    @cached_property
    def gates(self) -> Gates:
        """The gates Phi and theta, as far as `latent` includes them."""
        return Gates(
            modules=tuple(target.path for target in self.targets),
            r=self.r,
            phi=PHI if PHI in self.latents.sites else None,
            theta={str(site.path): name for name, site in self.latents.local_sites.items()},
            modulating=self.latents.modulating,
            centre=self.centre,
        )

    def global_latents(self, batch: Batch) -> Sequence[Gate]:
        """Sample `phi`; return the parts of each module's gate."""
        prior = None if self.latent == "phi" else self.theta_prior
        if self.latent == "theta":
            return [Gate(None, prior, self.beta_theta, None)] * len(self.targets)
        phi = sample_per_module(PHI, self.phi_prior, len(self.targets), self.r, self.beta_phi)
        return [Gate(of_module, prior, self.beta_theta, phi) for of_module in by_module(phi)]
