"""What studies know of the methods: their order and names in tables, and the settings chosen for them.

The settings were chosen on validation rows with six trials for each method: four learning rates, then at the
best rate two values of a regularisation strength, or two rates half a step to either side. All trials are in
experiments/hyperparameters.json; `git show 172c952b:experiments/engine/search.py` prints the code.
"""

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from bara_pyro.errors import ConfigError
from bara_pyro.methods import METHODS
from bara_pyro.untrusted.files import read_json

CHOICES = Path(__file__).parents[1] / "hyperparameters.json"

STUDIED = {
    "lora": "MLE (LoRA)",
    "map_decoupled": "MAP (weight decay)",
    "map_prior": "MAP (Gaussian prior)",
    "mc_dropout": "MC-Dropout",
    "ensemble": "Ensemble",
    "laplace": "Laplace",
    "blob": "BLoB",
    "scalabl": "ScalaBL",
    "clora": "C-LoRA",
    "fvae": "FVAE-LoRA",
    "temperature": "Temperature",
    "ensemble_temperature": "Ensemble, temperature",
    "tfb": "TFB",
    "ivon": "IVON",
    "vbll": "VBLL",
    "polar_vbll": "PoLAR-VBLL",
    "adalora": "AdaLoRA",
    "bara": "BaRA",
    "bara-gate": "BaRA gate",
}
"""Name -> name in tables, in the order of the tables."""


def studied() -> list[str]:
    """Return the registered methods with chosen settings, in the order of the tables."""
    return [name for name in in_order(load_choices()) if name in METHODS]


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order of the tables: methods first, others behind in their own order."""
    order = {name: place for place, name in enumerate(STUDIED)}
    return sorted(names, key=lambda name: order.get(name, math.inf))


def display(method: str) -> str:
    """Return a method's name in tables, the given name if studies do not know it."""
    return STUDIED.get(method, method)


@cache
def load_choices() -> dict[str, Any]:
    """Return the trials and the choice of each method."""
    found: dict[str, Any] = read_json(CHOICES)["methods"]
    return found


def chosen(method: str) -> dict[str, Any]:
    """Return the dotted settings that were chosen for a method; a `ConfigError` if there are none."""
    settings = load_choices().get(method, {}).get("chosen")
    if settings is None:
        raise ConfigError(f"No settings are chosen for {method!r}: add them to {CHOICES}, or leave it out.")
    return dict(settings)
