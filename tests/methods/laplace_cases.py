"""A tiny LoRA, and its derivatives, curvature and linearised posterior as dense float64 matrices.

Shares with the library the parameters and nothing else: the forward is `hooked_forward`, all weights are one
vector, in the order of `weights_of`.
"""

import torch
from core_cases import VOCAB, backbone, hooked_forward, make_batch, randomise
from torch import Tensor

from bara_pyro.data.types import Batch
from bara_pyro.guides.laplace import LaplaceGuide
from bara_pyro.methods.laplace import fit_laplace, kfac
from bara_pyro.models.gaussian_lora import GaussianLoRA

R, SCALING = 2, 3.0
HEAD = "lm_head"


def toy(arch: str = "qwen2", targets: list[str] | None = None, **options: object) -> tuple:
    """Model and guide with B not 0."""
    torch.manual_seed(3)
    model = GaussianLoRA(
        backbone(arch),
        12,
        r=R,
        lora_alpha=SCALING * R,
        target_modules=targets,
        random="AB",
        prior_scale=0.2,
        beta=0.0,
    )
    return randomise(model, 0.3), LaplaceGuide(model, **options)


def halves(choose: tuple = ((0, 1), (2, 3)), pad: int = 0) -> list[Batch]:
    return [make_batch(choose=list(rows), pad=pad) for rows in choose]


def fitted(tokens: str = "mean", **options: object) -> tuple:
    """Model, guide, factors and figures of a fit of four rows, precision 2."""
    model, guide = toy(**options)
    factors, _ = kfac(guide, halves(), tokens=tokens)
    return model, guide, factors, fit_laplace(guide, halves(), prior_precision=2.0, tokens=tokens)


def weights_of(model: GaussianLoRA) -> dict[str, Tensor]:
    """Site -> weight, detached copies that take gradients."""
    return {
        f"{weight}/{a.target.path}": getattr(a, weight).detach().clone().requires_grad_()
        for a in model.adapters.values()
        for weight in ("lora_A", "lora_B")
    }


def plain_log_probs(model: GaussianLoRA, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    def change(path: str, x: Tensor) -> Tensor:
        return SCALING * (x @ weights[f"lora_A/{path}"].T) @ weights[f"lora_B/{path}"].T

    return hooked_forward(batch, model.backbone.lm, [t.path for t in model.targets], HEAD, change)


def jacobians(model: GaussianLoRA, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities, `B x C`, and site -> their derivative in the flattened weight, `B x C x P`."""
    weights = weights_of(model)
    log_probs = plain_log_probs(model, weights, batch)
    out: dict[str, list] = {site: [] for site in weights}
    for value in log_probs.flatten():
        for site, grad in zip(
            weights, torch.autograd.grad(value, list(weights.values()), retain_graph=True), strict=True
        ):
            out[site].append(grad.flatten().double())
    shape = (*log_probs.shape, -1)
    return log_probs.detach().double(), {s: torch.stack(v).reshape(shape) for s, v in out.items()}


def ggn(log_probs: Tensor, jacobian: Tensor) -> Tensor:
    """`sum_n J^T (diag p - p p^T) J` of one matrix, `P x P`."""
    p = log_probs.exp()
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.einsum("ncp,ncd,ndq->pq", jacobian, hessian, jacobian)


def answer_entries(site: str, batch: Batch) -> Tensor:
    """The entries of a flattened weight that have curvature: of the head's B, the answers' rows, in order."""
    if site != f"lora_B/{HEAD}":
        return torch.tensor([], dtype=torch.long)
    return (batch.answer_ids[:, None] * R + torch.arange(R)).flatten()


def dense_covariance(guide: LaplaceGuide, factors: dict, batch: Batch, site: str) -> Tensor:
    """`(F + lambda I)^-1` of one matrix by an ordinary inverse, `P x P`."""
    precision = float(guide.posterior.precision)
    curvature = torch.kron(factors[site].output, factors[site].input)
    entries = answer_entries(site, batch)
    if len(entries):
        whole = torch.zeros(VOCAB * R, VOCAB * R).double()
        whole[entries[:, None], entries] = curvature
        curvature = whole
    return torch.linalg.inv(curvature + precision * torch.eye(len(curvature)).double())


def dense_logits(model: GaussianLoRA, guide: LaplaceGuide, factors: dict, batch: Batch) -> tuple:
    """Mean and covariance of the centred logits, `B x C`, `B x C x C`."""
    log_probs, jacobian = jacobians(model, batch)
    covariance = sum(
        jacobian[site] @ dense_covariance(guide, factors, batch, site) @ jacobian[site].mT for site in factors
    )
    classes = log_probs.shape[-1]
    centring = torch.eye(classes).double() - 1 / classes
    return log_probs @ centring, centring @ covariance @ centring
