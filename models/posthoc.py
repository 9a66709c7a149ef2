r"""LoRA trained by maximum likelihood that gets a posterior afterwards: the program of TFB and IVON-LoRA.

in training      y = W0 x + s B A x                          maximum likelihood, no latent sites
once fitted      y = W0 x + s (B + dB) (A + dA) x            dA, dB ~ the fitted posterior
"""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from bara_pyro.core.modules import frozen, module_key, read
from bara_pyro.core.program import AdapterOptions
from bara_pyro.data.types import Batch
from bara_pyro.lm.backbone import Backbone
from bara_pyro.models.gaussian_lora import Deviations, GaussianLoRA


class PosthocLoRA(GaussianLoRA):
    """LoRA until `mark_fitted` is called, `GaussianLoRA` with a flat prior from then on.

    The switch is a frozen parameter, so a saved run records whether its posterior was fitted.

    Args:
        backbone, num_data, **adapter: see `bara_pyro.core.program.AdaptedLM`.
        random: which factors become latent: "A", "B" or "AB".
        flipout: see `bara_pyro.models.gaussian_lora.GaussianAdapter`.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_data: int,
        *,
        random: str,
        flipout: bool = False,
        **adapter: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(
            backbone, num_data, random=random, prior_scale=1.0, beta=0.0, flipout=flipout, **adapter
        )
        # On the CPU even if the weights are not: every forward reads it, and a GPU would have to synchronise.
        self.switch = frozen(torch.zeros(()))

    @property
    def fitted(self) -> bool:
        """Whether the posterior has been fitted."""
        return bool(read(self, "switch"))

    @torch.no_grad()
    def mark_fitted(self) -> None:
        """Mark the posterior as fitted: from now on the weights are drawn from the guide."""
        read(self, "switch").fill_(1.0)

    def global_latents(self, batch: Batch) -> Sequence[Deviations]:
        """Sample the deviations of every module; before the posterior is fitted there are none."""
        if not self.fitted:
            return [Deviations(None, None)] * len(self.targets)
        return super().global_latents(batch)

    def weight_of(self, site: str) -> Tensor:
        """Return the mean of the weight whose deviation is `site`."""
        weight, path = site.split("/", 1)
        return self.get_parameter(f"adapters.{module_key(path)}.{weight}")
