"""Wilson's interval for a rate: it stays within 0 and 100, and holds the truth with few rows, too."""

import math

from scipy.special import ndtri

from bara_pyro.errors import DataError
from bara_pyro.metrics.intervals import check_level


def wilson(rate: float, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of a rate of independent rows (Wilson 1927, J. Am. Stat. Assoc. 22, 209-212).

    Args:
        rate: in percent; ties may have counted half.
        rows: how many rows it is a rate of.
        level: nominal coverage, between 0 and 1.

    Returns:
        The lower and the upper end, in percent.

    Raises:
        DataError: there are no rows, or the rate is not between 0 and 100.
        ConfigError: `level` is out of range.
    """
    check_level(level)
    if rows < 1 or not 0.0 <= rate <= 100.0:
        raise DataError(
            f"A rate of {rate} % of {rows} rows has no interval: give 0 to 100, of 1 row or more."
        )
    p, z2 = rate / 100, float(ndtri((1 + level) / 2)) ** 2
    centre = p + z2 / (2 * rows)
    half = math.sqrt(z2 * (p * (1 - p) / rows + z2 / (4 * rows**2)))
    low, high = ((centre + sign * half) / (1 + z2 / rows) for sign in (-1, 1))
    return 100 * min(max(0.0, low), p), 100 * max(min(1.0, high), p)  # it holds p, but for rounding
