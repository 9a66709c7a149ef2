"""How templates write a number, a spread or an interval: `{{ value | f3 }}`, `pm1`, `b3`, `w1`, `i3`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.page.values import fixed


def spread(value: tuple[float, float], digits: int = 1) -> str:
    """Return mean and standard deviation.

    >>> spread((0.5639, 0.0041), 3)
    '0.564 ± 0.004'
    """
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def bare(entry: dict[str, Any], digits: int = 1) -> str:
    """Return a stored difference with its interval.

    >>> bare({"difference": 1.06, "low": 0.4, "high": 1.7, "se_seeds": 0.21})
    '+1.1 [+0.4, +1.7]'
    """
    return _bounded(entry, "difference", digits, "+")


def within(entry: dict[str, Any], digits: int = 1) -> str:
    """Return a stored mean with its interval.

    >>> within({"mean": 65.29, "low": 50.63, "high": 79.95})
    '65.3 [50.6, 80.0]'
    """
    return _bounded(entry, "mean", digits)


def _bounded(entry: dict[str, Any], what: str, digits: int, sign: str = "") -> str:
    middle, low, high = (fixed(entry[key], digits, sign) for key in (what, "low", "high"))
    return f"{middle} [{low}, {high}]"


def interval(entry: dict[str, Any], digits: int = 1) -> str:
    """Return a stored difference with its interval, and both standard errors where its rows are stored.

    >>> interval({"difference": 1.06, "low": 0.4, "high": 1.7, "se_seeds": 0.21, "se_rows": 0.3})
    '+1.1 [+0.4, +1.7] (SE 0.2 by seeds, 0.3 by rows)'
    """
    errors = [
        f"{entry[key]:.{digits}f} by {name}"
        for key, name in (("se_seeds", "seeds"), ("se_rows", "rows"))
        if entry.get(key) is not None
    ]
    beside = f" (SE {', '.join(errors)})" if errors else ""
    return bare(entry, digits) + beside


KINDS: dict[str, Callable[..., str]] = {
    "f": fixed,
    "s": partial(fixed, sign="+"),
    "pm": spread,
    "b": bare,
    "w": within,
    "i": interval,
}
FORMATS: dict[str, Callable[..., str]] = {
    f"{name}{digits}": partial(shown, digits=digits) for name, shown in KINDS.items() for digits in range(4)
} | {"percent": lambda value: fixed(100 * value)}
