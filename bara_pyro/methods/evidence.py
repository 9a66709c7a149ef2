r"""The Laplace approximation of the log evidence, and the prior precision that maximises it.

With weights `theta ~ N(0, 1 / lambda)`, curvature F of the likelihood at theta, its eigenvalues mu:

    log p(D) ~ log p(D | theta) - 1/2 [ sum_k log(1 + mu_k / lambda) + lambda |theta|^2 ]

(MacKay, 1992; the bracket is `logdet(F + lambda I) - logdet(lambda I) + lambda |theta|^2`.) Its derivative in
log lambda is half of `sum_k mu_k / (mu_k + lambda) - lambda |theta|^2`, which falls strictly: the evidence is
concave in log lambda and has one maximum. Published code has it with the log determinant and the norm of the
wrong sign and the norm not squared (bayesian_lora, `main.py`); that is not reproduced here.
"""

import math

from torch import Tensor

from bara_pyro.bisection import sign_change

# Prior precisions outside are no answer: that of LoRA's initial A is 3 times the layer's width.
LOWEST, HIGHEST = 1e-8, 1e12


def log_evidence(log_likelihood: float, eigenvalues: Tensor, squared_norm: float, precision: float) -> float:
    """Return the Laplace approximation of log p(D), in nats.

    Args:
        log_likelihood: `log p(D | theta)` of all training rows, nats.
        eigenvalues: of the curvature, float64; those that are 0 may be left out.
        squared_norm: `|theta|^2`.
        precision: lambda.
    """
    occam = float((eigenvalues / precision).log1p().sum())
    return log_likelihood - 0.5 * (occam + precision * squared_norm)


def effective_parameters(eigenvalues: Tensor, precision: float) -> float:
    """Return `sum_k mu_k / (mu_k + lambda)`: how many weights the data determine rather than the prior."""
    return float((eigenvalues / (eigenvalues + precision)).sum())


def best_precision(eigenvalues: Tensor, squared_norm: float) -> float:
    """Return the prior precision of greatest evidence, by bisection of the derivative in its logarithm.

    Args:
        eigenvalues: of the curvature.
        squared_norm: `|theta|^2`.

    Returns:
        The maximum, to rounding; the end of `[LOWEST, HIGHEST]` that is nearest to it where it lies outside.
    """

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return precision * squared_norm - effective_parameters(eigenvalues, precision)

    return math.exp(sign_change(slope, math.log(LOWEST), math.log(HIGHEST)))
