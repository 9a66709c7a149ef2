r"""PoLAR-VBLL (Xiang, Li and Lu, arXiv 2604.03388): the Bayesian last layer of `models.vbll` over PoLAR.

y = W0 x + s U Theta V^T x        U, `out x r`, and V, `in x r`, of orthonormal columns; Theta, `r x r`, free

PoLAR (Lion et al., NeurIPS 2025, arXiv 2506.03133): the change of a layer as two frames of directions and
what happens between them, so that all r directions stay apart. Theta starts at 0 and so training at the
backbone; the frames start uniform. What keeps them orthonormal is how they are trained:
`bara_pyro.methods.polar_vbll`.
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
    """The change of one layer.

    Attributes:
        lora_A: `r x in`, V^T.
        lora_S: `r x r`, Theta.
        lora_B: `out x r`, U.

    Raises:
        ConfigError: the rank exceeds a width of the layer, which has not so many orthonormal directions.
    """

    def __init__(self, target: Target, r: int, scaling: float) -> None:
        super().__init__(target, r, scaling)
        least = min(target.in_features, target.out_features)
        if r > least:
            raise ConfigError(f"r={r} must not exceed the least width {least} of {target.path}.")
        self.lora_A = nn.Parameter(nn.init.orthogonal_(torch.empty(r, target.in_features)))
        self.lora_S = nn.Parameter(torch.zeros(r, r))
        self.lora_B = nn.Parameter(nn.init.orthogonal_(torch.empty(target.out_features, r)))

    @property
    def frames(self) -> tuple[Tensor, Tensor]:
        """`lora_A` and `lora_B`: the first has orthonormal rows, the second orthonormal columns."""
        return self.lora_A, self.lora_B

    def shrink(self, x: Tensor, latents: None) -> Tensor:
        """Return `Theta V^T x`."""
        return F.linear(F.linear(x, self.lora_A), self.lora_S)


class PolarVBLL(VBLL):
    """PoLAR in the layers, random rows of the answers behind them; arguments and errors as of `VBLL`."""

    adapters: Mapping[str, PolarAdapter]
    adapter_class = PolarAdapter
