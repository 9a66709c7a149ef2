"""What studies know of the methods: names in tables, kinds, and where settings are looked for.

First the four learning rates, all else as by default. Then, at the best rate, two further values of one
regularisation strength where the method has one, and where it has none two rates half a step to either side:
as many trials for all.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bara_pyro.errors import ConfigError, unknown
from bara_pyro.methods import METHODS
from bara_pyro.runs.config import load_config

BUDGET = 6
# Above the last one LoRA itself falls to chance (docs/results.md, the study of learning rates).
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3)
# Of natural-gradient steps, clipped to a thousandth of the rate; 0.03 is published, for 10,000 steps.
NATURAL_RATES = (1e-2, 3e-2, 1e-1, 3e-1)


@dataclass(frozen=True)
class SearchSpace:
    """The trials of one method.

    Attributes:
        regulariser: the dotted setting of a regularisation strength; None where the method has none.
        values: the values of it to try besides the default one.
        lr: four learning rates, rising.
    """

    regulariser: str | None = None
    values: tuple[float, ...] = ()
    lr: tuple[float, ...] = RATES


class Studied:
    """A method as studies know it.

    Args:
        display: its name in tables.
        search: where its settings are looked for.
        kinds: what studies choose methods by: "reference" (others are compared with it), "ours", "main" (for
            studies that cannot have all), "recalibrated".
    """

    def __init__(self, display: str, search: SearchSpace, *kinds: str) -> None:
        self.display, self.search, self.kinds = display, search, frozenset(kinds)


# In the order of the tables.
STUDIED = {
    "lora": Studied("MLE (LoRA)", SearchSpace(), "main", "reference"),
    "map_decoupled": Studied("MAP (weight decay)", SearchSpace("train.weight_decay", (0.1, 1.0))),
    "map_prior": Studied("MAP (Gaussian prior)", SearchSpace("method.prior_scale", (0.1, 1.0))),
    "mc_dropout": Studied("MC-Dropout", SearchSpace("method.p", (0.05, 0.2)), "main"),
    "ensemble": Studied("Ensemble", SearchSpace(), "main"),
    "laplace": Studied("Laplace", SearchSpace("method.prior_precision", (10.0, 1000.0)), "main"),
    "blob": Studied("BLoB", SearchSpace("method.beta", (0.1, 0.01)), "main"),
    "scalabl": Studied("ScalaBL", SearchSpace("method.beta", (0.1, 0.01)), "main"),
    "clora": Studied("C-LoRA", SearchSpace("method.beta", (1e-4, 1e-6))),
    "fvae": Studied("FVAE-LoRA", SearchSpace("method.beta", (1e-4, 1e-6))),
    "temperature": Studied("Temperature", SearchSpace(), "recalibrated"),
    "ensemble_temperature": Studied("Ensemble, temperature", SearchSpace()),
    "tfb": Studied("TFB", SearchSpace("method.tolerance", (0.001, 0.01))),
    "ivon": Studied("IVON", SearchSpace("method.ess", (1e5, 1e7), lr=NATURAL_RATES)),
    "vbll": Studied("VBLL", SearchSpace("method.prior_scale", (0.3, 3.0))),
    "polar_vbll": Studied("PoLAR-VBLL", SearchSpace("method.prior_scale", (0.3, 3.0))),
    "adalora": Studied("AdaLoRA", SearchSpace("method.orth_weight", (0.01, 1.0))),
    "bara": Studied("BaRA", SearchSpace("method.init_kappa", (0.25, 0.8)), "main", "ours"),
    "bara-gate": Studied("BaRA gate", SearchSpace("method.init_kappa", (0.25, 0.8)), "main", "ours"),
}


def tagged(*kinds: str) -> list[str]:
    """Return the methods of one of these kinds, in the order of the tables."""
    return [name for name, method in STUDIED.items() if method.kinds.intersection(kinds)]


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the tables: methods first, others behind in their own order."""
    order = {name: place for place, name in enumerate(STUDIED)}
    return sorted(names, key=lambda name: order.get(name, math.inf))


def display(method: str) -> str:
    """Return a method's name in tables, the given name if studies do not know it."""
    return STUDIED[method].display if method in STUDIED else method


def space(method: str) -> SearchSpace:
    """Return the search space of a method; a `ConfigError` where it has none."""
    if method not in STUDIED or method not in METHODS:
        raise ConfigError(unknown("search space of the method", method, searched()))
    return STUDIED[method].search


def searched() -> list[str]:
    """Return the registered methods that have a search space, in the order of the tables."""
    return [name for name in STUDIED if name in METHODS]


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
