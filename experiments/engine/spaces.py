"""Which methods there are for studies, and where their settings are looked for: as many trials for all.

First the four learning rates, all else as by default. Then, at the best rate, two further values of one
regularisation strength where the method has one, and where it has none two rates half a step to either side.
"""

import math
from collections.abc import Iterable
from typing import Any

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.methods import METHODS
from bara_pyro.methods.space import SearchSpace
from bara_pyro.runs.config import load_config

BUDGET = 6


def tagged(*tags: str) -> list[str]:
    """Return the methods that have one of these tags, in the order of the tables."""
    return [name for name in in_order(METHODS) if METHODS[name].tags.intersection(tags)]


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the tables: those of methods in theirs, others behind in their own."""
    return sorted(names, key=lambda name: METHODS[name].order if name in METHODS else math.inf)


def searched() -> list[str]:
    """Return the registered methods that have a search space, in the order of the tables."""
    return [name for name in in_order(METHODS) if METHODS[name].search is not None]


def space(method: str) -> SearchSpace:
    """Return the search space of a method; a `ConfigError` where it has none."""
    found = METHODS[method].search if method in METHODS else None
    if found is None:
        raise ConfigError(unknown("search space of the method", method, searched()))
    return found


def first_trials(method: str) -> list[dict[str, Any]]:
    """Return the settings of the trials that need no result."""
    return [{"train.lr": lr} for lr in space(method).lr]


def further_trials(method: str, best: float) -> list[dict[str, Any]]:
    """Return the settings of the trials that follow when the learning rate `best` did best of the first."""
    s = space(method)
    if s.regulariser is not None:
        return [{"train.lr": best, s.regulariser: value} for value in s.values]
    return [{"train.lr": lr} for lr in halfway(s.lr, best)]


def halfway(rates: tuple[float, ...], best: float) -> tuple[float, float]:
    """Return the geometric midpoints between a rate and its neighbours, to three digits.

    At an end of the range the missing neighbour is as far away as the other one.

    >>> halfway((1e-3, 4e-3, 1.6e-2), 4e-3)
    (0.002, 0.008)
    >>> halfway((1e-3, 4e-3, 1.6e-2), 1e-3)
    (0.0005, 0.002)
    """
    i, last = rates.index(best), len(rates) - 1
    below = rates[i - 1] if i > 0 else best * best / rates[1]
    above = rates[i + 1] if i < last else best * best / rates[last - 1]
    low, high = (float(f"{math.sqrt(best * other):.3g}") for other in (below, above))
    return low, high


def check_spaces(methods: Iterable[str]) -> None:
    """Build the configuration of every trial that the methods' spaces can lead to.

    Raises:
        ConfigError: a space is missing, has not the common budget, or a setting or value in it is wrong.
    """
    for method in methods:
        trials = [*first_trials(method), *further_trials(method, space(method).lr[0])]
        if len(trials) != BUDGET:
            raise ConfigError(
                f"The search space of {method!r} has {len(trials)} trials: give it {BUDGET}, as all have."
            )
        for settings in trials:
            try:
                load_config(overrides={"method": method, **settings})
            except ConfigError as error:
                raise ConfigError(f"The search space of {method!r} does not fit: {error}") from error
