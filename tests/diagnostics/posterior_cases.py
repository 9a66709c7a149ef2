"""A BaRA with one gate, whose posterior is one-dimensional: by quadrature over a grid and a plain forward."""

import math
from functools import cached_property

import torch
from core_cases import ROWS, backbone, make_batch, randomise
from gate_cases import forward_with_gates
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.data.types import Batch
from bara_pyro.guides.weibull import WeibullGuide
from bara_pyro.models.bara import BaRA

PATH = "model.layers.1.self_attn.v_proj"
REPEATS = 3
MEAN, KAPPA = 3.5, 0.45  # of a Weibull distribution near the posterior of `one_gate()`
TWO_TOKENS = ((5, 7), (3, 4), (11, 12), (40, 41))


def one_gate(
    rows: tuple = ROWS, repeats: int = REPEATS, scale: float = 0.5, **options: object
) -> tuple[BaRA, Batch]:
    """A program with one module of rank 1, and the rows `repeats` times over: data with something to say."""
    batch = make_batch(rows, choose=list(range(len(rows))) * repeats)
    torch.manual_seed(5)
    settings = {
        "form": "gate",
        "latent": "phi",
        "beta_theta": 1.0,
        "target_modules": [PATH],
        "r": 1,
        **options,
    }
    model = BaRA(backbone(), settings.pop("num_data", len(batch)), **settings)
    return randomise(model, scale), batch


def weibull(model: BaRA, mean: float = MEAN, kappa: float = KAPPA) -> WeibullGuide:
    """A guide whose posterior of phi has the given mean and noise level."""
    guide = WeibullGuide(model)
    with torch.no_grad():
        raw = [math.log(math.expm1(mean)), math.log(math.expm1(kappa)) - math.log(math.expm1(0.5))]
        guide.sites["phi"].weight.copy_(torch.tensor([raw]))
    return guide


class Grid:
    """Densities over the logarithm u of the gate, by the trapezoid rule; the prior is Gamma(1, 1).

    Args:
        model, batch: of `one_gate`, the rows of `batch` being `rows` over and over.
        rows: the different rows.
    """

    def __init__(self, model: BaRA, batch: Batch, rows: tuple = ROWS, points: int = 500) -> None:
        self.u = torch.linspace(-12, 3.3, points, dtype=torch.float64)
        self.model, self.batch, self.rows = model, batch, rows
        self.log_prior = self.u - self.u.exp()  # of u, its Jacobian included

    @cached_property
    def log_probs(self) -> Tensor:
        """The answers' log-probabilities at every point, `points x rows x C`, by a forward without Pyro."""
        count, points = len(self.rows), len(self.u)
        many = make_batch(self.rows, choose=list(range(count)) * points)
        psi = self.u.exp().float().repeat_interleave(count)[:, None, None]
        return forward_with_gates(self.model, many, psi).double().reshape(points, count, -1)

    def row_likelihood(self, labels: Tensor) -> Tensor:
        """log p(y_b | gate) of each row of the batch, `points x B`."""
        repeats = len(labels) // len(self.rows)
        return self.log_probs.repeat(1, repeats, 1)[:, torch.arange(len(labels)), labels]

    def log_likelihood(self, labels: Tensor | None = None) -> Tensor:
        return self.row_likelihood(self.batch.labels if labels is None else labels).sum(1)

    def integrate(self, values: Tensor) -> float:
        return float(torch.trapezoid(values, self.u))

    @property
    def log_evidence(self) -> float:
        return math.log(self.integrate((self.log_prior + self.log_likelihood()).exp()))

    def posterior(self, labels: Tensor | None = None) -> Tensor:
        """The posterior density of u."""
        joint = (self.log_prior + self.log_likelihood(labels)).exp()
        return joint / self.integrate(joint)

    def moments(self) -> tuple[float, float]:
        """Posterior mean and standard deviation of the gate."""
        mean = self.integrate(self.posterior() * self.u.exp())
        return mean, math.sqrt(self.integrate(self.posterior() * (self.u.exp() - mean) ** 2))

    def draws(self, count: int, labels: Tensor | None = None, seed: int = 0) -> Tensor:
        """Exact posterior draws by the inverse distribution function, `count x 1 x 1`."""
        density = self.posterior(labels)
        cdf = F.pad(torch.cumulative_trapezoid(density, self.u), (1, 0))
        noise = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        place = torch.searchsorted(cdf, noise * cdf[-1]).clamp(1, len(cdf) - 1)
        below, above = cdf[place - 1], cdf[place]
        share = (noise * cdf[-1] - below) / (above - below).clamp_min(1e-300)
        u = self.u[place - 1] + share * (self.u[1] - self.u[0])
        return u.exp().float()[:, None, None]

    def elbo(self, mean: float, kappa: float) -> float:
        """The exact ELBO of a Weibull posterior of phi, from scipy's density."""
        distribution = stats.weibull_min(1 / kappa, scale=mean / math.gamma(1 + kappa))
        log_q = torch.as_tensor(distribution.logpdf(self.u.exp().numpy())) + self.u
        weight = (self.log_prior + self.log_likelihood() - log_q).nan_to_num(neginf=0.0)
        return self.integrate(torch.where(log_q > -700, log_q.exp() * weight, 0.0))
