"""Where the settings of each method are looked for: the same number of trials for all.

First the four learning rates, all else as by default. Then, at the best rate, two further values of one
regularisation strength where the method has one, and where it has none two rates half a step to either side.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.runs.config import load_config

BUDGET = 6
# Above the last one LoRA itself falls to chance (docs/results.md, the study of learning rates).
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)
# Of natural-gradient steps, clipped to a thousandth of the rate; 0.03 is published, for 10,000 steps.
NATURAL_RATES = (1e-2, 3e-2, 1e-1, 3e-1)


@dataclass(frozen=True)
class Space:
    """The trials of one method.

    Attributes:
        lr: four learning rates, rising.
        regulariser: the dotted setting of a regularisation strength; None where the method has none.
        values: the values of it to try besides the default one.
    """

    lr: tuple[float, ...] = RATES
    regulariser: str | None = None
    values: tuple[float, ...] = ()


SPACES: dict[str, Space] = {
    # method              rates          regularisation strength     besides its default
    "lora":          Space(RATES),
    "map_decoupled": Space(RATES,         "train.weight_decay",       (0.1, 1.0)),
    "map_prior":     Space(RATES,         "method.prior_scale",       (0.1, 1.0)),
    "mc_dropout":    Space(RATES,         "method.p",                 (0.05, 0.2)),
    "ensemble":      Space(RATES),
    "laplace":       Space(RATES,         "method.prior_precision",   (100.0, 1000.0)),
    "temperature":   Space(RATES),
    "tfb":           Space(RATES,         "method.tolerance",         (0.001, 0.01)),
    "blob":          Space(RATES,         "method.beta",              (0.1, 0.01)),
    "scalabl":       Space(RATES,         "method.beta",              (0.1, 0.01)),
    "clora":         Space(RATES,         "method.beta",              (1e-4, 1e-6)),
    "fvae":          Space(RATES,         "method.beta",              (1e-4, 1e-6)),
    "ivon":          Space(NATURAL_RATES, "method.ess",               (1e5, 1e7)),
    "adalora":       Space(RATES,         "method.orth_weight",       (0.01, 1.0)),
    "bara":          Space(RATES,         "method.init_kappa",        (0.25, 0.8)),
    "bara-gate":     Space(RATES,         "method.init_kappa",        (0.25, 0.8)),
}  # fmt: skip


def space(method: str) -> Space:
    """Return the search space of a method.

    Raises:
        ConfigError: it has none.
    """
    if method not in SPACES:
        raise ConfigError(unknown("search space of the method", method, SPACES))
    return SPACES[method]


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
        ConfigError: a method is unknown or has no space, a space has not the common budget, or a setting or
            value in it is wrong.
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
