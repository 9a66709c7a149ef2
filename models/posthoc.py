r"""LoRA that is trained first and made random afterwards: the program of TFB and IVON-LoRA.

in training      y = W0 x + s B A x                          maximum likelihood, no latent
once fitted      y = W0 x + s (B + dB) (A + dA) x            dA, dB ~ the posterior fitted to them
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
    """LoRA until `mark_fitted`, `GaussianLoRA` with a flat prior from then on.

    The switch is a frozen parameter, so that a run's folder says on which side of it the weights are.

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
        # On the CPU, wherever the weights are: it is looked at in every forward.
        self.switch = frozen(torch.zeros(()))

    @property
    def fitted(self) -> bool:
        """Whether the posterior has been fitted."""
        return bool(read(self, "switch"))

    @torch.no_grad()
    def mark_fitted(self) -> None:
        """Draw the weights from the guide from now on."""
        read(self, "switch").fill_(1.0)

    def global_latents(self, batch: Batch) -> Sequence[Deviations]:
        """Sample the deviations of every module; none before there is a posterior."""
        if not self.fitted:
            return [Deviations(None, None)] * len(self.targets)
        return super().global_latents(batch)

    def weight_of(self, site: str) -> Tensor:
        """Return the mean of the weight whose deviation is `site`."""
        weight, path = site.split("/", 1)
        return self.get_parameter(f"adapters.{module_key(path)}.{weight}")
