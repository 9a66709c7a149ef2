"""A small BaRA with a posterior that is not its start, and forward and certified gate written out."""

import math

import torch
from core_cases import backbone, hooked_forward, parts_of, randomise, seen
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.data.types import Batch
from bara_pyro.guides.amortized import AmortizedGuide
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

ONE_TOKEN = ((5,), (9,), (40,), (3,))


def toy(guide: type = WeibullGuide, **options: object) -> tuple[BaRA, AmortizedGuide]:
    """A BaRA of rank 3 on five layers and the head, all of its parameters random."""
    torch.manual_seed(2)
    model = randomise(BaRA(backbone(), 4, r=3, **options), 0.2)
    fitted = guide(model)
    with torch.no_grad():
        for weight in fitted.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return model, fitted


def forward_with_gates(model: BaRA, batch: Batch, psi: Tensor) -> Tensor:
    """The answers' log-probabilities where module m's gate is `psi[:, m]` (`B x M x r`) at every token."""
    paths = [target.path for target in model.targets]
    head = next((t.path for t in model.targets if t.is_head), "")

    def change(path: str, x: Tensor) -> Tensor:
        gate = psi[:, None, paths.index(path)]
        up, down = parts_of(model, path)
        if down is not None:
            gate = gate * torch.einsum("bti,ri->btr", x, down)
        return 16.0 / model.r * torch.einsum("btr,or->bto", gate.expand(*x.shape[:2], -1), up)

    with torch.no_grad():
        return hooked_forward(batch, model.backbone.lm, paths, head, change)


def mean_gates(model: BaRA, guide: AmortizedGuide, batch: Batch) -> tuple[Tensor, Tensor]:
    """The posterior means of Phi (`M x r`) and of theta at the last token (`B x M x r`)."""
    paths = [target.path for target in model.targets]
    head = next((t.path for t in model.targets if t.is_head), "")
    raw = {
        name: guide.sites[name.replace(".", "/")].weight for name in ("phi", *(f"theta/{p}" for p in paths))
    }
    phi = F.softplus(raw["phi"][:, : model.r])
    last = {}

    def change(path: str, x: Tensor) -> Tensor:
        weight = raw[f"theta/{path}"][: model.r]
        theta = F.softplus(torch.einsum("bti,ri->btr", seen(model, x), weight))
        last[path] = theta[:, -1]
        gate = phi[paths.index(path)] * theta
        up, down = parts_of(model, path)
        if down is not None:
            gate = gate * torch.einsum("bti,ri->btr", x, down)
        return 16.0 / model.r * torch.einsum("btr,or->bto", gate, up)

    with torch.no_grad():
        hooked_forward(batch, model.backbone.lm, paths, head, change)
        return phi, torch.stack([last[path] for path in paths], dim=1)


def plain_gate(gate: list[float], clip: float, tau: float, s: int) -> list[float]:
    """The certified gate of one row, entry by entry."""
    clipped = [math.copysign(min(abs(z), clip), z) for z in gate]
    order = sorted(range(len(gate)), key=lambda k: (-abs(clipped[k]), k))[:s]
    return [z if k in order and abs(z) > tau else 0.0 for k, z in enumerate(clipped)]
