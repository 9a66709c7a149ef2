"""Searches along a line: for the largest noise still allowed, and for the place where a slope turns."""

from collections.abc import Callable

# Where the search for a noise level gives up doubling or halving.
LARGEST, SMALLEST = 1e3, 1e-9


def largest_feasible(feasible: Callable[[float], bool], start: float, precision: float = 0.01) -> float:
    """Return the largest feasible positive number below the first infeasible one that doubling finds.

    Doubles (or halves) `start` until a feasible and an infeasible number enclose the boundary, then bisects
    their logarithms. Where the feasible numbers are not one interval, the boundary is the first one seen.

    Args:
        feasible: whether a number is allowed; 0 is taken to be.
        start: the number tried first.
        precision: the boundary is enclosed to this share.

    Returns:
        A number for which `feasible` was true while `1 + precision` times it lies beyond one for which it was
        false; at least `LARGEST` where all are feasible, 0 where none down to `SMALLEST` is.
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
    """Return where a function turns from negative to positive, or the nearer end where it does not.

    Sixty halvings leave no digit of a float64 interval undecided.
    """
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
