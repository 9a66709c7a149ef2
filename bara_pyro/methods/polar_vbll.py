"""PoLAR-VBLL (Xiang, Li and Lu, arXiv 2604.03388): orthonormal frames and a Bayesian last layer.

The gradient is projected onto the tangent space of the frames, AdamW takes its step, and each frame is
replaced by the nearest orthonormal one. The published training instead adds a pull towards orthonormality to
the gradient (the landing field of Ablin and Peyre, AISTATS 2022). That is cheaper at a large rank, but leaves
the frames only near the constraint.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Unpack

import torch
from torch import Tensor
from torch.optim import Optimizer

from bara_pyro.core.svi import SVI, SVIOptions
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.methods.base import Method, pair, register_method
from bara_pyro.methods.vbll import VBLLConfig, keep_tokens, vbll_svi
from bara_pyro.models.polar_vbll import PolarVBLL


class PolarSVI(SVI[PolarVBLL, VBLLGuide]):
    """SVI with one AdamW that keeps the frames orthonormal; the arguments are those of `SVI`."""

    def __init__(
        self, model: PolarVBLL, guide: VBLLGuide, optim: Optimizer, **options: Unpack[SVIOptions]
    ) -> None:
        super().__init__(model, guide, optim, **options)
        self.frames = [frame for adapter in model.adapters.values() for frame in adapter.frames]

    @torch.no_grad()
    def update(self) -> None:
        """Take the step along the frames, then make them orthonormal again."""
        for frame in self.frames:
            if frame.grad is not None:
                tall(frame.grad).copy_(tangent(tall(frame), tall(frame.grad)))
        super().update()
        retract(self.frames)


def tall(frame: Tensor) -> Tensor:
    """Return a view of a frame with orthonormal columns, `n x r`."""
    return frame if frame.shape[0] >= frame.shape[1] else frame.mT


def tangent(frame: Tensor, gradient: Tensor) -> Tensor:
    """Return the part of a gradient that keeps a frame orthonormal to first order, `n x r`."""
    product = frame.mT @ gradient
    return gradient - frame @ (product + product.mT) / 2


@torch.no_grad()
def retract(frames: Iterable[Tensor]) -> None:
    """Replace each X by the nearest orthonormal frame, its polar factor `X (X^T X)^(-1/2)`, in place."""
    by_rank: defaultdict[int, list[Tensor]] = defaultdict(list)
    for frame in frames:
        by_rank[min(frame.shape)].append(tall(frame))
    for alike in by_rank.values():  # one decomposition for all r x r matrices
        exact = [frame.double() for frame in alike]
        values, vectors = torch.linalg.eigh(torch.stack([frame.mT @ frame for frame in exact]))
        roots = (vectors * values.rsqrt().unsqueeze(-2)) @ vectors.mT
        for frame, precise, root in zip(alike, exact, roots, strict=True):
            frame.copy_(precise @ root)


register_method(
    Method(
        "polar_vbll",
        "PoLAR-VBLL: y = W0 x + s U Theta V^T x, orthonormal U and V, with `vbll` (arXiv 2604.03388)",
        VBLLConfig,
        pair(PolarVBLL, VBLLGuide),
        svi=partial(vbll_svi, kind=PolarSVI),
        finish=keep_tokens,
    )
)
