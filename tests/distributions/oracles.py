"""Divergences by quadrature, from scipy's log-densities: nothing here shares code with the library."""

from collections.abc import Callable

import numpy as np
from scipy import special, stats


def weibull_gamma(kappa: float, mean: float, a: float, b: float) -> float:
    """KL(Weibull || Gamma) as an expectation over E ~ Exp(1), with t = scale * E ** kappa.

    In w = log E the integrand is smooth and decays at both ends whatever kappa is, so that the trapezoid rule
    converges exponentially; in t it is a spike at kappa = 0.01 and has a pole at 0 for kappa = 5.
    """
    w = np.linspace(-80.0, 6.0, 20001)
    log_t = np.log(mean) - special.gammaln(1 + kappa) + kappa * w
    log_q = -np.log(kappa) - log_t + w - np.exp(w)
    log_p = a * np.log(b) - special.gammaln(a) + (a - 1) * log_t - b * np.exp(log_t)
    return float(np.trapezoid(np.exp(w - np.exp(w)) * (log_q - log_p), w))


def divergence(q: stats.rv_continuous, p: stats.rv_continuous) -> float:
    """KL(q || p) of two frozen scipy distributions over t > 0, by the trapezoid rule in log t."""
    log_t = np.linspace(-120.0, 40.0, 80001)
    with np.errstate(all="ignore"):
        log_q, log_p = q.logpdf(np.exp(log_t)), p.logpdf(np.exp(log_t))
        density = np.exp(log_q + log_t)
        integrand = np.where(density > 0, density * (log_q - log_p), 0.0)
    return float(np.trapezoid(integrand, log_t))


def gamma(a: float, b: float) -> stats.rv_continuous:
    return stats.gamma(a, scale=1 / b)


def exponential(rate: float) -> stats.rv_continuous:
    return stats.expon(scale=1 / rate)


def half_normal(scale: float) -> stats.rv_continuous:
    return stats.halfnorm(scale=scale)


def log_normal(loc: float, scale: float) -> stats.rv_continuous:
    return stats.lognorm(scale, scale=np.exp(loc))


def inverse_gamma(a: float, b: float) -> stats.rv_continuous:
    return stats.invgamma(a, scale=b)


def weibull(scale: float, concentration: float) -> stats.rv_continuous:
    return stats.weibull_min(concentration, scale=scale)


def mean_weibull(mean: float, kappa: float) -> stats.rv_continuous:
    return stats.weibull_min(1 / kappa, scale=mean / special.gamma(1 + kappa))


FAMILIES: dict[str, Callable[..., stats.rv_continuous]] = {
    "MeanWeibull": mean_weibull,
    "Weibull": weibull,
    "Gamma": gamma,
    "LogNormal": log_normal,
    "Exponential": exponential,
    "HalfNormal": half_normal,
    "InverseGamma": inverse_gamma,
}
