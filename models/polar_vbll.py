r"""PoLAR-VBLL (Xiang, Li and Lu, arXiv 2604.03388): the Bayesian last layer of `models.vbll` over PoLAR.

y = W0 x + s U Theta V^T x        U, `out x r`, and V, `in x r`: orthonormal columns; Theta, `r x r`: free

PoLAR (Lion et al., NeurIPS 2025, arXiv 2506.03133) writes the update of a layer as two orthonormal frames
with a free `r x r` matrix between them, so that the r directions cannot collapse. Theta starts at 0, so
training starts at the frozen model; the frames start uniformly distributed. The training of
`bara_pyro.methods.polar_vbll` keeps them orthonormal.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bara_pyro.core.adapter import Adapter
from bara_pyro.errors import ConfigError
from bara_pyro.lm.targets import Target
from bara_pyro.models.vbll import VBLL


class PolarAdapter(Adapter):
    """Update of one layer, `s U Theta V^T x`.

    Attributes:
        lora_A: `r x in`, V^T.
        lora_S: `r x r`, Theta.
        lora_B: `out x r`, U.

    Raises:
        ConfigError: the rank exceeds the layer's input or output width.
    """

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        least = min(target.in_features, target.out_features)
        if r > least:
            raise ConfigError(f"r={r} must not exceed {least}, the smaller width of {target.path}.")
        self.lora_A = nn.Parameter(nn.init.orthogonal_(torch.empty(r, target.in_features)))
        self.lora_S = nn.Parameter(torch.zeros(r, r))
        self.lora_B = nn.Parameter(nn.init.orthogonal_(torch.empty(target.out_features, r)))

    @property
    def frames(self) -> tuple[Tensor, Tensor]:
        """The frames: `lora_A` with orthonormal rows, `lora_B` with orthonormal columns."""
        return self.lora_A, self.lora_B

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `Theta V^T x`."""
        return F.linear(F.linear(x, self.lora_A), self.lora_S)


class PolarVBLL(VBLL):
    """PoLAR in the layers and a Bayesian last layer; arguments and errors are those of `VBLL`."""

    adapters: Mapping[str, PolarAdapter]
    adapter_class = PolarAdapter
