r"""What the class of certified predictors costs: caps of norms, and covers of its gates.

The bound of the second appendix holds for a class that is fixed before the rows are seen. Two things of a
trained model have to be paid for: norms that were read off it (caps on a geometric grid), and a gate that was
learned (the logarithm of the number of gate matrices that represent all of them, `Gamma_gate`).
"""

import math
from dataclasses import dataclass

from bara_pyro.errors import ConfigError, unknown

UNIT = 2.0**-4
"""Smallest cap of the grid: norms below it get no smaller one."""


@dataclass(frozen=True)
class Cap:
    """An upper limit of a norm."""

    name: str  # of the norm
    value: float  # the limit
    share: float  # of delta that is left after paying for the choice, in (0, 1]; 1: fixed before
    reason: str  # one clause, why it is a limit


def norm_cap(name: str, measured: float, fixed: float | None = None, unit: float = UNIT) -> Cap:
    r"""Return the cap of a norm: `fixed` before the rows were seen, or the grid point above what is measured.

    Point j = 1, 2, .. of the grid is `unit 2^(j-1)` and is given `delta_j = delta 6 / (pi^2 j^2)`. Since
    these add up to delta over all j, the bounds of all points hold together with probability 1 - delta, and
    so does the one that the measurement picks. Several grids are paid for by the product of their shares.

    Raises:
        ConfigError: a number is not positive and finite, or the measured norm exceeds the fixed cap.
    """
    limit = unit if fixed is None else fixed
    if not (math.isfinite(measured) and measured >= 0 and math.isfinite(limit) and limit > 0):
        raise ConfigError(
            f"The norm {name}={measured} and its cap or grid unit {limit} must be finite, the cap positive."
        )
    if fixed is not None:
        if measured > fixed:
            raise ConfigError(
                f"The norm {name}={measured:.4g} exceeds its cap {fixed:.4g}, so the bound's class does not "
                "hold this model: fix a larger cap before training, or leave it out to take one of the grid."
            )
        return Cap(name, fixed, 1.0, "fixed before the rows were seen")
    value, point = unit, 1
    while value < measured:
        value, point = 2 * value, point + 1
    share = 6 / (math.pi * point) ** 2
    reason = (
        f"measured {measured:.4g}, point {point} of the grid {unit:g} * 2^(j-1), paid with {share:.3g} delta"
    )
    return Cap(name, value, share, reason)


@dataclass(frozen=True)
class GateCover:
    """A bound on how many gate matrices there are, up to eps."""

    name: str  # the choice, a key of `COVERS`
    nats: float  # `Gamma_gate(n, s, eps)` (Eq. for the gate cover in the second appendix)
    eps: float  # resolution, at most `R_g / sqrt(n)`
    assumption: str  # what has to be true for it, one sentence


_VALUES = (
    "each gate is a function of inputs + 1 numbers (its row of the amortiser and its factor Phi) in a "
    "ball of radius W, and moves by at most the given Lipschitz constant per unit of them"
)
COVERS = {
    "absorbed": "The gate costs nothing because it does not depend on these rows: it is the same for all "
    "inputs and is absorbed into B, or gate and amortiser were fixed before these rows were seen.",
    "global": "The gate is one vector in [0, R_g]^r for all inputs, with nothing in it that depends on x.",
    "parametric": f"The values of a learned gate are counted: {_VALUES}; what the hard threshold and the "
    "choice of the largest s add is not: they jump, so they would have to be ramps, or the supports be "
    "counted too.",
    "supports": "Each row chooses its support of at most s gates freely, and the values on it were fixed "
    "before these rows were seen or are absorbed into B.",
    "parametric+supports": "The values of a learned gate and every support of every row are counted: "
    f"{_VALUES}.",
}
"""Name -> what has to be true for the cover."""


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
    r"""Return `Gamma_gate(n, s, eps)` in nats for a named assumption on the gate class.

    absorbed              0
    global                r log(R_g / eps)
    parametric            r (d + 1) log(1 + 2 W Lambda / eps)
    supports              n log sum_{j <= s} C(r, j)
    parametric+supports   the sum of the last two

    A ball of radius W in d + 1 dimensions has a cover of (1 + 2 W / h)^(d+1) points at resolution h, and
    h = eps / Lambda resolves the gates to eps. Only the last one counts everything that a hard-thresholded
    gate with a learned amortiser can do.

    Args:
        name: a key of `COVERS`.
        n: rows.
        r: rank.
        s: budget of active gates.
        clip: `R_g`.
        inputs: width d of what the amortiser sees.
        radius: W, largest norm of one gate's parameters.
        lipschitz: Lambda, change of a gate per unit of its parameters: `R_x` for `softplus(w x)`.

    Raises:
        ConfigError: unknown name, a size out of range, or a number missing that the choice needs.
    """
    if name not in COVERS:
        raise ConfigError(unknown("gate cover", name, COVERS))
    if n < 1 or not 1 <= s <= r or not 0 < clip < math.inf:
        raise ConfigError(f"n={n}, s={s}, r={r}, clip={clip} must have n >= 1, 1 <= s <= r and clip > 0.")
    eps = clip / math.sqrt(n)  # the largest resolution that the bound allows
    nats = 0.0
    if name == "global":
        nats = r * math.log(clip / eps)
    if name.startswith("parametric"):
        if inputs is None or radius is None or lipschitz is None:
            raise ConfigError(
                "A parametric gate cover needs inputs (the width of x), radius (the cap W of a gate's "
                f"parameters) and lipschitz (R_x for softplus(w x)), got {inputs}, {radius}, {lipschitz}."
            )
        nats = r * (inputs + 1) * math.log1p(2 * radius * lipschitz / eps)
    if name.endswith("supports"):
        # Not only those of exactly s entries: the threshold may leave fewer (C(r, r) = 1 would cost nothing).
        nats += n * math.log(sum(math.comb(r, j) for j in range(s + 1)))
    return GateCover(name, nats, eps, COVERS[name])
