r"""Cost of the class of certified predictors: caps on norms, and covers of the gates.

The bound of the paper's second appendix holds for a class that is fixed before the rows are seen. Two things
that are taken from the trained model have a cost: its measured norms (caps on a geometric grid), and its
learned gate (`Gamma_gate`, the logarithm of the number of gate matrices that represent all of them).
"""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError, unknown

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


@dataclass(frozen=True)
class GateCover:
    """A bound on the number of gate matrices that differ by more than eps."""

    name: str  # a key of `COVERS`
    nats: float  # `Gamma_gate(n, s, eps)`, nats (equation for the gate cover in the second appendix)
    eps: float  # resolution, at most `R_g / sqrt(n)`
    assumption: str  # assumption of the cover, one sentence


COVERS = {
    "absorbed": "The gate costs nothing because it does not depend on these rows: it is the same for all "
    "inputs and is absorbed into B, or gate and amortiser were fixed before these rows were seen.",
    "global": "The gate is one vector in [0, R_g]^r for all inputs and does not depend on x.",
}
"""Name of the cover -> its assumption. A cover of all gates of an amortiser makes every bound vacuous."""


def gate_cover(name: str, *, n: int, r: int, clip: float) -> GateCover:
    """Return the cover of the gates under a named assumption, with its cost `Gamma_gate` in nats.

    The cost of "absorbed" is 0, that of "global" is `r log(R_g / eps)`.

    Args:
        name: a key of `COVERS`.
        n: number of rows.
        r: rank.
        clip: `R_g`.

    Raises:
        ConfigError: the name is unknown, or a size is out of range.
    """
    if name not in COVERS:
        raise ConfigError(unknown("gate cover", name, COVERS))
    if n < 1 or r < 1 or not 0 < clip < math.inf:
        raise ConfigError(f"n={n}, r={r}, clip={clip}: choose n and r of at least 1 and clip > 0.")
    eps = clip / math.sqrt(n)  # the largest resolution that the bound allows
    return GateCover(name, r * math.log(clip / eps) if name == "global" else 0.0, eps, COVERS[name])
