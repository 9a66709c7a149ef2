r"""PAC-Bayes-kl bounds on the risk of BaRA's random predictor, and the test-set bound to compare them with.

    kl(Rhat || R) <= (KL(q(Phi) || p(Phi)) + log(2 sqrt(n) / delta)) / n      with probability 1 - delta

(Seeger, JMLR 2002; constant of Maurer, 2004), R the risk of the Gibbs predictor: one that draws Phi anew for
every answer. Losses lie in 0..1; `kl` is the divergence of two coins. Rhat, a mean over all Phi, is itself
bounded from S draws: `kl(mean of draws || Rhat) <= log(2 / delta') / S` (Langford and Caruana, NeurIPS 2002).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from bara_pyro.bisection import sign_change
from bara_pyro.errors import ConfigError, unknown
from bara_pyro.extras.bounds.stated import Stated, numbered
from bara_pyro.metrics._inputs import check_labels, check_log_probs


def binary_kl(q: float, p: float) -> float:
    """Return `kl(q || p)` of two coins in nats; infinite where p excludes what q allows."""
    total = 0.0
    for a, b in ((q, p), (1 - q, 1 - p)):
        if a > 0:
            total += a * math.log(a / b) if b > 0 else math.inf
    return total


def kl_inverse(q: float, budget: float) -> float:
    """Return the largest p with `kl(q || p) <= budget`, by bisection to the last digit of float64.

    Raises:
        ConfigError: q is no rate in 0..1, or the budget is negative.
    """
    if not 0 <= q <= 1 or not budget >= 0:
        raise ConfigError(f"kl_inverse needs a rate in 0..1 and a budget >= 0, got {q} and {budget}.")
    return sign_change(lambda p: binary_kl(q, p) - budget, q, 1.0)


def pac_bayes_kl(empirical: float, kl: float, n: int, delta: float) -> float:
    """Return the bound on the Gibbs risk of n rows, failing with probability delta.

    Args:
        empirical: Gibbs risk on the rows, 0..1, exact (`sample_convergence` bounds it from draws).
        kl: `KL(posterior || prior)` in nats, of a prior that was fixed before the rows were seen.
        n: rows.
        delta: probability of failure.
    """
    _check_delta(delta, n)
    return kl_inverse(empirical, (kl + math.log(2 * math.sqrt(n) / delta)) / n)


def sample_convergence(mean: float, draws: int, delta: float) -> float:
    """Return the bound on an empirical Gibbs risk from the mean risk of S independent draws."""
    _check_delta(delta, draws)
    return kl_inverse(mean, math.log(2 / delta) / draws)


def held_out_bound(empirical: float, n: int, delta: float) -> float:
    """Return the bound on the risk of one predictor that was fixed before the n rows were seen.

    The Chernoff bound in kl form (Langford, JMLR 2005): what any other has to beat where rows are held out.
    The empirical risk is the mean loss on the rows, 0..1.

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
            f"delta={delta} must lie between 0 and 1, and there must be rows and draws (got {count})."
        )


@dataclass(frozen=True)
class Loss:
    """A loss in 0..1 of one draw of the predictor."""

    # From the probability of the right class and whether it is the top one, both `S x n`, the number of
    # classes and the cap M to losses, `S x n`.
    values: Callable[[Tensor, Tensor, int, float], Tensor]
    capped: bool  # whether the loss is in units of the cap M
    covers: str  # what a bound on the Gibbs risk says about predictions that average the draws


def _smoothed(right: Tensor, top: Tensor, classes: int, cap: float) -> Tensor:
    least = math.exp(-cap)
    return -(least + (1 - classes * least) * right).log() / cap


LOSSES = {
    "zero-one": Loss(
        lambda right, top, classes, cap: (~top).double(),
        False,
        "The majority vote of the draws errs at most twice as often. The average of their probabilities is "
        "not covered: a few sure draws can outvote many that are barely right (take 'drawn-answer').",
    ),
    "drawn-answer": Loss(
        lambda right, top, classes, cap: 1 - right,
        False,
        "The predictor draws its answer, too, and errs with 1 - p(y). The average of the probabilities errs "
        "at most twice as often: where its top answer is wrong, it gives the right one at most one half.",
    ),
    "clipped-nll": Loss(
        lambda right, top, classes, cap: -right.log().clamp_min(-cap) / cap,
        True,
        "The average of the probabilities is not covered: min(-log p, M) is not convex in p (take "
        "'smoothed-nll').",
    ),
    "smoothed-nll": Loss(
        _smoothed,
        True,
        "It is the NLL after mixing every prediction with the uniform one, weight C exp(-M), which bounds it "
        "by M. It is convex in p, so the average of the probabilities, mixed likewise, is covered as well.",
    ),
}


