"""Wilson's interval for a rate: it stays within 0 and 100 percent and is reliable even for few rows."""

import math

from scipy.special import ndtri

from bara_pyro.errors import DataError
from bara_pyro.metrics.intervals import check_level


def wilson(rate: float, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's confidence interval for a rate over independent rows.

        (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    where p is the rate, n the number of rows and z the normal quantile of (1 + level) / 2.

    Source: Wilson 1927, J. Am. Stat. Assoc. 22, 209-212.

    Args:
        rate: rate in percent; ties may count half.
        rows: number of rows n.
        level: nominal coverage, between 0 and 1.

    Returns:
        The lower and the upper end, in percent.

    Raises:
        DataError: `rows` is 0, or `rate` is not between 0 and 100.
        ConfigError: `level` is out of range.
    """
    check_level(level)
    if rows < 1 or not 0.0 <= rate <= 100.0:
        raise DataError(
            f"No interval for a rate of {rate} % of {rows} rows: give a rate of 0 to 100 and 1 row or more."
        )
    p, z2 = rate / 100, float(ndtri((1 + level) / 2)) ** 2
    centre = p + z2 / (2 * rows)
    half = math.sqrt(z2 * (p * (1 - p) / rows + z2 / (4 * rows**2)))
    low, high = ((centre + sign * half) / (1 + z2 / rows) for sign in (-1, 1))
    return 100 * min(max(0.0, low), p), 100 * max(min(1.0, high), p)  # keep p inside despite rounding
