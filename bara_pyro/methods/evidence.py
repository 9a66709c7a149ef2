r"""The Laplace approximation of the log evidence, and the prior precision that maximises it.

With weights `theta ~ N(0, 1 / lambda)`, curvature F of the likelihood at theta, its eigenvalues mu:

    log p(D) ~ log p(D | theta) - 1/2 [ sum_k log(1 + mu_k / lambda) + lambda |theta|^2 ]

(MacKay, 1992; the bracket is `logdet(F + lambda I) - logdet(lambda I) + lambda |theta|^2`.) Its derivative in
log lambda is half of `sum_k mu_k / (mu_k + lambda) - lambda |theta|^2`, which is strictly decreasing: the
evidence is concave in log lambda and has one maximum. Published code (bayesian_lora, `main.py`) has the wrong
sign for log determinant and norm and does not square the norm; this module does not reproduce that.
"""

import math

from torch import Tensor

from bara_pyro.bisection import sign_change

# Range of plausible prior precisions; that of LoRA's initial A is 3 times the layer's width.
LOWEST, HIGHEST = 1e-8, 1e12


def log_evidence(log_likelihood: float, eigenvalues: Tensor, squared_norm: float, precision: float) -> float:
    """Return the Laplace approximation of log p(D), in nats.

    Args:
        log_likelihood: `log p(D | theta)` of all training rows, in nats.
        eigenvalues: eigenvalues of the curvature, float64; zeros may be omitted.
        squared_norm: `|theta|^2`.
        precision: prior precision lambda.
    """
    occam = float((eigenvalues / precision).log1p().sum())
    return log_likelihood - 0.5 * (occam + precision * squared_norm)


def effective_parameters(eigenvalues: Tensor, precision: float) -> float:
    """Return `sum_k mu_k / (mu_k + lambda)`, the number of weights determined by the data, not the prior."""
    return float((eigenvalues / (eigenvalues + precision)).sum())


def best_precision(eigenvalues: Tensor, squared_norm: float) -> float:
    """Return the prior precision that maximises the evidence, by bisection of its derivative.

    Args:
        eigenvalues: eigenvalues of the curvature.
        squared_norm: `|theta|^2`.

    Returns:
        The maximiser within `[LOWEST, HIGHEST]`, to rounding.
    """

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return precision * squared_norm - effective_parameters(eigenvalues, precision)

    return math.exp(sign_change(slope, math.log(LOWEST), math.log(HIGHEST)))