@dataclass(frozen=True, repr=False)
class GibbsBound(Stated):
    """A PAC-Bayes-kl bound; printing it prints its assumptions."""

    loss: str  # a key of `LOSSES`
    mean: float  # mean loss over draws and rows, 0..1
    draws: int  # number of independent draws of Phi, each with theta of its own
    n: int  # rows
    kl: float  # `KL(q(Phi) || p(Phi))`, nats
    delta: float  # probability with which the bound over the rows may fail
    draws_delta: float  # the same of the bound over the draws; the whole may fail with the sum of both
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
        """What has to be true for the bound to hold, one sentence each."""
        return (
            f"The {self.n} rows are independent draws from the distribution that the risk is of.",
            "B, A, the amortiser of theta, the settings and the prior of Phi were fixed on other rows; only "
            "the posterior of Phi may have been fitted to these.",
            "theta is drawn anew for every row: its noise is part of the predictor and adds no divergence.",
            f"The {self.draws} draws of Phi, each with theta of its own, are independent.",
        )

    def statement(self) -> str:
        """Return the bound in sentences, with what it covers and its assumptions."""
        return (
            f"With probability at least {1 - self.delta - self.draws_delta:g} the Gibbs risk ({self.loss}) "
            f"is at most {self.bound:.4g}, and never above {self.scale:.4g}: mean of the draws "
            f"{self.scale * self.mean:.4g}, at most {self.empirical:.4g} over all draws; divergence "
            f"{self.kl:.4g} nats, {self.n} rows. It is about the predictor that draws Phi anew for every "
            f"answer. {LOSSES[self.loss].covers} If Phi, too, was fitted on other rows, the held-out bound "
            f"is tighter. {numbered(self.assumptions)}"
        )


def gibbs_bound(
    draws: Tensor,
    labels: Tensor,
    kl: float,
    *,
    loss: str = "zero-one",
    loss_cap: float = math.log(100),
    delta: float = 0.045,
    draws_delta: float = 0.005,
    shared: bool = True,
) -> GibbsBound:
    """Bound the risk of the predictor that draws Phi anew for every answer.

    Args:
        draws: log-probabilities, `S x n x C`, of `core.prediction.predict` or of
            `bara_pyro.diagnostics.posterior.gibbs_draws`.
        labels: `n`, index of the right class.
        kl: `KL(q(Phi) || p(Phi))` in nats: `MeanFieldELBO().terms(model, guide, batch).kl["phi"]`.
        loss: a key of `LOSSES`.
        loss_cap: M in nats, for the NLL losses.
        delta: probability of failure over the rows.
        draws_delta: probability of failure over the draws.
        shared: whether all rows share the draws of Phi, as those of `predict`; if each row has its own, all
            S n are independent, which is all that the bound over the draws asks (Hoeffding 1963, Theorem 1).

    Raises:
        ConfigError: unknown loss, a number out of range.
        DataError: a label is not known, or these are not log-probabilities.

    Examples:
        >>> import torch
        >>> from bara_pyro.extras.bounds.pac_bayes import gibbs_bound
        >>> draws = torch.tensor([0.9, 0.1]).log().expand(200, 500, 2)  # all say A
        >>> labels = torch.tensor([0] * 450 + [1] * 50)
        >>> found = gibbs_bound(draws, labels, kl=5.0)
        >>> round(found.mean, 4), round(found.bound, 2)
        (0.1, 0.28)
    """
    if loss not in LOSSES:
        raise ConfigError(unknown("loss", loss, LOSSES))
    checked = check_log_probs(draws, "draws", 3)
    samples, rows, classes = checked.shape
    known = check_labels(labels, rows, classes)
    if LOSSES[loss].capped and not loss_cap > math.log(classes):
        raise ConfigError(
            f"loss_cap={loss_cap} must exceed log C = {math.log(classes):.4g}, the loss of a guess."
        )
    if not (0 <= kl < math.inf and delta > 0 and draws_delta > 0 and delta + draws_delta < 1):
        raise ConfigError(
            f"kl={kl}, delta={delta}, draws_delta={draws_delta} must be a finite divergence and two positive "
            "probabilities with a sum below 1."
        )
    right = checked.exp().gather(-1, known.expand(samples, -1)[..., None]).squeeze(-1).clamp(max=1.0)
    values = LOSSES[loss].values(right, checked.argmax(-1) == known, classes, loss_cap)
    scale = loss_cap if LOSSES[loss].capped else 1.0
    independent = samples if shared else samples * rows
    return GibbsBound(loss, float(values.mean()), independent, rows, kl, delta, draws_delta, scale)
