"""One-dimensional searches: for the largest feasible number and for a change of sign."""

from collections.abc import Callable

# Bounds of doubling and halving.
LARGEST, SMALLEST = 1e3, 1e-9


def largest_feasible(feasible: Callable[[float], bool], start: float, precision: float = 0.01) -> float:
    """Return the largest feasible positive number, up to a relative precision.

    Doubles (or halves) `start` until a feasible and an infeasible number enclose the boundary, then bisects
    their logarithms. If the feasible numbers are not one interval, the first boundary found is used.

    Args:
        feasible: whether a number is allowed; 0 is assumed to be.
        start: the first number to try.
        precision: relative precision of the boundary.

    Returns:
        A feasible number within the relative `precision` of an infeasible one; at least `LARGEST` if all
        tried numbers are feasible, 0 if none is feasible down to `SMALLEST`.
    """
    low = high = start
    if feasible(start):
        while feasible(high := 2 * low):
            low = high
            if low >= LARGEST:
                return low
    else:
        while not feasible(low := high / 2):
            high = low
            if high <= SMALLEST:
                return 0.0
    while high > low * (1 + precision):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low


def sign_change(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function turns from negative to positive; without such a point, the nearer end."""
    for _ in range(60):  # to the precision of float64
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
