"""LoRA with a temperature: p(y) = softmax(z / T), z the logits of the answers (Guo et al., ICML 2017)."""

from typing import Unpack

import torch
from torch import Tensor

from bara_pyro.core.backbone import Backbone
from bara_pyro.core.frozen import frozen, read
from bara_pyro.core.program import AdapterOptions
from bara_pyro.models.lora import LoRA


class TemperedLoRA(LoRA):
    """Maximum-likelihood LoRA whose logits are divided by T.

    `T = exp(log_temperature)` is positive whatever the parameter, and no temperature changes which answer is
    the most probable. The parameter is frozen at T = 1, where the program is LoRA bit for bit, while the
    adapters are trained, and fitted afterwards.
    """

    prunable = False  # the temperature belongs to the units that it was fitted with

    def __init__(self, backbone: Backbone, num_data: int, **adapter: Unpack[AdapterOptions]) -> None:
        super().__init__(backbone, num_data, **adapter)
        self.log_temperature = frozen(torch.zeros((), device=backbone.device))

    @torch.no_grad()
    def set_temperature(self, log_temperature: float) -> None:
        """Set ln T."""
        read(self, "log_temperature").fill_(log_temperature)

    def finished(self, logits: Tensor) -> Tensor:
        """Return the logits divided by T."""
        return super().finished(logits) * read(self, "log_temperature").neg().exp()
