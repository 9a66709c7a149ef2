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


_VALUES = (
    "each gate is a function of inputs + 1 numbers (its row of the amortiser and its factor Phi) in a "
    "ball of radius W, with at most the given Lipschitz constant"
)
COVERS = {
    "absorbed": "The gate costs nothing because it does not depend on these rows: it is the same for all "
    "inputs and is absorbed into B, or gate and amortiser were fixed before these rows were seen.",
    "global": "The gate is one vector in [0, R_g]^r for all inputs and does not depend on x.",
    "parametric": f"The values of a learned gate are counted: {_VALUES}. The hard threshold and the choice "
    "of the s largest are discontinuous and not counted; count the supports as well to include them.",
    "supports": "Each row chooses its support of at most s gates freely, and the values on it were fixed "
    "before these rows were seen or are absorbed into B.",
    "parametric+supports": "The values of a learned gate and every support of every row are counted: "
    f"{_VALUES}.",
}
"""Name of the cover -> its assumption."""


def gate_cover(
    name: str,
    *,
    n: int,
    r: int,
    s: int,
    clip: float,
    inputs: int | None = None,
    radius: float | None = None,
    lipschitz: float | None = None,
) -> GateCover:
    r"""Return the cover of the gates under a named assumption, with its cost `Gamma_gate(n, s, eps)` in nats.

    absorbed              0
    global                r log(R_g / eps)
    parametric            r (d + 1) log(1 + 2 W Lambda / eps)
    supports              n log sum_{j <= s} C(r, j)
    parametric+supports   the sum of the last two

    A ball of radius W in d + 1 dimensions has a cover of (1 + 2 W / h)^(d+1) points at resolution h, and
    h = eps / Lambda resolves the gates to eps. Only "parametric+supports" counts all hard-thresholded gates
    of a learned amortiser.

    Args:
        name: a key of `COVERS`.
        n: number of rows.
        r: rank.
        s: budget of active gates.
        clip: `R_g`.
        inputs: width d of the amortiser's input.
        radius: W, largest norm of one gate's parameters.
        lipschitz: Lambda, change of a gate per unit of its parameters: `R_x` for `softplus(w x)`.

    Raises:
        ConfigError: the name is unknown, a size is out of range, or a number that the cover needs is missing.
    """
    if name not in COVERS:
        raise ConfigError(unknown("gate cover", name, COVERS))
    if n < 1 or not 1 <= s <= r or not 0 < clip < math.inf:
        raise ConfigError(f"n={n}, s={s}, r={r}, clip={clip}: choose n >= 1, 1 <= s <= r and clip > 0.")
    eps = clip / math.sqrt(n)  # the largest resolution that the bound allows
    nats = 0.0
    if name == "global":
        nats = r * math.log(clip / eps)
    if name.startswith("parametric"):
        if inputs is None or radius is None or lipschitz is None:
            raise ConfigError(
                "A parametric gate cover needs inputs (width of x), radius (W, cap of a gate's parameters) "
                f"and lipschitz (R_x for softplus(w x)), but got {inputs}, {radius} and {lipschitz}."
            )
        nats = r * (inputs + 1) * math.log1p(2 * radius * lipschitz / eps)
    if name.endswith("supports"):
        # All sizes up to s, because the threshold may leave fewer; C(r, r) = 1 would cost nothing.
        nats += n * math.log(sum(math.comb(r, j) for j in range(s + 1)))
    return GateCover(name, nats, eps, COVERS[name])
