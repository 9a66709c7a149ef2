"""Bayesian last layers in plain torch and numpy: factors, log-probabilities, bounds by quadrature."""

import math
from dataclasses import replace

import numpy as np
import torch
from core_cases import ANSWERS, VOCAB, make_batch
from method_cases import made, plain_log_probs
from scipy import optimize
from torch import Tensor

from bara_pyro.core.adapter import Adapter
from bara_pyro.data.types import Batch
from bara_pyro.guides.vbll import VBLLGuide
from bara_pyro.models.vbll import VBLL

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
BOTH = ["vbll", "polar_vbll"]
SCALE = 0.8


def factors(guide: VBLLGuide) -> Tensor:
    """L of every answer, entry by entry."""
    rows, width = guide.mean.shape
    out = torch.zeros(rows, width, width)
    for k in range(rows):
        place = 0
        for i in range(width):
            for j in range(i):
                out[k, i, j] = guide.below[k, place]
                place += 1
            out[k, i, i] = guide.log_scale[k, i].exp()
    return out


def moved(guide: VBLLGuide, size: float = 0.3, seed: int = 0) -> VBLLGuide:
    """The guide away from the prior that it starts at."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in guide.parameters():
            value.add_(size * torch.randn(value.shape, generator=generator))
    return guide


def toy(method: str = "vbll", **settings: object) -> tuple[VBLL, VBLLGuide]:
    """A pair whose layers change something, and whose posterior is neither its prior nor diagonal."""
    torch.manual_seed(4)
    model, guide = made(method, **{"prior_scale": SCALE, **settings})
    with torch.no_grad():
        for adapter in model.adapters.values():
            for value in adapter.parameters():
                value.add_(0.1 * torch.randn_like(value))
    return model, moved(guide)


def weight_of(adapter: Adapter) -> Tensor:
    """The change of a layer as a matrix, `out x in`."""
    middle = getattr(adapter, "lora_S", torch.eye(adapter.r))
    return adapter.scaling * adapter.lora_B @ middle @ adapter.lora_A


def log_probs_at(model: VBLL, batch: Batch, rows: Tensor) -> Tensor:
    """The answers' log-probabilities at given deviations of their rows, `C x d`, by forward hooks."""
    head = model.backbone.lm.lm_head

    def change(adapter: Adapter, x: Tensor) -> Tensor:
        return x @ weight_of(adapter).T

    def of_head(layer: torch.nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        direction = args[0] / args[0].square().sum(-1, keepdim=True).sqrt()
        out = torch.zeros(*output.shape[:-1], VOCAB)
        out[..., batch.answer_ids] = direction @ rows.T
        return output + out

    handle = head.register_forward_hook(of_head)
    try:
        return plain_log_probs(model, batch, change)
    finally:
        handle.remove()


def logits_and_features(model: VBLL, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """The answers' log-probabilities without deviations, `B x C`, and phi, `B x d`, float64.

    phi by finite differences that are exact: a deviation of one entry of the first answer's row moves its
    logit by that entry of phi.
    """
    classes, width = len(batch.answer_ids), model.width
    with torch.no_grad():
        base = log_probs_at(model, batch, torch.zeros(classes, width)).double()
        phi = torch.zeros(len(batch), width, dtype=torch.float64)
        for entry in range(width):
            rows = torch.zeros(classes, width)
            rows[0, entry] = 1.0
            changed = log_probs_at(model, batch, rows).double()
            phi[:, entry] = (changed[:, 0] - changed[:, 1]) - (base[:, 0] - base[:, 1])
    return base.numpy(), phi.numpy()


def two_answers(**options: object) -> Batch:
    """The batch as a question with two answers."""
    batch = make_batch(**options)
    return replace(batch, answer_ids=ANSWERS[:2], labels=batch.labels % 2)


def expected_log_likelihood(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """E log sigmoid(t), t ~ Normal(mean, variance), by Gauss-Hermite quadrature."""
    t = mean[..., None] + np.sqrt(variance)[..., None] * NODES
    return -(np.logaddexp(0, -t) * WEIGHTS).sum(-1)


class Reference:
    """The negative ELBO of two answers in float64, and the Gaussians of two rows that minimise it.

    Args:
        base, phi: see `logits_and_features`.
        labels: 0 or 1, `B`.
        weight: times that each row counts.
        scale: of the prior.
        jensen: Jensen's bound in the place of the expectation.
    """

    def __init__(
        self,
        base: np.ndarray,
        phi: np.ndarray,
        labels: np.ndarray,
        weight: float,
        scale: float,
        jensen: bool = False,
    ) -> None:
        self.base, self.phi, self.labels = base, phi, labels
        self.weight, self.scale, self.jensen = weight, scale, jensen
        self.width = phi.shape[1]

    def unpack(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means, `2 x d`, and factors, `2 x d x d`."""
        d = self.width
        means, rest = packed[: 2 * d].reshape(2, d), packed[2 * d :].reshape(2, -1)
        tril = np.zeros((2, d, d))
        for k in range(2):
            tril[k][np.tril_indices(d)] = rest[k]
            tril[k][np.diag_indices(d)] = np.exp(np.diag(tril[k]))
        return means, tril

    def objective(self, packed: np.ndarray) -> float:
        """Of means and factors, whose diagonals are given as logarithms."""
        means, tril = self.unpack(packed)
        logits = self.base + self.phi @ means.T
        variance = np.stack([((self.phi @ lower) ** 2).sum(-1) for lower in tril], -1)
        own = np.take_along_axis(logits, self.labels[:, None], -1)[:, 0]
        if self.jensen:
            value = own - np.logaddexp(*(logits + variance / 2).T)
        else:
            other = np.take_along_axis(logits, 1 - self.labels[:, None], -1)[:, 0]
            value = expected_log_likelihood(own - other, variance.sum(-1))
        kl = 0.0
        for mean, lower in zip(means, tril, strict=True):
            trace = ((lower**2).sum() + mean @ mean) / self.scale**2
            log_det = 2 * np.log(np.diag(lower)).sum()
            kl += 0.5 * (trace - self.width + 2 * self.width * math.log(self.scale) - log_det)
        return float(-self.weight * value.sum() + kl)

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and covariances at the minimum."""
        start = np.zeros(2 * self.width + self.width * (self.width + 1))
        found = optimize.minimize(self.objective, start, method="BFGS", options={"gtol": 1e-7})
        means, tril = self.unpack(found.x)
        return means, tril @ tril.transpose(0, 2, 1)

    def posterior_of_the_difference(self, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of `w_0 - w_1` under the exact posterior, on a grid; for d = 2."""
        axis = np.linspace(-7, 7, points) * self.scale * math.sqrt(2)
        delta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
        sign = 1 - 2 * self.labels
        t = sign * ((self.base[:, 0] - self.base[:, 1]) + delta @ self.phi.T)
        log_density = -self.weight * np.logaddexp(0, -t).sum(-1) - (delta**2).sum(-1) / (4 * self.scale**2)
        density = np.exp(log_density - log_density.max())
        density /= density.sum()
        mean = density @ delta
        return mean, (delta - mean).T @ ((delta - mean) * density[:, None])
