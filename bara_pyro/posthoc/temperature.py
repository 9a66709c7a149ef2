"""One temperature for all rows: p(y) = softmax(z / T), z the answers' scores (Guo et al., ICML 2017)."""

import math
from collections.abc import Sequence

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bara_pyro.bisection import sign_change
from bara_pyro.core.modules import frozen
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import nll, posterior_predictive

# Rows that are all right (or mostly wrong) want T = 0 (or infinity): the fit stops here.
COLDEST, HOTTEST = 0.01, 100.0
CRITICAL = 1.645  # standard errors: a calibrated prediction is further off to one side in 5 of 100 cases


class Temperature(nn.Module):
    """What each draw's scores are divided by: `T = exp(log_temperature)`, 1 until it is set.

    It leaves the most probable answer of every draw as it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = frozen(torch.zeros(()))

    @property
    def value(self) -> float:
        """T."""
        return float(self.log_temperature.exp())

    def forward(self, draws: Tensor) -> Tensor:
        """Return log-probabilities at T, of the shape of `draws`, `... x C`, which are those at 1."""
        if not self.log_temperature:
            return draws
        return (draws * self.log_temperature.neg().exp().to(draws)).log_softmax(-1)

    @torch.no_grad()
    def set(self, log_temperature: float) -> None:
        """Set ln T.

        Raises:
            ConfigError: it is not finite.
        """
        if not math.isfinite(log_temperature):
            raise ConfigError(f"log_temperature={log_temperature} must be finite.")
        self.log_temperature.fill_(log_temperature)


def best_log_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """Return the ln T that minimises the mean NLL of `softmax(log_probs / T)`.

    Args:
        log_probs: `n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.

    Returns:
        The minimum, to the last digits of float64, within `[ln COLDEST, ln HOTTEST]`; 0 where all are alike.
    """
    z = log_probs.double()
    right = z.gather(1, labels[:, None]).squeeze(1)

    def slope(log_temperature: float) -> float:
        """Return dNLL / dT times a positive number; the NLL is convex in 1/T, so it changes sign once."""
        expected = ((z / math.exp(log_temperature)).softmax(-1) * z).nan_to_num().sum(-1)
        return float((right - expected).mean())

    low, high = math.log(COLDEST), math.log(HOTTEST)
    return 0.0 if slope(low) == slope(high) == 0 else sign_change(slope, low, high)


def too_unsure(draws: Tensor, labels: Tensor, groups: Sequence[Sequence[int]] | None = None) -> bool:
    """Return whether answers show predictions to be too unsure: whether a temperature below 1 is better.

    The score test of T = 1 against T < 1 at a level of 5 percent. To first order its statistic is the best
    ln T over its standard error, but it needs no optimum, which few rows that are all right do not have.

    Args:
        draws: `S x n x C`, log-probabilities of predictions whose average is looked at.
        labels: `n`, long.
        groups: places of rows that belong together, which count as if their errors were one; None: each row
            is alone.
    """
    score, variance = score_of_log_temperature(draws, labels)
    deviation = variance.sqrt()
    if groups is not None:
        deviation = torch.stack([deviation[list(group)].sum() for group in groups])
    return float(score.sum()) > CRITICAL * float(deviation.square().sum().sqrt())


def score_of_log_temperature(draws: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each row, -d ln p(label) / d ln T at T = 1 and its variance where labels come of p.

    p is the average over draws of `softmax(draws / T)`; of labels that come of it the mean is 0.

    Args:
        draws: `S x n x C`, log-probabilities at T = 1.
        labels: `n`, long.

    Returns:
        Two of `n`, float64.
    """
    z = draws.double().log_softmax(-1)
    size = z.masked_fill(z.isneginf(), 0.0)  # of what a row does not offer
    slope = size - (z.exp() * size).sum(-1, keepdim=True)
    slope = (z.softmax(0).nan_to_num() * slope).sum(0)
    p = (z.logsumexp(0) - math.log(len(z))).exp()
    return slope.gather(1, labels[:, None]).squeeze(1), (p * slope.square()).sum(-1)


def best_common_log_temperature(draws: Tensor, labels: Tensor, *, spread: float = math.inf) -> float:
    """Return the ln T that minimises the NLL of the average over draws of `softmax(log_probs / T)`.

    Args:
        draws: `S x n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.
        spread: standard deviation of the prior `N(0, spread^2)` of ln T, whose maximum a posteriori is asked
            for; infinite: of the likelihood alone.

    Returns:
        Of one draw without a prior, the minimum. Of several it need not be the only one: the lowest on a
        grid of steps of 5 percent, then the lowest beside it to a tenth of a permille; 0 where all are alike.
    """
    if len(draws) == 1 and math.isinf(spread):
        return best_log_temperature(draws[0], labels)
    z = draws.double()

    def at(log_temperature: float) -> float:
        told = nll(posterior_predictive((z / math.exp(log_temperature)).log_softmax(-1)), labels)
        return told + (log_temperature / spread) ** 2 / (2 * len(labels))

    grid = torch.linspace(math.log(COLDEST), math.log(HOTTEST), 190, dtype=torch.float64).tolist()
    found = [at(log_temperature) for log_temperature in grid]
    if max(found) == min(found):
        return 0.0  # no row says anything about it
    lowest = found.index(min(found))
    around = grid[max(0, lowest - 1)], grid[min(len(grid) - 1, lowest + 1)]
    return float(minimize_scalar(at, bounds=around, method="bounded", options={"xatol": 1e-4}).x)
