"""Derivatives of the answers' log-probabilities at every LoRA matrix, for Laplace-LoRA."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.core.adapter import tapped
from bara_pyro.core.guide import SiteGuide
from bara_pyro.core.handlers import PROGRAM
from bara_pyro.core.posterior import PosteriorMean
from bara_pyro.data.types import Batch
from bara_pyro.models.gaussian_lora import GaussianAdapter, GaussianLoRA


class Linearisation:
    """One forward pass at the mean weights that keeps its graph, for derivatives at every matrix.

    Args:
        model: LoRA with both factors latent.
        guide: its guide, whose mean is 0.
        adapters: adapters whose matrices are differentiated.
        batch: B rows.

    Attributes:
        log_probs: the answers' log-probabilities, `B x C`.
        inputs: site -> inputs of its matrix, `B x T x in`, 0 on padding (T = 1 at the answer head).
    """

    def __init__(
        self, model: GaussianLoRA, guide: SiteGuide, adapters: Sequence[GaussianAdapter], batch: Batch
    ) -> None:
        if batch.labels is None:
            # Any label will do; without labels the program would draw an answer.
            batch = replace(batch, labels=torch.zeros_like(batch.input_ids[:, 0]))
        with PROGRAM, torch.enable_grad(), PosteriorMean(guide), tapped(adapters) as taps:
            self.log_probs: Tensor = model.forward(batch)
        self._adapters = adapters
        self._mask = batch.attention_mask
        self._answers = batch.answer_ids
        self._outputs = [taps[a.target.path][1] for a in adapters]
        self.inputs: dict[str, Tensor] = {}
        for a in adapters:
            x = self._real(taps[a.target.path][0])
            self.inputs[a.target.site("lora_A")] = x
            self.inputs[a.target.site("lora_B")] = F.linear(x, a.lora_A.detach())

    def gradients(self, direction: Tensor) -> dict[str, Tensor]:
        """Return the gradients of `sum_c direction_c log p_c` at the output of every matrix.

        Args:
            direction: `C` or `B x C`; if it sums to 0, this is also the derivative of the logits.

        Returns:
            site -> `B x T x out`, 0 on padding; B of the answer head has C outputs, one per answer.
        """
        grads = torch.autograd.grad(
            self.log_probs,
            self._outputs,
            direction.to(self.log_probs).expand_as(self.log_probs),
            retain_graph=True,
        )
        out = {}
        for adapter, grad in zip(self._adapters, grads, strict=True):
            up = adapter.lora_B.detach()
            if adapter.target.is_head:
                up = up[self._answers]
            below = self._real(grad) * adapter.scaling
            out[adapter.target.site("lora_A")] = below @ up
            out[adapter.target.site("lora_B")] = below
        return out

    def _real(self, values: Tensor) -> Tensor:
        return values.masked_fill(~self._mask[:, -values.shape[1] :, None], 0.0)
