"""TFB: training-free Bayesianisation of a trained LoRA (Shi et al., 2024, arXiv 2412.05723).

    B = U D V^T,  B' = U D,  A' = V^T A           the same function
    q(A'_ij) = Normal(A'_ij, (sigma / D_ii)^2)    so that s B' (A' - mean) = s sigma U Z, Z standard normal

The full weight is isotropic in the span of U, with standard deviation `s sigma`, `s = lora_alpha / r`. sigma
is the largest value for which noise changes the NLL of the anchor rows by at most a tolerance:
`|NLL(sigma) - NLL(0)| <= tolerance * NLL(0)`.
"""

from collections.abc import Callable
from functools import partial

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from bara_pyro.bisection import largest_feasible
from bara_pyro.data import EncodedSplit
from bara_pyro.guides.posthoc import PosthocGuide
from bara_pyro.methods.base import AS_IT_IS, Fit, Method, MethodConfig, pair, register_method
from bara_pyro.methods.recipes import Recipe
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.models.lora import LowRankAdapter
from bara_pyro.models.posthoc import PosthocLoRA

# Separates the draws of the search from those of prediction.
SEARCH = 2**32
# Singular values below this share of the largest are rounding errors of float32 weights.
NEGLIGIBLE = torch.finfo(torch.float32).eps
NLL_FLOOR = 0.1  # nats; smallest NLL(0) for the tolerance
ANCHOR_ROWS, SEARCH_SAMPLES = 500, 10  # rows to measure the NLL on; draws to average for it
# Start of the search for sigma; upper end and number of steps of the published one (BayesAdapt ends at 0.2).
LOW, HIGH, HALVINGS = 0.001, 0.015, 5


class TFBConfig(MethodConfig):
    """Settings of TFB.

    The anchor rows are training rows, as published. If LoRA has memorised them, NLL(0) is nearly 0, and a
    share of it would allow no noise where it is needed most. A smaller NLL(0) is therefore replaced by 0.1
    nats (`NLL_FLOOR`), except with `recipe: reproduction`.
    """

    recipe: Recipe = Field(
        "elbo",
        description="'elbo': the largest feasible sigma; 'reproduction': the published search; neither "
        "maximises a bound, because TFB has no prior",
    )
    tolerance: float = Field(
        0.003, gt=0, description="allowed change of the NLL on training rows, as a share of it"
    )


TFBFit = Fit[PosthocLoRA, PosthocGuide, TFBConfig]


@torch.no_grad()
def rotate(adapter: LowRankAdapter) -> Tensor:
    """Replace B by `U D` and A by `V^T A` in place; return D, `r`, float64 on the CPU.

    Singular values that are only rounding errors are set to 0, as in a head with only C < r trained rows, or
    if B is still 0.
    """
    b, a = adapter.lora_B.detach().cpu().double(), adapter.lora_A.detach().cpu().double()
    u, d, vt = torch.linalg.svd(b, full_matrices=False)
    d = torch.where(d > NEGLIGIBLE * d[0], d, 0.0)
    rank = len(d)  # less than r if the layer has fewer outputs
    adapter.lora_B.zero_()[:, :rank].copy_(u * d)
    adapter.lora_A.zero_()[:rank].copy_(vt @ a)
    return F.pad(d, (0, adapter.r - rank))


class Noise:
    """NLL of the anchor rows as a function of sigma, with the same standard normal draws for every sigma.

    `fit` has rotated weights; `values` is site -> singular values, `r`.
    """

    def __init__(self, fit: TFBFit, values: dict[str, Tensor]) -> None:
        self.fit = fit
        self.values = values
        self.split = anchor_split(fit.split("train"))
        self.labels = torch.tensor(self.split.labels)
        self.evaluations = 0
        self.start = nll(self._log_probs(0), self.labels)

    def set(self, sigma: float) -> None:
        """Set the guide's scales to `sigma / D_ii`, or 0 if D_ii is 0, where the row of A' has no effect."""
        for site, d in self.values.items():
            scale = torch.where(d > 0, sigma / d, 0.0)
            self.fit.guide.scale(site).copy_(scale.unsqueeze(-1))

    def nll(self, sigma: float) -> float:
        """Return the NLL under noise, in nats."""
        self.set(sigma)
        return nll(self._log_probs(SEARCH_SAMPLES), self.labels)

    def change(self, sigma: float) -> float:
        """Return `|NLL(sigma) - NLL(0)|` in nats."""
        return abs(self.nll(sigma) - self.start)

    def _log_probs(self, samples: int) -> Tensor:
        self.evaluations += 1
        return posterior_predictive(self.fit.draw(self.split, samples, seed=SEARCH + self.fit.seed))


def anchor_split(split: EncodedSplit) -> EncodedSplit:
    """Return at most `ANCHOR_ROWS` rows of a split, chosen at random with a fixed seed."""
    if len(split) <= ANCHOR_ROWS:
        return split
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:ANCHOR_ROWS]
    return split.take(chosen.sort().values.tolist())


def published_search(feasible: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Return the result of the published code's bisection, which never tries `low` or `high`.

    It has the published bug: this is the last sigma that was too large (or `high`), not the last allowed one.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return high


@torch.no_grad()
def fit_tfb(fit: TFBFit) -> dict[str, float]:
    """Rotate the weights and find sigma.

    Return `sigma`, `nll_0` and `nll_sigma` (nats, on the anchor), `anchor_rows`, `evaluations` of the NLL.
    """
    model = fit.model
    values = {a.target.site("lora_A"): rotate(a) for a in model.adapters.values()}
    noise = Noise(fit, values)
    model.mark_fitted()
    sigma = 0.0
    if any(d.any() for d in values.values()):  # otherwise B is 0 and sigma has no effect
        sigma = _search(noise, fit.config)
    end = noise.nll(sigma)
    return {
        "sigma": sigma,
        "nll_0": noise.start,
        "nll_sigma": end,
        "anchor_rows": len(noise.split),
        "evaluations": noise.evaluations,
    }


def _search(noise: Noise, c: TFBConfig) -> float:
    if c.recipe == "reproduction":
        share = c.tolerance * noise.start * len(noise.split)  # published code divides the change by the rows
        return published_search(lambda sigma: noise.change(sigma) < share, LOW, HIGH, HALVINGS)
    allowed = c.tolerance * max(noise.start, NLL_FLOOR)
    return largest_feasible(lambda sigma: noise.change(sigma) <= allowed, LOW)


register_method(
    Method(
        "tfb",
        "TFB: noise fitted to a trained LoRA, flipout (arXiv 2412.05723)",
        TFBConfig,
        pair(partial(PosthocLoRA, random="A", flipout=True), partial(PosthocGuide, by_row=True)),
        finish=fit_tfb,
        check=lambda fit: fit.split("train"),
        peft=True,
        start=AS_IT_IS,
    )
)
