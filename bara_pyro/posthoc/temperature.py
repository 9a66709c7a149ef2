"""Temperature scaling: p(y) = softmax(z / T), z the answers' scores (Guo et al., ICML 2017)."""

import math
from collections.abc import Sequence

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bara_pyro.bisection import sign_change
from bara_pyro.core.modules import frozen
from bara_pyro.errors import ConfigError
from bara_pyro.metrics import nll, posterior_predictive
from bara_pyro.posthoc.correction import Correction, PredictedRows

# Bounds of the fit: if all rows are right (or most are wrong), the best T would be 0 (or infinity).
COLDEST, HOTTEST = 0.01, 100.0
SPREAD = 1.0  # prior standard deviation of ln T in split-half calibration
CRITICAL = 1.645  # standard errors, the critical value of a one-sided test at 5 %


class Temperature(Correction):
    """Divides each draw's scores by `T = exp(log_temperature)`, which is 1 until it is set.

    The most probable answer of every draw stays the same. It has no `fit`, because a program is too sure of
    the rows that it has learned: `runs.split_half` and the methods `temperature` and `ensemble_temperature`
    choose T on held-out rows, each by its own rule, and call `set`.
    """

    name, option = "temperature", "calibrated"
    subject = "Temperatures"
    fewest = 0

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.log_temperature = frozen(torch.zeros(()))

    @property
    def value(self) -> float:
        """The temperature T."""
        return float(self.log_temperature.exp())

    def correct(self, draws: Tensor, rows: PredictedRows | None = None) -> Tensor:
        """Return log-probabilities at temperature T from those at T = 1, both `... x C`."""
        if not self.log_temperature:
            return draws
        return (draws * self.log_temperature.neg().exp().to(draws)).log_softmax(-1)

    @torch.no_grad()
    def set(self, log_temperature: float) -> None:
        """Set ln T; a `ConfigError` if it is not finite."""
        if not math.isfinite(log_temperature):
            raise ConfigError(f"log_temperature={log_temperature} must be finite.")
        self.log_temperature.fill_(log_temperature)


def best_log_temperature(log_probs: Tensor, labels: Tensor) -> float:
    """Return the ln T that minimises the mean NLL of `softmax(log_probs / T)`.

    Args:
        log_probs: `n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.

    Returns:
        The minimum within `[ln COLDEST, ln HOTTEST]`, to float64 precision; 0 if the NLL does not depend on
        T.
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
    """Test whether predictions are underconfident, that is, whether a temperature below 1 is better.

    This is the score test of T = 1 against T < 1 at the 5 % level. To first order its statistic is the best
    ln T divided by its standard error. It needs no optimum, which a few rows that are all right do not have.

    Args:
        draws: log-probabilities of draws, `S x n x C`; their average prediction is tested.
        labels: `n`, long.
        groups: row indices of each group of dependent rows, whose errors are summed; None: independent rows.
    """
    score, variance = score_of_log_temperature(draws, labels)
    return _positive(score, variance.sqrt(), groups)


def significantly_lower(losses: Tensor, others: Tensor, groups: Sequence[Sequence[int]]) -> bool:
    """Return whether losses are lower on average than others of the same rows (one-sided test at 5 %).

    Both are tensors of `n`. Deviations are summed over the row indices of each group of dependent rows.
    """
    gains = others - losses
    return _positive(gains, gains - gains.mean(), groups)


def _positive(values: Tensor, deviations: Tensor, groups: Sequence[Sequence[int]] | None) -> bool:
    """Test whether the sum of values is more than 0, with deviations summed over dependent rows."""
    if groups is not None:
        deviations = torch.stack([deviations[list(group)].sum() for group in groups])
    return float(values.sum()) > CRITICAL * float(deviations.square().sum().sqrt())


def score_of_log_temperature(draws: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's score -d ln p(label) / d ln T at T = 1, and its variance for labels drawn from p.

    p is the average over draws, `S x n x C`, of `softmax(draws / T)`. Labels are long, `n`; the results are
    float64, `n`. For labels drawn from p the score has mean 0.
    """
    z = draws.double().log_softmax(-1)
    size = z.masked_fill(z.isneginf(), 0.0)  # 0 for answers that a row does not offer
    slope = size - (z.exp() * size).sum(-1, keepdim=True)
    slope = (z.softmax(0).nan_to_num() * slope).sum(0)
    p = (z.logsumexp(0) - math.log(len(z))).exp()
    return slope.gather(1, labels[:, None]).squeeze(1), (p * slope.square()).sum(-1)


def predictive_at(draws: Tensor, log_temperature: float) -> Tensor:
    """Return the log-probabilities, `n x C`, of the mean of `softmax(draws / T)` over `S x n x C` draws."""
    return posterior_predictive((draws / math.exp(log_temperature)).log_softmax(-1))


def nll_at(draws: Tensor, labels: Tensor, log_temperature: float) -> float:
    """Return the NLL of `predictive_at` for labels, long, `n`, in nats."""
    return nll(predictive_at(draws, log_temperature), labels)


def best_common_log_temperature(draws: Tensor, labels: Tensor, *, spread: float = math.inf) -> float:
    """Return the ln T that minimises the NLL of the average over draws of `softmax(log_probs / T)`.

    Args:
        draws: `S x n x C`, logits or log-probabilities at T = 1.
        labels: `n`, long.
        spread: standard deviation of the prior `N(0, spread^2)` of ln T, for the maximum a posteriori;
            infinite for maximum likelihood.

    Returns:
        For one draw without a prior, the minimum. With several draws the NLL may have several minima: the
        lowest point of a grid in steps of 5 %, refined to 1e-4 in ln T; 0 if the NLL does not depend on T.
    """
    if len(draws) == 1 and math.isinf(spread):
        return best_log_temperature(draws[0], labels)
    z = draws.double()

    def at(log_temperature: float) -> float:
        return nll_at(z, labels, log_temperature) + (log_temperature / spread) ** 2 / (2 * len(labels))

    grid = torch.linspace(math.log(COLDEST), math.log(HOTTEST), 190, dtype=torch.float64).tolist()
    losses = [at(log_temperature) for log_temperature in grid]
    if max(losses) == min(losses):
        return 0.0  # no row depends on the temperature
    lowest = losses.index(min(losses))
    around = grid[max(0, lowest - 1)], grid[min(len(grid) - 1, lowest + 1)]
    return float(minimize_scalar(at, bounds=around, method="bounded", options={"xatol": 1e-4}).x)


def best_temperature(draws: Tensor, labels: Tensor) -> float:
    """Return the most probable ln T on held-out rows; prior N(0, SPREAD^2). It is never below 0 (T = 1).

    If the two halves resemble each other (duplicates, one template), their fits are right too often, and T <
    1 would make the run overconfident on new rows. `draws` are log-probabilities, `S x n x C`, and `labels`
    `n`.
    """
    return max(0.0, best_common_log_temperature(draws, labels, spread=SPREAD))
