r"""PAC-Bayes-kl bounds on the risk of BaRA's random predictor, and the test-set bound for comparison.

    kl(Rhat || R) <= (KL(q(Phi) || p(Phi)) + log(2 sqrt(n) / delta)) / n      with probability 1 - delta

(Seeger, JMLR 2002; constant by Maurer, 2004). R is the risk of the Gibbs predictor, which draws a new Phi for
every answer. Losses are between 0 and 1, and `kl` is the divergence of two Bernoulli distributions. Rhat is a
mean over all Phi and is bounded from S draws: `kl(mean of draws || Rhat) <= log(2 / delta') / S` (Langford
and Caruana, NeurIPS 2002).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bara_pyro.bisection import sign_change
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.metrics._inputs import check_labels, check_log_probs


def binary_kl(q: float, p: float) -> float:
    """Return `kl(q || p)` of two Bernoulli distributions in nats; infinite if p excludes what q allows."""
    total = 0.0
    for a, b in ((q, p), (1 - q, 1 - p)):
        if a > 0:
            total += a * math.log(a / b) if b > 0 else math.inf
    return total


def kl_inverse(q: float, budget: float) -> float:
    """Return the largest p with `kl(q || p) <= budget`, by bisection to float64 precision.

    If q is not between 0 and 1, or the budget is negative, this raises a `ConfigError`.
    """
    if not 0 <= q <= 1 or not budget >= 0:
        raise ConfigError(f"kl_inverse got q={q} and budget={budget}: give 0 <= q <= 1 and budget >= 0.")
    return sign_change(lambda p: binary_kl(q, p) - budget, q, 1.0)


def pac_bayes_kl(empirical: float, kl: float, n: int, delta: float) -> float:
    """Return a bound on the Gibbs risk on n rows that fails with probability delta.

    `empirical` is the exact risk, 0 to 1 (`sample_convergence` bounds it from draws), and `kl` is
    `KL(posterior || prior)` in nats; the prior was fixed before the rows were seen. A number out of range
    raises a `ConfigError`.
    """
    _check_delta(delta, n)
    return kl_inverse(empirical, (kl + math.log(2 * math.sqrt(n) / delta)) / n)


def sample_convergence(mean: float, draws: int, delta: float) -> float:
    """Return a bound on an empirical Gibbs risk from the mean risk of independent draws.

    A number out of range raises a `ConfigError`.
    """
    _check_delta(delta, draws)
    return kl_inverse(mean, math.log(2 / delta) / draws)


def held_out_bound(empirical: float, n: int, delta: float) -> float:
    """Return a bound on the risk of one predictor that was fixed before the n rows were seen.

    This is the Chernoff bound in kl form (Langford, JMLR 2005), the baseline for any bound with held-out
    rows.

    Args:
        empirical: mean loss on the rows, 0 to 1.
        n: number of rows.
        delta: probability of failure.

    Raises:
        ConfigError: a number is out of range.

    Examples:
        >>> from bara_pyro.extras.bounds.pac_bayes import held_out_bound
        >>> round(held_out_bound(0.0, n=100, delta=0.05), 4)  # no error in 100 rows: 1 - 0.05 ** (1 / 100)
        0.0295
        >>> held_out_bound(0.1, n=100, delta=0.05) < held_out_bound(0.1, n=10, delta=0.05)
        True
    """
    _check_delta(delta, n)
    return kl_inverse(empirical, math.log(1 / delta) / n)


def _check_delta(delta: float, count: int) -> None:
    if not 0 < delta < 1 or count < 1:
        raise ConfigError(
            f"delta={delta} and a number of rows or draws of {count}: choose 0 < delta < 1 and at least 1 "
            "row or draw."
        )


@dataclass(frozen=True)
class Loss:
    """A loss between 0 and 1 of one draw of the predictor."""

    # (probability of the right class, `S x n`; number of classes; cap M) -> losses, `S x n`.
    values: Callable[[Tensor, int, float], Tensor]
    capped: bool  # whether the loss is in units of the cap M
    covers: str  # consequence of a bound on the Gibbs risk for predictions that average the draws


def _smoothed(right: Tensor, classes: int, cap: float) -> Tensor:
    least = math.exp(-cap)
    return -(least + (1 - classes * least) * right).log() / cap


LOSSES = {
    "drawn-answer": Loss(
        lambda right, classes, cap: 1 - right,
        False,
        "The predictor also draws its answer and errs with probability 1 - p(y). The average of the "
        "probabilities errs at most twice as often: if its top answer is wrong, the right one has a "
        "probability of at most one half.",
    ),
    "smoothed-nll": Loss(
        _smoothed,
        True,
        "It is the NLL of a mixture of the prediction and the uniform distribution (weight C exp(-M)), which "
        "is at most M. It is convex in p, so it also covers the average of the probabilities, mixed in the "
        "same way.",
    ),
}


@dataclass(frozen=True, repr=False)
class GibbsBound:
    """A PAC-Bayes-kl bound, which prints with its assumptions."""

    loss: str  # a key of `LOSSES`
    mean: float  # mean loss over draws and rows, 0 to 1
    draws: int  # number of independent draws of Phi, each with its own draws of theta
    n: int  # number of rows
    kl: float  # `KL(q(Phi) || p(Phi))`, nats
    delta: float  # probability that the bound over the rows fails
    draws_delta: float  # probability that the bound over the draws fails; `bound` fails with at most the sum
    scale: float  # unit of the loss: M in nats for an NLL, 1 for a rate

    @property
    def empirical(self) -> float:
        """Bound on the empirical Gibbs risk, from the draws, in units of the loss."""
        return self.scale * sample_convergence(self.mean, self.draws, self.draws_delta)

    @property
    def bound(self) -> float:
        """Bound on the Gibbs risk, in units of the loss."""
        return self.scale * pac_bayes_kl(self.empirical / self.scale, self.kl, self.n, self.delta)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the bound, one sentence each."""
        return (
            f"The {self.n} rows are independent draws from the distribution that defines the risk.",
            "B, A, the amortiser of theta, the settings and the prior of Phi were fixed on other rows; only "
            "the posterior of Phi may have been fitted to these.",
            "theta is drawn anew for every row: its noise is part of the predictor and adds no divergence.",
            f"The {self.draws} draws of Phi, each with its own draws of theta, are independent.",
        )

    def statement(self) -> str:
        """Return the bound in sentences, with what it covers and its assumptions."""
        assumed = " ".join(f"({i}) {sentence}" for i, sentence in enumerate(self.assumptions, 1))
        return (
            f"With probability at least {1 - self.delta - self.draws_delta:g} the Gibbs risk ({self.loss}) "
            f"is at most {self.bound:.4g}, and never above {self.scale:.4g}: mean of the draws "
            f"{self.scale * self.mean:.4g}, at most {self.empirical:.4g} over all draws; divergence "
            f"{self.kl:.4g} nats, {self.n} rows. It covers the predictor that draws a new Phi for every "
            f"answer. {LOSSES[self.loss].covers} If Phi was also fitted on other rows, the held-out bound "
            f"is tighter. Assumed: {assumed}"
        )

    __str__ = __repr__ = statement


