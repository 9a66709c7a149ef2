r"""AdaLoRA (Zhang et al., ICLR 2023, arXiv 2303.10512): LoRA in the form of a singular value decomposition.

y = W0 x + s B diag(E) A x,        s = lora_alpha / init_r

A and B start at Normal(0, 0.02^2), E at 0. There is no latent variable. A factor pulls the rows of A and the
columns of B towards orthonormality:

p(A, B) ~ exp(-N g R(A, B)),        R = mean over all A and B of |A A^T - I|_F, |B^T B - I|_F

It is an unnormalised prior that grows with the number N of training examples, so that the negative ELBO
divided by N, which is what is minimised, is the published `mean cross-entropy + g R`.

Ranks are allocated during training by `bara_pyro.methods.allocation`: an entry of E that is 0 is a rank
that a module does without.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Unpack

import pyro
import torch
from pyro import poutine
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
    """The change of one layer: `lora_A`, `r x in`; `lora_E`, `r x 1`; `lora_B`, `out x r`."""

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        self.lora_A = nn.Parameter(INIT_SCALE * torch.randn(r, target.in_features))
        self.lora_E = nn.Parameter(torch.zeros(r, 1))
        self.lora_B = nn.Parameter(INIT_SCALE * torch.randn(target.out_features, r))

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `s diag(E) A x`."""
        return F.linear(x, self.lora_A) * (self.lora_E.squeeze(-1) * self.scaling)

    def expand(self, units: Tensor, latents: None, rows: Tensor | None = None) -> Tensor:
        """Return B times what the units pass on."""
        return F.linear(units, chosen_rows(self.lora_B, rows))

    def distance(self) -> Tensor:
        """Return `|A A^T - I|_F + |B^T B - I|_F`."""
        unit = torch.eye(self.r, dtype=self.lora_A.dtype, device=self.lora_A.device)
        rows, columns = self.lora_A @ self.lora_A.mT, self.lora_B.mT @ self.lora_B
        return torch.linalg.matrix_norm(rows - unit) + torch.linalg.matrix_norm(columns - unit)


class AdaLoRA(AdaptedLM):
    """The AdaLoRA program.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`; r is the mean rank of a module
            that allocation ends with.
        init_r: rank that every module starts with; 1.5 r if None.
        orth_weight: weight g of the factor; 0 leaves it out.

    Raises:
        ConfigError: `init_r` is below `r`, or the weight is negative.
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
                f"init_r={init_r} must be at least the rank r={r} that allocation ends with, and "
                f"orth_weight={orth_weight} not negative."
            )
        super().__init__(backbone, num_data, AdaLoRAAdapter, **(adapter | {"r": init_r}))
        self.target_r = r
        self.orth_weight = orth_weight

    @cached_property
    def latents(self) -> Latents:
        """None; the factor `orthogonality`."""
        return Latents(self.r, auxiliary={ORTHOGONALITY: Site(ORTHOGONALITY)})

    def global_latents(self, batch: Batch) -> Sequence[None]:
        """Weight the adapters by how far they are from orthogonal."""
        if self.orth_weight:
            with poutine.scale(scale=self.num_data * self.orth_weight):
                pyro.factor(ORTHOGONALITY, -self.orthogonality())
        return super().global_latents(batch)

    def orthogonality(self) -> Tensor:
        """Return R, the mean distance from orthogonality of all A and B, a scalar."""
        # Not in autocast's half precision: A A^T is compared with 1.
        with torch.autocast(self.backbone.device.type, enabled=False):
            return torch.stack([a.distance() for a in self.adapters.values()]).mean() / 2

    def ranks(self) -> dict[str, int]:
        """Return the number of singular values that are not 0, by the path of the module."""
        return {a.target.path: int(a.lora_E.count_nonzero()) for a in self.adapters.values()}
