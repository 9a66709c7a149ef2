r"""Cost of the class of certified predictors: caps on norms, and covers of the gates.

The bound of the paper's second appendix holds for a class that is fixed before the rows are seen. Two things
that are taken from the trained model have a cost: its measured norms (caps on a geometric grid), and its
learned gate (`Gamma_gate`, the logarithm of the number of gate matrices that represent all of them).
"""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError

UNIT = 2.0**-4
"""Smallest cap of the grid."""


@dataclass(frozen=True)
class Cap:
    """An upper limit of a norm."""

    name: str  # name of the norm
    value: float  # the limit
    share: float  # share of delta that remains, in (0, 1]; 1 if the cap was fixed before
    reason: str  # how the limit was chosen, one clause


def norm_cap(name: str, measured: float, fixed: float | None = None, unit: float = UNIT) -> Cap:
    r"""Return the cap of a norm, `fixed` before rows were seen, or the grid point above the measured norm.

    Point j = 1, 2, ... of the grid is `unit 2^(j-1)` and gets `delta_j = delta 6 / (pi^2 j^2)`. These add up
    to delta, so that the bounds of all points hold together with probability 1 - delta, and so does the
    measured one. With several grids the shares are multiplied. A number that is not positive and finite, or a
    measured norm above the fixed cap, raises a `ConfigError`.
    """
    limit = unit if fixed is None else fixed
    if not (math.isfinite(measured) and measured >= 0 and math.isfinite(limit) and limit > 0):
        raise ConfigError(
            f"The norm {name}={measured} and its cap or grid unit {limit} must be finite, and the cap or "
            "unit positive."
        )
    if fixed is not None:
        if measured > fixed:
            raise ConfigError(
                f"The norm {name}={measured:.4g} exceeds its cap {fixed:.4g}, so the bound does not cover "
                "this model: fix a larger cap before training, or omit it to take one from the grid."
            )
        return Cap(name, fixed, 1.0, "fixed before the rows were seen")
    value, point = unit, 1
    while value < measured:
        value, point = 2 * value, point + 1
    share = 6 / (math.pi * point) ** 2
    reason = (
        f"measured {measured:.4g}, point {point} of the grid {unit:g} * 2^(j-1), leaves {share:.3g} delta"
    )
    return Cap(name, value, share, reason)


COVERS = {
    "absorbed": "The gate costs nothing because it does not depend on these rows: it is the same for all "
    "inputs and is absorbed into B, or gate and amortiser were fixed before these rows were seen.",
    "global": "The gate is one vector in [0, R_g]^r for all inputs and does not depend on x.",
}
"""Name of a cover of the gate matrices -> its assumption.

The cost `Gamma_gate` of "absorbed" is 0, that of "global" is `r log(R_g / eps)` nats. A cover of all gates of
an amortiser makes every bound vacuous.
"""