def gibbs_bound(
    draws: Tensor,
    labels: Tensor,
    kl: float,
    *,
    loss: str = "drawn-answer",
    loss_cap: float = math.log(100),
    delta: float = 0.045,
    draws_delta: float = 0.005,
    shared: bool = True,
) -> GibbsBound:
    """Bound the risk of the predictor that draws a new Phi for every answer.

    Args:
        draws: log-probabilities, `S x n x C`, from `core.prediction.predict` or
            `bara_pyro.extras.bounds.guarantees.gibbs_draws`.
        labels: index of the right class, long, `n`.
        kl: `KL(q(Phi) || p(Phi))` in nats: `MeanFieldELBO().terms(model, guide, batch).kl["phi"]`.
        loss: a key of `LOSSES`.
        loss_cap: M in nats, for the smoothed NLL.
        delta: probability of failure over the rows.
        draws_delta: probability of failure over the draws.
        shared: whether all rows share the draws of Phi, as from `predict`. If each row has separate draws,
            all S n are independent, as the bound over the draws requires (Hoeffding 1963, Theorem 1).

    Raises:
        ConfigError: the loss is unknown, or a number is out of range.
        DataError: a label is not a class, or `draws` are not log-probabilities.

    Examples:
        >>> import torch
        >>> from bara_pyro.extras.bounds.pac_bayes import gibbs_bound
        >>> draws = torch.tensor([0.9, 0.1]).log().expand(200, 500, 2)  # all answer A
        >>> labels = torch.tensor([0] * 450 + [1] * 50)
        >>> bound = gibbs_bound(draws, labels, kl=5.0)
        >>> round(bound.mean, 4), round(bound.bound, 2)
        (0.18, 0.39)
    """
    if loss not in LOSSES:
        raise ConfigError(unknown("loss", loss, LOSSES))
    checked = check_log_probs(draws, "draws", 3)
    samples, rows, classes = checked.shape
    known = check_labels(labels, rows, classes)
    if LOSSES[loss].capped and not loss_cap > math.log(classes):
        raise ConfigError(
            f"loss_cap={loss_cap} must exceed log C = {math.log(classes):.4g}, the loss of a uniform guess."
        )
    if not (0 <= kl < math.inf and delta > 0 and draws_delta > 0 and delta + draws_delta < 1):
        raise ConfigError(
            f"kl={kl}, delta={delta}, draws_delta={draws_delta}: give a finite kl >= 0 and two positive "
            "probabilities with a sum below 1."
        )
    right = checked.exp().gather(-1, known.expand(samples, -1)[..., None]).squeeze(-1).clamp(max=1.0)
    values = LOSSES[loss].values(right, classes, loss_cap)
    scale = loss_cap if LOSSES[loss].capped else 1.0
    independent = samples if shared else samples * rows
    return GibbsBound(loss, float(values.mean()), independent, rows, kl, delta, draws_delta, scale)
