r"""AdaLoRA (Zhang et al., ICLR 2023, arXiv 2303.10512): LoRA in the form of a singular value decomposition.

y = W0 x + s B diag(E) A x,        s = lora_alpha / init_r

A and B start at Normal(0, 0.02^2), E at 0. There is no latent variable. A factor pulls the rows of A and the
columns of B towards orthonormality:

p(A, B) ~ exp(-N g R(A, B)),        R = mean over all A and B of |A A^T - I|_F, |B^T B - I|_F

This unnormalised prior grows with the number N of training examples. The negative ELBO divided by N, which
training minimises, is therefore the published `mean cross-entropy + g R`.

`bara_pyro.methods.adalora` allocates ranks during training: an entry of E that is 0 switches off one rank
of its module.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Unpack

import pyro
import torch
from pyro import poutine
from pyro.distributions import validation_enabled
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter, chosen_rows
from bara_pyro.core.latents import Latents, Site
from bara_pyro.core.program import AdaptedLM, AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.errors import ConfigError
from bara_pyro.lm.backbone import Backbone
from bara_pyro.lm.targets import Target
from bara_pyro.types import default

ORTHOGONALITY = "orthogonality"
INIT_SCALE = 0.02


class AdaLoRAAdapter(Adapter):
    """Update of one layer, `s B diag(E) A x`: `lora_A`, `r x in`; `lora_E`, `r x 1`; `lora_B`, `out x r`."""

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        self.lora_A = nn.Parameter(INIT_SCALE * torch.randn(r, target.in_features))
        self.lora_E = nn.Parameter(torch.zeros(r, 1))
        self.lora_B = nn.Parameter(INIT_SCALE * torch.randn(target.out_features, r))

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `s diag(E) A x`."""
        return F.linear(x, self.lora_A) * (self.lora_E.squeeze(-1) * self.scaling)

    def expand(self, units: Tensor, latents: None, rows: Tensor | None = None) -> Tensor:
        """Return `B units`; the scaling `s` is already part of the units."""
        return F.linear(units, chosen_rows(self.lora_B, rows))

    def distance(self) -> Tensor:
        """Return `|A A^T - I|_F + |B^T B - I|_F`."""
        unit = torch.eye(self.r, dtype=self.lora_A.dtype, device=self.lora_A.device)
        rows, columns = self.lora_A @ self.lora_A.mT, self.lora_B.mT @ self.lora_B
        return torch.linalg.matrix_norm(rows - unit) + torch.linalg.matrix_norm(columns - unit)


class AdaLoRA(AdaptedLM):
    """AdaLoRA as a Pyro model.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`; r is the mean rank per module
            at the end of the allocation.
        init_r: rank of every module at the start; 1.5 r if None.
        orth_weight: weight g of the orthogonality factor; 0 removes it.

    Raises:
        ConfigError: `init_r` is below `r`, or `orth_weight` is negative.
    """

    adapters: Mapping[str, AdaLoRAAdapter]

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        init_r: int | None = None,
        orth_weight: float = 0.1,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        r = adapter.get("r", default(AdaptedLM, "r"))
        init_r = round(1.5 * r) if init_r is None else init_r
        if init_r < r or orth_weight < 0:
            raise ConfigError(
                f"init_r={init_r} must be at least r={r}, the rank after allocation, and "
                f"orth_weight={orth_weight} must not be negative."
            )
        super().__init__(backbone, num_data, AdaLoRAAdapter, **(adapter | {"r": init_r}))
        self.target_r = r
        self.orth_weight = orth_weight

    @cached_property
    def latents(self) -> Latents:
        """No latent sites; one auxiliary site, the factor `orthogonality`."""
        return Latents(self.r, auxiliary={ORTHOGONALITY: Site(ORTHOGONALITY)})

    def global_latents(self, batch: Batch) -> Sequence[None]:
        """Add the orthogonality factor of all adapters."""
        if self.orth_weight:
            # Validation would read the value from the device, which a captured step cannot.
            with poutine.scale(scale=self.num_data * self.orth_weight), validation_enabled(False):
                pyro.factor(ORTHOGONALITY, -self.orthogonality())
        return super().global_latents(batch)

    def orthogonality(self) -> Tensor:
        """Return R, the mean distance from orthogonality of all A and B, a scalar."""
        # Half precision under autocast is too coarse to compare A A^T with the identity.
        with torch.autocast(self.backbone.device.type, enabled=False):
            return torch.stack([a.distance() for a in self.adapters.values()]).mean() / 2

    def ranks(self) -> dict[str, int]:
        """Return module path -> number of non-zero singular values."""
        return {a.target.path: int(a.lora_E.count_nonzero()) for a in self.adapters.values()}
